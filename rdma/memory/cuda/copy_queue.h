// Queue of copies of one direction between a GPU and page-locked host memory.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. The n-th started copy has number n, and completes after the copies below it.
//  2. A copy that may have reached the device has a number, unless the device is lost, or other
//     copies of its batch were refused: the next started batch then has an event after it.
#ifndef VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_
#define VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/base/ring_queue.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/device.h"

namespace verbena::rdma::cuda {

class CopyQueue {
 public:
  // `context` must outlive it.
  CopyQueue(CudaContext* context, Device::Direction direction)
      : context_(*context),
        direction_(direction),
        batches_(context->api().cuMemcpyBatchAsync_v2 != nullptr) {}

  // The contracts are those of Device::StartCopy(), StartCopies() and CopiesDone().
  absl::StatusOr<uint64_t> Start(const std::byte* from, std::byte* to, size_t bytes) {
    const Device::Copy copy = {from, to, bytes};
    return StartAll({&copy, 1});
  }
  absl::StatusOr<uint64_t> StartAll(absl::Span<const Device::Copy> copies);
  absl::StatusOr<uint64_t> Done();

 private:
  absl::Status EnqueueAll(absl::Span<const Device::Copy> copies);
  absl::Status Enqueue(const Device::Copy& copy);
  Result FindAll(absl::Span<const Device::Copy> copies);
  Result EnqueueBatch(absl::Span<const Device::Copy> copies);
  absl::Status CopyError(Result code, const Device::Copy& copy);

  CudaContext& context_;
  const Device::Direction direction_;
  std::mutex mutex_;  // held while a copy is enqueued, so that the stream's order is that of the
                      // numbers
  uint64_t started_ = 0;
  uint64_t done_ = 0;
  // The last copy of each batch that may be incomplete, and its event.
  RingQueue<std::pair<uint64_t, CudaContext::EventHandle>> pending_;
  bool batches_;  // the driver can start several copies in one call
  std::vector<Address> to_, from_;
  std::vector<size_t> bytes_;
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_COPY_QUEUE_H_
