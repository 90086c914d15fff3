// Access by other devices to GPU memory (GPUDirect RDMA): the driver's support, export as a
// dma-buf, and the ordering of peers' writes.
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

// The contracts are those of the methods of Device.
Device::PeerAccess PeerAccessOf(CudaContext* context);
absl::StatusOr<Device::DmaBuf> ExportDmaBuf(CudaContext* context, const std::byte* data,
                                            size_t bytes);
absl::Status FlushPeerWrites(CudaContext* context);

// Whether this GPU needs a flush, because it does not order peers' writes itself.
bool NeedsFlush(CudaContext* context);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_PEER_H_
