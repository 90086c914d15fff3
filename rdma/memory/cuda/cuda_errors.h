// Maps the CUDA driver's error codes to statuses with the call, the error and the fix.
//
// **Thread safety**: functions without state.
#ifndef VERBENA_RDMA_MEMORY_CUDA_CUDA_ERRORS_H_
#define VERBENA_RDMA_MEMORY_CUDA_CUDA_ERRORS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {

// "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
std::string ErrorText(const DriverApi& api, Result code);

// Whether all later calls in this process fail too: the context is gone, and none of its copies
// touches memory any more.
bool IsSticky(Result code);

// "DEVICE: CALL: ERROR[; HINT]" with the matching code. `call` may have more than the name:
// "cuMemAlloc of 100 bytes". `code` is not kSuccess.
absl::Status DriverError(const DriverApi& api, Result code, std::string_view device,
                         std::string_view call);

// UNAVAILABLE "DEVICE is lost: ERROR, in CALL; ... restart this process".
absl::Status LostError(const DriverApi& api, Result code, std::string_view device,
                       std::string_view call);

// Hint for an operator about this error; empty: none.
std::string_view ErrorHint(Result code);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_CUDA_ERRORS_H_
