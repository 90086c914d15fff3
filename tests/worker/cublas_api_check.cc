// That our declarations of cuBLAS (worker/cuda/cublas.h) are those of cublas_v2.h: compiling is the
// test.
#include <cublas_v2.h>

#include "tests/support/same_function.h"
#include "worker/cuda/cublas.h"

namespace verbena::worker {
namespace {

using test::SameFunction;

// cublas_v2.h names the functions of its interface without their suffix.
static_assert(SameFunction<decltype(CublasApi::cublasCreate_v2), decltype(&cublasCreate)>::value);
static_assert(SameFunction<decltype(CublasApi::cublasDestroy_v2), decltype(&cublasDestroy)>::value);
static_assert(
    SameFunction<decltype(CublasApi::cublasSetStream_v2), decltype(&cublasSetStream)>::value);
static_assert(SameFunction<decltype(CublasApi::cublasGetStatusString),
                           decltype(&cublasGetStatusString)>::value);
static_assert(SameFunction<decltype(CublasApi::cublasSgemm_v2), decltype(&cublasSgemm)>::value);
static_assert(kCublasSuccess == CUBLAS_STATUS_SUCCESS);
static_assert(kCublasNormal == CUBLAS_OP_N);
static_assert(kCublasTransposed == CUBLAS_OP_T);

}  // namespace
}  // namespace verbena::worker
