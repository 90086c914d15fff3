// Loads the CUDA driver of this machine, if it has one.
//
// The environment variable VERBENA_CUDA_DRIVER is the library to load instead of libcuda.so.1: one
// in an unusual place, or the tests' fake driver.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. A loaded driver stays loaded until the process ends, because it has its own threads.
#ifndef VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_
#define VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_

#include <string>

#include "absl/status/statusor.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {

// The initialized driver; every call in the process returns the same result, even an error. Never
// null. UNAVAILABLE: the message has the missing part (library, symbol, GPU) and the fix.
absl::StatusOr<const DriverApi*> LoadDriver();

// Loads the library at `path`, anew for each call.
absl::StatusOr<DriverApi> LoadDriverFrom(const std::string& path);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_
