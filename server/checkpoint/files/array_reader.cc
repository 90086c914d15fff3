#include "server/checkpoint/files/array_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"

namespace verbena::checkpoint {

absl::StatusOr<ArrayReader> ArrayReader::Open(const CheckpointReader& checkpoint,
                                              const std::string& table, const std::string& array) {
  ArrayReader reader;
  reader.what_ = absl::StrCat(checkpoint.path(), ": table ", Quoted(table), ": array ", array);
  const v1::CheckpointTable* found = checkpoint.FindTable(table);
  const size_t link = checkpoint.links() - 1;
  for (const TensorPlace& part : checkpoint.index(link).Find(table, array)) {
    auto file = checkpoint.OpenFile(link, *part.file);
    if (!file.ok()) return file.status();
    reader.files_.push_back(*std::move(file));
    absl::StatusOr<TensorCursor> cursor = TensorCursor::Open(*reader.files_.back(), *part.tensor);
    if (!cursor.ok()) return cursor.status();
    const size_t number = reader.cursors_.size();
    reader.cursors_.push_back(*std::move(cursor));
    reader.type_ = *ParseType(part.tensor->dtype());
    uint64_t at = 0;
    for (const v1::CheckpointTensor::Range& range : part.tensor->ranges()) {
      reader.pieces_.push_back({range.first(), range.count(), number, at});
      at += range.count();
    }
    if (!part.tensor->ranges().empty()) continue;
    const uint64_t all = *ElementsOf(part.tensor->shape(), BytesOf(reader.type_));
    reader.pieces_.push_back({0, all, number, 0});
  }
  if (reader.pieces_.empty() || found == nullptr || found->spec().dim() > 0) {
    return absl::NotFoundError(absl::StrCat(reader.what_, " is none of a dense table there"));
  }
  std::sort(reader.pieces_.begin(), reader.pieces_.end(),
            [](const Piece& a, const Piece& b) { return a.first < b.first; });
  reader.elements_ = reader.pieces_.back().first + reader.pieces_.back().count;
  return reader;
}

absl::Status ArrayReader::Read(uint64_t first, absl::Span<std::byte> to) {
  const size_t element = BytesOf(type_);
  if (to.size() % element != 0 || first > elements_ || to.size() / element > elements_ - first) {
    return absl::OutOfRangeError(absl::StrCat(what_, " has ", elements_, " elements, and ",
                                              to.size(), " bytes from element ", first,
                                              " on are wanted"));
  }
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), first,
                                [](uint64_t at, const Piece& p) { return at < p.first; });
  // The manifest was checked: pieces begin at element 0 and have no holes.
  for (--piece; !to.empty(); ++piece) {
    const uint64_t inside = first - piece->first;
    const uint64_t count = std::min<uint64_t>(piece->count - inside, to.size() / element);
    const absl::Status status =
        cursors_[piece->tensor].ReadAt((piece->at + inside) * element, to.first(count * element));
    if (!status.ok()) return status;
    to.remove_prefix(count * element);
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace verbena::checkpoint
