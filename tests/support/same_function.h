// Whether a function that we declare is one that a header of CUDA's declares: parameters and result
// are passed the same way. Its enumerations are ints to us, its handles pointers to types of ours.
//
// **Thread safety**: compile time only.
#ifndef VERBENA_TESTS_SUPPORT_SAME_FUNCTION_H_
#define VERBENA_TESTS_SUPPORT_SAME_FUNCTION_H_

#include <cstddef>
#include <type_traits>

namespace verbena::test {

template <typename T>
constexpr size_t SizeBehind() {
  if constexpr (std::is_void_v<T> || std::is_function_v<T>) {
    return 0;
  } else if constexpr (requires { sizeof(T); }) {
    return sizeof(T);
  } else {
    return 0;  // a handle's object
  }
}

// Passed the same way, and, of a pointer, to something of the same size.
template <typename Ours, typename Theirs>
constexpr bool Agree() {
  if (sizeof(Ours) != sizeof(Theirs)) return false;
  if (std::is_pointer_v<Ours> != std::is_pointer_v<Theirs>) return false;
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using Behind = std::remove_pointer_t<Ours>;
    using BehindTheirs = std::remove_pointer_t<Theirs>;
    return std::is_const_v<Behind> == std::is_const_v<BehindTheirs> &&
           std::is_pointer_v<Behind> == std::is_pointer_v<BehindTheirs> &&
           SizeBehind<Behind>() == SizeBehind<BehindTheirs>();
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

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_SAME_FUNCTION_H_
