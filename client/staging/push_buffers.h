// Push buffers: host memory for encoded gradients, from their call until their records are settled,
// and then for reuse. They are pieces, which no peer maps, because they are short-lived. A buffer
// that does not fit any of the next kMostIdle calls is freed: its table is probably gone.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
#define VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

class PushBuffers {
 public:
  static constexpr uint64_t kMostIdle = 256;

  // Returns at least `bytes`; the buffer is returned when the last reference is dropped.
  // RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Take(size_t bytes);

 private:
  struct Idle {
    std::shared_ptr<rdma::MemoryBlock> block;
    uint64_t since;  // number of the previous call
  };
  struct Free {
    std::mutex mutex;
    // Guarded by mutex.
    uint64_t calls = 0;
    std::vector<Idle> blocks;  // longest idle first
  };
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
