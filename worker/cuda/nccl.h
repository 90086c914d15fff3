// The used part of NCCL, which is loaded at run time: one build runs with and without it.
//
// The environment variable VERBENA_NCCL names the library to load instead of libnccl.so.2, which is
// searched by the loader and in /usr/local/cuda: one elsewhere, or the tests' imitation.
//
// **Thread safety**: plain data. A communicator is for one thread at a time.
#ifndef VERBENA_WORKER_CUDA_NCCL_H_
#define VERBENA_WORKER_CUDA_NCCL_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "rdma/memory/cuda/driver_api.h"

namespace verbena::worker {

// Declared here ("NCCL User Guide"; nccl.h of NCCL 2, with which tests/worker/nccl_api_check.cc
// compares). NCCL's enumerations are int here.
struct NcclComm;  // ncclComm
// clang-format off
#define VERBENA_NCCL_FUNCTIONS(X)                                                                  \
  X(ncclCommInitAll, int, (NcclComm** comms, int count, const int* devices))                       \
  X(ncclCommDestroy, int, (NcclComm* comm))                                                        \
  X(ncclCommAbort, int, (NcclComm* comm))                                                          \
  X(ncclCommGetAsyncError, int, (NcclComm* comm, int* error))                                      \
  X(ncclGetErrorString, const char*, (int error))                                                  \
  X(ncclGetLastError, const char*, (NcclComm* comm))                                               \
  X(ncclGroupStart, int, ())                                                                       \
  X(ncclGroupEnd, int, ())                                                                         \
  X(ncclReduce, int, (const void* from, void* to, size_t count, int type, int operation, int root, \
                      NcclComm* comm, rdma::cuda::Stream stream))                                  \
  X(ncclBroadcast, int, (const void* from, void* to, size_t count, int type, int root,             \
                         NcclComm* comm, rdma::cuda::Stream stream))
// clang-format on
struct NcclApi {
#define VERBENA_NCCL_POINTER(name, result, parameters) result(*name) parameters = nullptr;
  VERBENA_NCCL_FUNCTIONS(VERBENA_NCCL_POINTER)
#undef VERBENA_NCCL_POINTER
};
inline constexpr int kNcclSuccess = 0;     // ncclSuccess
inline constexpr int kNcclInProgress = 7;  // ncclInProgress
inline constexpr int kNcclFloat = 7;       // ncclFloat32
inline constexpr int kNcclSum = 0;         // ncclSum

// UNAVAILABLE: there is none (the text lists the searched names), or a function is missing.
absl::StatusOr<NcclApi> LoadNccl();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_NCCL_H_
