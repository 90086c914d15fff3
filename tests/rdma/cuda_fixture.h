// Shared by tests of CUDA devices: the imitated driver as it was at the start, and proof at the end
// that everything was given back to it.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_CUDA_FIXTURE_H_
#define VERBENA_TESTS_RDMA_CUDA_FIXTURE_H_

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "tests/rdma/fake_cuda/fake_cuda.h"

namespace verbena::rdma {

// Declared first in a test, so that it looks last.
class CudaFixture {
 public:
  CudaFixture() { fake_cuda_reset(); }
  ~CudaFixture() {
    const FakeCudaCounts counts = fake_cuda_counts();
    CHECK(counts.allocations == 0);
    CHECK(counts.registrations == 0);
    CHECK(counts.streams == 0);
    CHECK(counts.events == 0);
    CHECK(counts.modules == 0);
    CHECK(counts.contexts == 0);
    CHECK(counts.current_depth == 0);
    CHECK_FALSE(counts.mode_changed);
    CHECK(counts.unpinned_copies == 0);
    CHECK(counts.stale_copies == 0);
    CHECK(counts.stray_copies == 0);
    CHECK(counts.broken_captures == 0);
    fake_cuda_reset();
  }
};

inline bool Says(const absl::Status& status, const std::string& text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

// Polls until `number` copies are done; bounded, for tests of copies that never complete.
inline bool Finish(Device& device, Device::Direction direction, uint64_t number) {
  for (int i = 0; i < 10'000; ++i) {
    const auto done = device.CopiesDone(direction);
    if (!done.ok()) return false;
    if (*done >= number) return true;
  }
  return false;
}

inline std::vector<uint8_t> OnDevice(const MemoryBlock& block) {
  std::vector<uint8_t> bytes(block.size());
  REQUIRE(fake_cuda_read(block.data(), bytes.data(), bytes.size()));
  return bytes;
}

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_CUDA_FIXTURE_H_
