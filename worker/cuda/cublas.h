// Matrix products on a GPU by cuBLAS, which is loaded at run time, like the driver: one build runs
// with and without it.
//
// The environment variable VERBENA_CUBLAS names the library to load instead of libcublas.so.13 or
// .12, which are searched by the loader and in /usr/local/cuda: one elsewhere, or the tests'
// imitation.
//
// **Thread safety**: one thread at a time. A product is only enqueued.
#ifndef VERBENA_WORKER_CUDA_CUBLAS_H_
#define VERBENA_WORKER_CUDA_CUBLAS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/memory/cuda/cuda_context.h"

namespace verbena::worker {

// The used part of cuBLAS, declared here ("cuBLAS Library User Guide"; cublas_api.h of CUDA 13,
// with which tests/worker/cublas_api_check.cc compares). cuBLAS's enumerations are int here.
struct CublasHandle;  // cublasContext
// clang-format off
#define VERBENA_CUBLAS_FUNCTIONS(X)                                                                \
  X(cublasCreate_v2, int, (CublasHandle** handle))                                                 \
  X(cublasDestroy_v2, int, (CublasHandle* handle))                                                 \
  X(cublasSetStream_v2, int, (CublasHandle* handle, rdma::cuda::Stream stream))                    \
  X(cublasGetStatusString, const char*, (int status))                                              \
  X(cublasSgemm_v2, int, (CublasHandle* handle, int transpose_a, int transpose_b, int m, int n,    \
                          int k, const float* alpha, const float* a, int lda, const float* b,      \
                          int ldb, const float* beta, float* c, int ldc))
// clang-format on
struct CublasApi {
#define VERBENA_CUBLAS_POINTER(name, result, parameters) result(*name) parameters = nullptr;
  VERBENA_CUBLAS_FUNCTIONS(VERBENA_CUBLAS_POINTER)
#undef VERBENA_CUBLAS_POINTER
};
inline constexpr int kCublasSuccess = 0;     // CUBLAS_STATUS_SUCCESS
inline constexpr int kCublasNormal = 0;      // CUBLAS_OP_N
inline constexpr int kCublasTransposed = 1;  // CUBLAS_OP_T

class Cublas {
 public:
  // On the GPU of `context`, which must outlive it; products are enqueued in `stream`. UNAVAILABLE:
  // there is no cuBLAS (the text lists the searched names), or it does not start.
  static absl::StatusOr<std::unique_ptr<Cublas>> Open(rdma::cuda::CudaContext* context,
                                                      rdma::cuda::Stream stream);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

  // A row-major matrix in memory of the GPU; `transposed`: stands for its transpose.
  struct Matrix {
    const float* data;
    uint32_t rows;
    uint32_t columns;
    bool transposed = false;
  };
  // c = a b, or c += a b; c is row-major, of as many rows as a (as meant) and columns as b.
  absl::Status Multiply(const Matrix& a, const Matrix& b, bool add, float* c);

 private:
  Cublas(const CublasApi& api, rdma::cuda::CudaContext* context) : api_(api), context_(context) {}
  absl::Status Error(int status, const char* call) const;

  const CublasApi api_;
  rdma::cuda::CudaContext* const context_;
  CublasHandle* handle_ = nullptr;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_CUBLAS_H_
