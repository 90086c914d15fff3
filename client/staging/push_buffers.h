// Push buffers: host memory that encoded gradients lie in from their call until their records are
// settled, and which is used again then. Pieces, which no peer maps: they come and go. A buffer
// that fits none of the next kMostIdle calls is freed: its table is most likely gone.
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

  // At least `bytes`; comes back when the last reference goes. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Take(size_t bytes);

 private:
  struct Idle {
    std::shared_ptr<rdma::MemoryBlock> block;
    uint64_t since;  // the call before
  };
  struct Free {
    std::mutex mutex;
    // Guarded by mutex.
    uint64_t calls = 0;
    std::vector<Idle> blocks;  // idle for longest first
  };
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
