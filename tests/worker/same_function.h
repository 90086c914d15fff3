// Whether a function that we declare is one that a header of CUDA's declares: parameters and result
// are passed the same way. Its enumerations are ints to us, its handles pointers to types of ours.
//
// **Thread safety**: compile time only.
#ifndef VERBENA_TESTS_WORKER_SAME_FUNCTION_H_
#define VERBENA_TESTS_WORKER_SAME_FUNCTION_H_

#include <type_traits>

namespace verbena::worker {

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

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_SAME_FUNCTION_H_
