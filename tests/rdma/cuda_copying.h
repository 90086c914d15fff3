// Shared by tests of copies to and from CUDA devices.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_RDMA_CUDA_COPYING_H_
#define VERBENA_TESTS_RDMA_CUDA_COPYING_H_

#include <memory>

#include "tests/rdma/cuda_fixture.h"

namespace verbena::rdma {

using Direction = Device::Direction;
inline constexpr auto kToHost = Direction::kToHost;
inline constexpr auto kToDevice = Direction::kToDevice;
inline constexpr size_t kPage = 4096;

inline std::shared_ptr<MemoryBlock> Pinned(const std::shared_ptr<Device>& device, size_t bytes) {
  return MemoryBlock::AllocatePinned(device, bytes, "test").value();
}
inline std::shared_ptr<MemoryBlock> On(const std::shared_ptr<Device>& device, size_t bytes) {
  return MemoryBlock::AllocateOn(device, bytes).value();
}

}  // namespace verbena::rdma

#endif  // VERBENA_TESTS_RDMA_CUDA_COPYING_H_
