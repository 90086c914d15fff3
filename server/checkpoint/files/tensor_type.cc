#include "server/checkpoint/files/tensor_type.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "verbena/half.h"

namespace verbena::checkpoint {
namespace {

struct TypeText {
  const char* name;
  uint8_t bytes;
};
// In the order of TensorType.
constexpr TypeText kTypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1},
                               {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},
                               {"U32", 4},  {"F32", 4}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
static_assert(std::size(kTypes) == static_cast<size_t>(TensorType::kU64) + 1);

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Exact except for integers of 64 bits, which are rounded to nearest.
double Read(TensorType type, const std::byte* from) {
  switch (type) {
    case TensorType::kF64:
      return Load<double>(from);
    case TensorType::kF32:
      return Load<float>(from);
    case TensorType::kF16:
      return FloatFromHalf(Load<uint16_t>(from));
    case TensorType::kBF16:
      return FloatFromBFloat16(Load<uint16_t>(from));
    case TensorType::kI64:
      return static_cast<double>(Load<int64_t>(from));
    case TensorType::kU64:
      return static_cast<double>(Load<uint64_t>(from));
    case TensorType::kI32:
      return Load<int32_t>(from);
    case TensorType::kU32:
      return Load<uint32_t>(from);
    case TensorType::kI16:
      return Load<int16_t>(from);
    case TensorType::kU16:
      return Load<uint16_t>(from);
    case TensorType::kI8:
      return Load<int8_t>(from);
    case TensorType::kBool:
    case TensorType::kU8:
      return Load<uint8_t>(from);
    case TensorType::kF8E5M2:
    case TensorType::kF8E4M3:
      break;  // CanConvert()
  }
  return 0;
}

template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(T));
}

// By way of f32 a double would be rounded twice: the first time to odd, which makes the second one
// right (Boldo and Melquiond 2008).
float RoundToOdd(double value) {
  const auto nearest = static_cast<float>(value);
  if (!(static_cast<double>(nearest) != value) || nearest - nearest != 0) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  // The neighbour towards zero, then the last bit set.
  if ((value > 0) == (static_cast<double>(nearest) > value)) --bits;
  return std::bit_cast<float>(bits | 1);
}

void Write(TensorType type, double value, std::byte* to) {
  switch (type) {
    case TensorType::kF64:
      return Store(value, to);
    case TensorType::kF32:
      return Store(static_cast<float>(value), to);
    case TensorType::kF16:
      return Store(HalfFromFloat(RoundToOdd(value)), to);
    case TensorType::kBF16:
      return Store(BFloat16FromFloat(RoundToOdd(value)), to);
    default:
      break;  // CanConvert()
  }
}

bool IsFloat(TensorType type) {
  return type == TensorType::kF64 || type == TensorType::kF32 || type == TensorType::kF16 ||
         type == TensorType::kBF16;
}

}  // namespace

const char* TypeName(TensorType type) { return kTypes[static_cast<size_t>(type)].name; }

std::optional<TensorType> ParseType(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (name == kTypes[i].name) return static_cast<TensorType>(i);
  }
  return std::nullopt;
}

std::string TypeNames() {
  std::string names;
  for (const TypeText& type : kTypes) absl::StrAppend(&names, names.empty() ? "" : ", ", type.name);
  return names;
}

size_t BytesOf(TensorType type) { return kTypes[static_cast<size_t>(type)].bytes; }

TensorType TypeOf(v1::DType dtype) {
  return dtype == v1::DTYPE_BF16  ? TensorType::kBF16
         : dtype == v1::DTYPE_F16 ? TensorType::kF16
                                  : TensorType::kF32;
}

bool CanConvert(TensorType from, TensorType to) {
  const bool eight = from == TensorType::kF8E4M3 || from == TensorType::kF8E5M2;
  return from == to || (IsFloat(to) && !eight);
}

void ConvertNumbers(TensorType from, absl::Span<const std::byte> in, TensorType to,
                    absl::Span<std::byte> out) {
  if (from == to) {
    if (!in.empty()) std::memcpy(out.data(), in.data(), std::min(in.size(), out.size()));
    return;
  }
  const size_t from_bytes = BytesOf(from);
  const size_t to_bytes = BytesOf(to);
  const size_t n = std::min(in.size() / from_bytes, out.size() / to_bytes);
  for (size_t i = 0; i < n; ++i) {
    Write(to, Read(from, in.data() + i * from_bytes), out.data() + i * to_bytes);
  }
}

std::optional<TooLarge> FindTooLarge(TensorType from, absl::Span<const std::byte> in, TensorType to,
                                     absl::Span<const std::byte> out) {
  const bool wide = to == TensorType::kF32 && from != TensorType::kF64;
  if (from == to || wide || to == TensorType::kF64 || !IsFloat(to)) return std::nullopt;
  const size_t n = std::min(in.size() / BytesOf(from), out.size() / BytesOf(to));
  for (size_t i = 0; i < n; ++i) {
    if (!std::isinf(Read(to, out.data() + i * BytesOf(to)))) continue;
    const double number = Read(from, in.data() + i * BytesOf(from));
    if (!std::isinf(number)) return TooLarge{i, number};
  }
  return std::nullopt;
}

std::optional<uint64_t> ElementsOf(absl::Span<const uint64_t> shape, size_t element_bytes) {
  // A dimension of zero makes the others' product irrelevant, but it must not overflow before.
  for (const uint64_t d : shape) {
    if (d == 0) return 0;
  }
  uint64_t elements = 1;
  for (const uint64_t d : shape) {
    if (__builtin_mul_overflow(elements, d, &elements)) return std::nullopt;
  }
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes) || bytes > INT64_MAX) {
    return std::nullopt;
  }
  return elements;
}

}  // namespace verbena::checkpoint
