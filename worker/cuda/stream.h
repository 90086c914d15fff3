// A separate stream on a GPU, and waiting for a GPU on the host.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_CUDA_STREAM_H_
#define VERBENA_WORKER_CUDA_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/device.h"

namespace verbena::worker {

class GpuStream {
 public:
  // A stream that waits for no other. UNIMPLEMENTED: `device` is not a CUDA device.
  static absl::StatusOr<std::unique_ptr<GpuStream>> Open(std::shared_ptr<rdma::Device> device);
  // Waits for enqueued work.
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  rdma::cuda::CudaContext* context() const { return context_; }
  rdma::cuda::Stream handle() const { return stream_; }
  uintptr_t number() const { return reinterpret_cast<uintptr_t>(stream_); }
  // Waits until the enqueued work is done. UNAVAILABLE: the device is lost.
  absl::Status Wait() {
    return Wait([] { return absl::OkStatus(); });
  }
  // Wait() that also ends when `check`, which is called repeatedly, returns an error.
  absl::Status Wait(const std::function<absl::Status()>& check);

 private:
  GpuStream(std::shared_ptr<rdma::Device> device, rdma::cuda::CudaContext* context)
      : device_(std::move(device)), context_(context) {}

  const std::shared_ptr<rdma::Device> device_;
  rdma::cuda::CudaContext* const context_;  // the device's
  rdma::cuda::Stream stream_ = nullptr;
};

// Between memory of the device and page-locked memory of the host; done when it returns.
absl::Status CopyNow(rdma::Device* device, rdma::Device::Direction direction, const void* from,
                     void* to, size_t bytes);

// Waits until so many copies of a direction (Device::StartCopy()) are done.
absl::Status WaitForCopies(rdma::Device* device, rdma::Device::Direction direction,
                           uint64_t number);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_STREAM_H_
