// Push buffers: host memory that encoded gradients lie in from their call until their records are
// settled, and which is used again then. Pieces, which no peer maps: they come and go.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
#define VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

class PushBuffers {
 public:
  // At least `bytes`; comes back when the last reference goes. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Take(size_t bytes);

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::shared_ptr<rdma::MemoryBlock>> blocks;
  };
  const std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
