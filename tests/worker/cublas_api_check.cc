// That our declarations of cuBLAS (worker/cuda/cublas.h) are those of cublas_v2.h: compiling is the
// test.
#include <cublas_v2.h>

#include <type_traits>

#include "worker/cuda/cublas.h"

namespace verbena::worker {
namespace {

// Passed the same way.
template <typename Ours, typename Theirs>
constexpr bool Agree() {
  if (sizeof(Ours) != sizeof(Theirs)) return false;
  if (std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return std::is_const_v<std::remove_pointer_t<Ours>> ==
           std::is_const_v<std::remove_pointer_t<Theirs>>;
  } else {
    return std::is_integral_v<Ours> && (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);
  }
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename OursResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) ==
         sizeof...(Theirs)) struct SameFunction<OursResult (*)(Ours...), TheirResult (*)(Theirs...)>
    : std::bool_constant<Agree<OursResult, TheirResult>() && (Agree<Ours, Theirs>() && ...)> {
};

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
