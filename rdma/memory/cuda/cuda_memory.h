// Memory of a GPU, and host memory that is page-locked for it: getting it, giving it back, and
// finding out what an address is.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"

namespace verbena::rdma::cuda {

// As the methods of Device of these names.
absl::StatusOr<std::byte*> AllocateMemory(CudaContext* context, size_t bytes);
void FreeMemory(CudaContext* context, std::byte* data);
absl::Status CheckMemory(CudaContext* context, const std::byte* data, size_t bytes);
absl::Status PinMemory(CudaContext* context, std::byte* data, size_t bytes);
void UnpinMemory(CudaContext* context, std::byte* data);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_MEMORY_H_
