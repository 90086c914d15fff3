// Access by other devices to memory of a GPU (GPUDirect RDMA): what the driver allows, memory as a
// dma-buf, and the order in which what they wrote is seen.
//
// Source: NVIDIA, "Developing a Linux Kernel Module using GPUDirect RDMA", and "CUDA Driver API",
// cuMemGetHandleForAddressRange and cuFlushGPUDirectRDMAWrites.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_PEER_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_PEER_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/device.h"

namespace verbena::rdma::cuda {

// As the methods of Device.
Device::PeerAccess PeerAccessOf(CudaContext* context);
absl::StatusOr<Device::DmaBuf> ExportDmaBuf(CudaContext* context, const std::byte* data,
                                            size_t bytes);
absl::Status FlushPeerWrites(CudaContext* context);

// Whether this GPU does not see what others wrote in order by itself.
bool NeedsFlush(CudaContext* context);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_PEER_H_
