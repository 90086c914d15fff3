#include "server/checkpoint/files/npy.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::checkpoint {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMagicBytes = 10;  // with the version and the header's length

const char* Description(TensorType type) {
  switch (type) {
    case TensorType::kBool:
      return "|b1";
    case TensorType::kU8:
      return "|u1";
    case TensorType::kI8:
      return "|i1";
    case TensorType::kI16:
      return "<i2";
    case TensorType::kU16:
      return "<u2";
    case TensorType::kF16:
      return "<f2";
    case TensorType::kI32:
      return "<i4";
    case TensorType::kU32:
      return "<u4";
    case TensorType::kF32:
      return "<f4";
    case TensorType::kF64:
      return "<f8";
    case TensorType::kI64:
      return "<i8";
    case TensorType::kU64:
      return "<u8";
    case TensorType::kBF16:
    case TensorType::kF8E5M2:
    case TensorType::kF8E4M3:
      break;
  }
  return nullptr;
}

}  // namespace

std::string NpyHeader(TensorType type, absl::Span<const uint64_t> shape) {
  const char* description = Description(type);
  if (description == nullptr) return "";
  // A tuple: of one element it ends with a comma.
  std::string text =
      absl::StrCat("{'descr': '", description, "', 'fortran_order': False, 'shape': (",
                   absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  const size_t whole = kMagicBytes + text.size() + 1;
  text.append((kAlignment - whole % kAlignment) % kAlignment, ' ');
  text.push_back('\n');
  std::string header("\x93NUMPY\x01\x00", 8);
  header.push_back(static_cast<char>(text.size() & 0xff));
  header.push_back(static_cast<char>(text.size() >> 8));
  return header + text;
}

}  // namespace verbena::checkpoint
