// The copies of one direction between a GPU and page-locked host memory, in the order in which they
// were started.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. The n-th copy that was started has number n, and is done after those below it.
//  2. A copy that may have reached the device has a number, or the device is lost.
#ifndef VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_
#define VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "rdma/base/ring_queue.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/device.h"

namespace verbena::rdma::cuda {

class CopyQueue {
 public:
  // `context` must outlive it.
  CopyQueue(CudaContext* context, Device::Direction direction)
      : context_(*context), direction_(direction) {}

  // As Device::StartCopy() and CopiesDone().
  absl::StatusOr<uint64_t> Start(const std::byte* from, std::byte* to, size_t bytes);
  absl::StatusOr<uint64_t> Done();

 private:
  Result Enqueue(const std::byte* from, std::byte* to, size_t bytes);
  absl::Status CopyError(Result code, const std::byte* from, const std::byte* to, size_t bytes);

  CudaContext& context_;
  const Device::Direction direction_;
  std::mutex mutex_;  // held while a copy is enqueued: the stream's order is that of the numbers
  uint64_t started_ = 0;
  uint64_t done_ = 0;
  // The copies that are not known to be done.
  RingQueue<std::pair<uint64_t, CudaContext::EventHandle>> pending_;
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_
