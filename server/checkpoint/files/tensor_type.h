// The types of numbers that safetensors files hold: names, sizes, conversion.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. ConvertNumbers() to the same type copies bits. To fewer bits it rounds to nearest, ties to
//     even, like client/include/verbena/half.h.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_TYPE_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "verbena/v1/table.pb.h"

namespace verbena::checkpoint {

enum class TensorType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kF64,
  kI64,
  kU64,
};

// The name in safetensors: "F32".
const char* TypeName(TensorType type);
std::optional<TensorType> ParseType(std::string_view name);
// All names, for messages.
std::string TypeNames();
size_t BytesOf(TensorType type);
TensorType TypeOf(v1::DType dtype);

// Whether there is a conversion: among floating-point types of 16 bits and more, from integers to
// these, and from every type to itself.
bool CanConvert(TensorType from, TensorType to);
// `in` and `out` have the same count of numbers and do not overlap. CanConvert() holds.
void ConvertNumbers(TensorType from, absl::Span<const std::byte> in, TensorType to,
                    absl::Span<std::byte> out);

// The first finite number of `in` that is infinite in `out`, the result of ConvertNumbers(); none:
// there is no such number.
struct TooLarge {
  uint64_t index = 0;
  double number = 0;
};
std::optional<TooLarge> FindTooLarge(TensorType from, absl::Span<const std::byte> in, TensorType to,
                                     absl::Span<const std::byte> out);

// How many elements a shape has; none: more than 2^63 bytes of them.
std::optional<uint64_t> ElementsOf(absl::Span<const uint64_t> shape, size_t element_bytes);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_TYPE_H_
