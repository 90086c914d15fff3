// Finding the CUDA driver of this machine, if it has one.
//
// The environment variable VERBENA_CUDA_DRIVER names the library to load instead of libcuda.so.1:
// one in an unusual place, or the tests' imitation.
//
// **Thread safety**: thread-safe.
//
// Invariants:
//  1. A driver that was loaded stays loaded until the process ends: it has threads of its own.
#ifndef VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_
#define VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_

#include <string>

#include "absl/status/statusor.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::rdma::cuda {

// The driver, initialised; the same answer for the whole process, be it an error. Never null.
// UNAVAILABLE says what is missing (library, symbol, GPU) and what to do about it.
absl::StatusOr<const DriverApi*> LoadDriver();

// The same of the library at `path`, each time anew.
absl::StatusOr<DriverApi> LoadDriverFrom(const std::string& path);

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_RDMA_MEMORY_CUDA_DRIVER_H_
