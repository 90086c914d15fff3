// Push buffers: host memory that encoded gradients lie in from their call until their records are
// settled, and which is used again then. Pieces, which no peer maps: they come and go.
//
// **Thread safety**: one owner at a time, which is also who drops the last reference to a buffer.
#ifndef VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
#define VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "rdma/memory/memory.h"

namespace verbena::client {

class PushBuffers {
 public:
  // At least `bytes`; comes back when the last reference goes. RESOURCE_EXHAUSTED: no memory.
  absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> Take(size_t bytes);

 private:
  using Blocks = std::vector<std::shared_ptr<rdma::MemoryBlock>>;
  const std::shared_ptr<Blocks> free_ = std::make_shared<Blocks>();
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_STAGING_PUSH_BUFFERS_H_
