// Devices (rdma/memory/device.h) for NVIDIA GPUs, through the machine's CUDA driver.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. All users of a GPU share one Device, which lives as long as its last user.
//  2. A mark keeps its device alive.
//  3. No call changes the CUDA context that is current on the caller's thread.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "rdma/memory/device.h"

namespace verbena::rdma {

namespace cuda {
class CudaContext;
}  // namespace cuda

// The GPU with CUDA number `ordinal`, from 0, among those that this process sees
// (CUDA_VISIBLE_DEVICES). The first call takes long, because the driver makes its context.
// UNAVAILABLE: no driver (rdma/memory/cuda/driver.h), or the GPU cannot be used. INVALID_ARGUMENT:
// the GPU does not exist.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(int ordinal);

// Number of GPUs that this process sees, at least 1. UNAVAILABLE: no driver, or no GPU.
absl::StatusOr<int> CudaDeviceCount();

// The context of a CUDA device, for launching kernels. The device owns it. Null: not a CUDA device.
cuda::CudaContext* ContextOf(Device* device);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_
