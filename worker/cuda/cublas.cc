#include "worker/cuda/cublas.h"

#include "absl/strings/str_cat.h"
#include "worker/cuda/library.h"

namespace verbena::worker {
namespace {

using rdma::cuda::CudaContext;

absl::StatusOr<CublasApi> LoadBlas() {
  const absl::StatusOr<void*> library =
      OpenCudaLibrary("cuBLAS", "VERBENA_CUBLAS", {"libcublas.so.13", "libcublas.so.12"});
  if (!library.ok()) return library.status();
  CublasApi api;
  const char* missing = nullptr;
#define VERBENA_CUBLAS_RESOLVE(name, result, parameters) \
  FindFunction(*library, #name, &api.name, &missing);
  VERBENA_CUBLAS_FUNCTIONS(VERBENA_CUBLAS_RESOLVE)
#undef VERBENA_CUBLAS_RESOLVE
  if (missing == nullptr) return api;
  return absl::UnavailableError(
      absl::StrCat("cuBLAS lacks ", missing, ": it is too old, or none; CUDA 12 or 13 is needed"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Cublas>> Cublas::Open(CudaContext* context,
                                                     rdma::cuda::Stream stream) {
  const absl::StatusOr<CublasApi> api = LoadBlas();
  if (!api.ok()) return api.status();
  std::unique_ptr<Cublas> blas(new Cublas(*api, context));
  const CudaContext::Scope scope(context);
  if (!scope.status().ok()) return scope.status();
  int status = api->cublasCreate_v2(&blas->handle_);
  if (status != kCublasSuccess) {
    blas->handle_ = nullptr;
    return blas->Error(status, "cublasCreate");
  }
  status = api->cublasSetStream_v2(blas->handle_, stream);
  if (status != kCublasSuccess) return blas->Error(status, "cublasSetStream");
  return blas;
}

Cublas::~Cublas() {
  if (handle_ == nullptr) return;
  const CudaContext::Scope scope(context_, CudaContext::Scope::When::kAlways);
  (void)api_.cublasDestroy_v2(handle_);
}

absl::Status Cublas::Error(int status, const char* call) const {
  const char* text = api_.cublasGetStatusString(status);
  return absl::UnavailableError(absl::StrCat(context_->name(), ": ", call, ": ",
                                             text == nullptr ? "an unknown error" : text, " (",
                                             status, ")"));
}

// cuBLAS is column-major, so it reads our matrices as their transposes. It computes the transpose
// of c, which is that of b times that of a.
absl::Status Cublas::Multiply(const Matrix& a, const Matrix& b, bool add, float* c) {
  const auto rows = static_cast<int>(a.transposed ? a.columns : a.rows);
  const auto inner = static_cast<int>(a.transposed ? a.rows : a.columns);
  const auto columns = static_cast<int>(b.transposed ? b.rows : b.columns);
  if (inner != static_cast<int>(b.transposed ? b.columns : b.rows)) {
    return absl::InternalError("a matrix product of sizes that do not fit");
  }
  const CudaContext::Scope scope(context_);
  if (!scope.status().ok()) return scope.status();
  const float one = 1;
  const float beta = add ? 1 : 0;
  const int status = api_.cublasSgemm_v2(handle_, b.transposed ? kCublasTransposed : kCublasNormal,
                                         a.transposed ? kCublasTransposed : kCublasNormal, columns,
                                         rows, inner, &one, b.data, static_cast<int>(b.columns),
                                         a.data, static_cast<int>(a.columns), &beta, c, columns);
  return status == kCublasSuccess ? absl::OkStatus() : Error(status, "cublasSgemm");
}

}  // namespace verbena::worker
