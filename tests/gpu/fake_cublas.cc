// An imitation of cuBLAS (libfake_cublas.so), for the imitated driver: the calls of
// worker/cuda/cublas.h, in the stream and with the memory of imitated GPUs.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/gpu/fake_memory.h"
#include "tests/rdma/fake_cuda/fake_cuda.h"
#include "worker/cuda/cublas.h"

namespace verbena::worker {

struct CublasHandle {
  uintptr_t stream = 0;
};

namespace {

constexpr int kInvalidValue = 7;  // CUBLAS_STATUS_INVALID_VALUE

struct Product {
  bool transpose_a, transpose_b;
  size_t m, n, k;
  const float* a;
  size_t lda;
  const float* b;
  size_t ldb;
  float beta;
  float* c;
  size_t ldc;
};

// Columns first: element (row, column) is at column * ld + row.
void Multiply(void* argument) {
  const auto* const x = static_cast<const Product*>(argument);
  std::vector<float> a, b, c;
  if (!Read(x->a, x->lda * (x->transpose_a ? x->m : x->k), &a) ||
      !Read(x->b, x->ldb * (x->transpose_b ? x->k : x->n), &b) || !Read(x->c, x->ldc * x->n, &c)) {
    return;
  }
  for (size_t column = 0; column < x->n; ++column) {
    for (size_t row = 0; row < x->m; ++row) {
      double sum = 0;
      for (size_t i = 0; i < x->k; ++i) {
        const float left = x->transpose_a ? a[row * x->lda + i] : a[i * x->lda + row];
        const float right = x->transpose_b ? b[i * x->ldb + column] : b[column * x->ldb + i];
        sum += double{left} * right;
      }
      float& out = c[column * x->ldc + row];
      out = static_cast<float>(x->beta == 0 ? sum : sum + double{x->beta} * out);
    }
  }
  Write(x->c, c);
}

}  // namespace
}  // namespace verbena::worker

using verbena::worker::CublasHandle;

extern "C" {

__attribute__((visibility("default"))) int cublasCreate_v2(CublasHandle** handle) {
  *handle = new CublasHandle;
  return 0;
}

__attribute__((visibility("default"))) int cublasDestroy_v2(CublasHandle* handle) {
  delete handle;
  return 0;
}

__attribute__((visibility("default"))) int cublasSetStream_v2(CublasHandle* handle, void* stream) {
  handle->stream = reinterpret_cast<uintptr_t>(stream);
  return 0;
}

__attribute__((visibility("default"))) const char* cublasGetStatusString(int status) {
  return status == 0 ? "success" : "an unsupported value or parameter was passed to the function";
}

__attribute__((visibility("default"))) int cublasSgemm_v2(CublasHandle* handle, int transpose_a,
                                                          int transpose_b, int m, int n, int k,
                                                          const float* alpha, const float* a,
                                                          int lda, const float* b, int ldb,
                                                          const float* beta, float* c, int ldc) {
  using verbena::worker::Product;
  const bool fits = m > 0 && n > 0 && k > 0 && lda >= (transpose_a != 0 ? k : m) &&
                    ldb >= (transpose_b != 0 ? n : k) && ldc >= m && *alpha == 1;
  if (!fits) return verbena::worker::kInvalidValue;
  const auto size = [](int value) { return static_cast<size_t>(value); };
  auto* const product = new Product{transpose_a != 0,
                                    transpose_b != 0,
                                    size(m),
                                    size(n),
                                    size(k),
                                    a,
                                    size(lda),
                                    b,
                                    size(ldb),
                                    *beta,
                                    c,
                                    size(ldc)};
  const bool enqueued =
      verbena::rdma::fake_cuda_enqueue(handle->stream, verbena::worker::Multiply, product,
                                       [](void* it) { delete static_cast<Product*>(it); });
  return enqueued ? 0 : verbena::worker::kInvalidValue;
}

}  // extern "C"
