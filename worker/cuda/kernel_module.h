// The GPU kernels of this program (kernel_image.h), loaded into one GPU's primary context.
//
// **Thread safety**: thread-safe. A launch only enqueues; Load() is for set-up and waits for the
// GPU.
//
// Invariants:
//  1. No call leaves a CUDA context current on the caller's thread that was not before.
#ifndef VERBENA_WORKER_CUDA_KERNEL_MODULE_H_
#define VERBENA_WORKER_CUDA_KERNEL_MODULE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/device.h"

namespace verbena::worker {

class KernelModule {
 public:
  // UNIMPLEMENTED: this program was built without the kernels, or `device` is not a CUDA device.
  // FAILED_PRECONDITION: there is no code for this GPU, or the driver is too old for it.
  static absl::StatusOr<std::unique_ptr<KernelModule>> Load(std::shared_ptr<rdma::Device> device);
  ~KernelModule();
  KernelModule(const KernelModule&) = delete;
  KernelModule& operator=(const KernelModule&) = delete;

  const std::shared_ptr<rdma::Device>& device() const { return device_; }
  rdma::cuda::CudaContext* context() const { return context_; }
  uint32_t multiprocessors() const { return multiprocessors_; }

  // So many blocks of kThreadsPerBlock threads; none does nothing. `parameters` are addresses of
  // the kernel's, copied before it returns. INVALID_ARGUMENT: a stream that is gone. UNAVAILABLE:
  // the device is lost.
  absl::Status Launch(const char* name, uint32_t blocks, uintptr_t stream, void** parameters) const;

 private:
  KernelModule(std::shared_ptr<rdma::Device> device, rdma::cuda::CudaContext* context)
      : device_(std::move(device)), context_(context) {}
  absl::Status Start();

  const std::shared_ptr<rdma::Device> device_;
  rdma::cuda::CudaContext* const context_;  // the device's
  rdma::cuda::Module module_ = nullptr;
  std::vector<rdma::cuda::Function> functions_;  // of kKernelNames
  uint32_t multiprocessors_ = 1;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_KERNEL_MODULE_H_
