// GPU memory and host memory that is page-locked for a GPU: allocation, release, and the kind of an
// address.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"

namespace verbena::rdma::cuda {

// The contracts are those of the methods of Device with these names.
absl::StatusOr<std::byte*> AllocateMemory(CudaContext* context, size_t bytes);
void FreeMemory(CudaContext* context, std::byte* data);
absl::Status CheckMemory(CudaContext* context, const std::byte* data, size_t bytes);
absl::Status PinMemory(CudaContext* context, std::byte* data, size_t bytes);
void UnpinMemory(CudaContext* context, std::byte* data);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_
