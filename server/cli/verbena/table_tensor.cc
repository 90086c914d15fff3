#include "server/cli/verbena/table_tensor.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using checkpoint::TensorInfo;
using checkpoint::TensorType;

constexpr size_t kNamesShown = 8;
constexpr uint64_t kElementsOfPiece = 1 << 18;

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// `option`: names a tensor.
absl::StatusOr<TensorInfo> Find(const checkpoint::SafetensorsReader& file, const std::string& name,
                                const char* option) {
  const TensorInfo* const found = file.Find(name);
  if (found != nullptr) {
    if (absl::Status s = checkpoint::CheckKnownType(file.path(), *found); !s.ok()) return s;
    return *found;
  }
  std::vector<std::string> names;
  for (const TensorInfo& tensor : file.header().tensors) {
    if (names.size() == kNamesShown) break;
    names.push_back(absl::StrCat("'", Printable(tensor.name), "'"));
  }
  const size_t more = file.header().tensors.size() - names.size();
  return absl::NotFoundError(absl::StrCat(Printable(file.path()), ": there is no tensor '",
                                          Printable(name), "'; it has ", absl::StrJoin(names, ", "),
                                          more > 0 ? absl::StrCat(" and ", more, " more") : "",
                                          "; choose one with ", option));
}

}  // namespace

absl::StatusOr<TableTensor> TableTensor::Open(checkpoint::Disk* disk, const std::string& path,
                                              const std::string& name, const v1::TableSpec& spec) {
  auto file = checkpoint::SafetensorsReader::Open(disk, path, checkpoint::UnknownTypes::kKeep);
  if (!file.ok()) return file.status();
  const absl::StatusOr<TensorInfo> found = Find(*file, name, "--tensor");
  if (!found.ok()) return found.status();
  TableTensor tensor(*std::move(file), *found);
  const std::string place = absl::StrCat(Printable(path), ": tensor '", Printable(name), "' ");
  const bool rows = spec.dim() > 0;
  const std::vector<uint64_t>& shape = found->shape;
  const bool fits =
      rows ? shape.size() == 2 && shape[1] == spec.dim()
           : std::equal(shape.begin(), shape.end(), spec.shape().begin(), spec.shape().end());
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        place, "has the shape ", ShapeText(shape), "; table '", Printable(spec.name()), "' needs ",
        rows ? absl::StrCat("[rows, ", spec.dim(), "]")
             : ShapeText(std::vector<uint64_t>(spec.shape().begin(), spec.shape().end()))));
  }
  tensor.to_ = rows ? TensorType::kF32 : checkpoint::TypeOf(spec.dtype());
  if (!checkpoint::CanConvert(found->type, tensor.to_)) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, "has the type ", checkpoint::TypeName(found->type), ", which table '",
                     Printable(spec.name()), "' of ", checkpoint::TypeName(tensor.to_),
                     " cannot take; allowed: F32, F16, BF16, F64 and integers"));
  }
  tensor.rows_ = rows ? shape[0] : 0;
  tensor.elements_ = found->bytes() / checkpoint::BytesOf(found->type);
  return tensor;
}

absl::Status TableTensor::Read(uint64_t first, absl::Span<std::byte> to) const {
  const size_t from_bytes = checkpoint::BytesOf(tensor_.type);
  const size_t to_bytes = checkpoint::BytesOf(to_);
  const uint64_t end = first + std::min<uint64_t>(to.size() / to_bytes, elements_ - first);
  std::vector<std::byte> piece;
  while (first < end) {
    const uint64_t count = std::min(kElementsOfPiece, end - first);
    const absl::Span<std::byte> out = to.first(count * to_bytes);
    to.remove_prefix(out.size());
    piece.resize(count * from_bytes);
    if (absl::Status s = file_.Read(tensor_, first * from_bytes, absl::MakeSpan(piece)); !s.ok()) {
      return s;
    }
    checkpoint::ConvertNumbers(tensor_.type, piece, to_, out);
    if (const auto large = checkpoint::FindTooLarge(tensor_.type, piece, to_, out)) {
      return absl::InvalidArgumentError(absl::StrCat(
          Printable(file_.path()), ": tensor '", Printable(tensor_.name), "': element ",
          first + large->index, " is ", large->number, ", too large for the table's ",
          checkpoint::TypeName(to_), "; use a table of f32"));
    }
    first += count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> TableTensor::ReadKeys(const std::string& name) const {
  std::vector<uint64_t> keys(rows_);
  std::iota(keys.begin(), keys.end(), 0);
  if (name.empty()) return keys;
  const absl::StatusOr<TensorInfo> found = Find(file_, name, "--keys");
  if (!found.ok()) return found.status();
  const bool integers = found->type == TensorType::kI64 || found->type == TensorType::kU64;
  if (!integers || found->bytes() != rows_ * sizeof(uint64_t)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Printable(file_.path()), ": tensor '", Printable(name), "' is ",
        checkpoint::TypeName(found->type), " ", ShapeText(found->shape),
        "; the keys need type I64 or U64 and the shape [", rows_, "], one for each row"));
  }
  const absl::Span<std::byte> to(reinterpret_cast<std::byte*>(keys.data()),
                                 keys.size() * sizeof(uint64_t));
  if (absl::Status s = file_.Read(*found, 0, to); !s.ok()) return s;
  return keys;
}

}  // namespace verbena::cli
