// Devices (rdma/memory/device.h) that are NVIDIA GPUs, driven through the CUDA driver of the
// machine.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. There is one Device for a GPU, which everybody gets, for as long as anybody has it.
//  2. A mark keeps its device.
//  3. No call leaves a CUDA context current on the caller's thread that was not before.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "rdma/memory/device.h"

namespace verbena::rdma {

namespace cuda {
class CudaContext;
}  // namespace cuda

// The GPU that CUDA counts as `ordinal`, from 0, of those that this process sees
// (CUDA_VISIBLE_DEVICES). Takes long the first time: the driver makes its context. UNAVAILABLE: no
// driver (rdma/memory/cuda/driver.h) or the GPU cannot be used; INVALID_ARGUMENT: there is no such.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(int ordinal);

// How many GPUs this process sees; 1 or more. UNAVAILABLE: no driver, or no GPU.
absl::StatusOr<int> CudaDeviceCount();

// The context of such a device, for who launches kernels in it; the device's own, and gone with it.
// Null: it is not a CUDA device.
cuda::CudaContext* ContextOf(Device* device);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_DEVICE_H_
