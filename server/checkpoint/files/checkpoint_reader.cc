#include "server/checkpoint/files/checkpoint_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/manifest_check.h"
#include "server/checkpoint/files/tensor_file.h"

namespace verbena::checkpoint {
namespace {

constexpr size_t kMostLinks = 1000;
constexpr uint64_t kBatchBytes = uint64_t{4} << 20;  // of all columns together

using KeySet = absl::flat_hash_set<uint64_t>;

// Elements of the array that lie behind byte `at` of the tensor, and how many bytes of them are in
// one piece: by the tensor's ranges.
class Places {
 public:
  Places(const v1::CheckpointTensor& tensor, size_t element_bytes)
      : tensor_(tensor), element_bytes_(element_bytes) {}

  // Hands `bytes`, which follow those of the last call, on with their places.
  absl::Status Give(absl::Span<const std::byte> bytes, const CheckpointReader::TakeElements& take) {
    while (!bytes.empty()) {
      uint64_t first = element_;
      uint64_t count = bytes.size() / element_bytes_;
      if (tensor_.ranges_size() > 0) {
        // The checked manifest has as many elements in its ranges as in its shape.
        const v1::CheckpointTensor::Range& range = tensor_.ranges(range_);
        first = range.first() + element_;
        count = std::min(count, range.count() - element_);
      }
      const absl::Status status = take(first, bytes.first(count * element_bytes_));
      if (!status.ok()) return status;
      bytes.remove_prefix(count * element_bytes_);
      element_ += count;
      if (tensor_.ranges_size() > 0 && element_ == tensor_.ranges(range_).count()) {
        element_ = 0;
        ++range_;
      }
    }
    return absl::OkStatus();
  }

 private:
  const v1::CheckpointTensor& tensor_;
  const size_t element_bytes_;
  int range_ = 0;
  uint64_t element_ = 0;  // of the range, or of the array
};

// Passes on the rows of a batch of link `link` that count and whose keys are not in `seen`; of an
// increment (`link` > 0) those that were not dropped.
absl::Status GiveUnseen(const RowBatch& batch, const KeySet& seen, const RowFilter& filter,
                        size_t link, const CheckpointReader::TakeRows& take) {
  const absl::Span<const uint64_t> keys = batch.keys();
  const absl::Span<const uint32_t> applies = batch.applies();
  std::vector<std::vector<std::byte>> kept(batch.columns.size());
  RowBatch rest;
  for (uint64_t row = 0; row < batch.count; ++row) {
    const bool dropped = link > 0 && applies[row] == 0;
    if (dropped || seen.contains(keys[row]) || !filter.Counts(link, keys[row])) continue;
    ++rest.count;
    for (size_t c = 0; c < kept.size(); ++c) {
      const size_t bytes = batch.columns[c].size() / batch.count;
      const auto from = batch.columns[c].subspan(row * bytes, bytes);
      kept[c].insert(kept[c].end(), from.begin(), from.end());
    }
  }
  if (rest.count == batch.count) return take(batch);
  if (rest.count == 0) return absl::OkStatus();
  for (const std::vector<std::byte>& column : kept) rest.columns.emplace_back(column);
  return take(rest);
}

}  // namespace

RowFilter::RowFilter(uint32_t table, std::vector<size_t> first_links)
    : table_(table), first_links_(std::move(first_links)) {
  for (const size_t first : first_links_) newest_first_ = std::max(newest_first_, first);
}

bool RowFilter::Counts(size_t link, uint64_t key) const {
  if (!Drops(link)) return true;
  const auto partitions = static_cast<uint32_t>(first_links_.size());
  return link >= first_links_[PartitionOfKey(table_, key, partitions)];
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(Disk* disk, const std::string& path) {
  CheckpointReader reader(disk);
  std::string next = path;
  std::string wanted;
  while (true) {
    Listed listed = ReadListed(disk, next);
    if (!listed.manifest.ok()) {
      if (wanted.empty() || !absl::IsNotFound(listed.manifest.status())) {
        return listed.manifest.status();
      }
      return absl::DataLossError(absl::StrCat(reader.links_.back().path, " is based on ",
                                              listed.name, ", which is missing"));
    }
    if (!wanted.empty() && listed.checksum != wanted) {
      return absl::DataLossError(absl::StrCat(
          reader.links_.back().path, " is based on ", listed.name, " with the checksum ", wanted,
          ", and the one there has ", listed.checksum, ": it is another"));
    }
    const bool has_base = listed.manifest->has_base();
    const v1::CheckpointBase base = listed.manifest->base();
    reader.links_.push_back({next, *std::move(listed.manifest), listed.checksum, nullptr});
    if (!has_base) break;
    if (reader.links_.size() == kMostLinks) {
      return absl::DataLossError(
          absl::StrCat(path, " is based on more than ", kMostLinks, " others"));
    }
    next = Join(ParentOf(path), base.name());
    wanted = base.checksum();
  }
  std::reverse(reader.links_.begin(), reader.links_.end());
  for (Link& link : reader.links_) link.index = std::make_unique<ManifestIndex>(link.manifest);
  for (size_t i = 1; i < reader.links_.size(); ++i) {
    const absl::Status same = CheckBase(reader.links_[i].manifest, reader.links_[i - 1].manifest);
    if (same.ok()) continue;
    return absl::DataLossError(
        absl::StrCat(reader.links_[i].path, ": ", std::string(same.message())));
  }
  return reader;
}

const v1::CheckpointTable* CheckpointReader::FindTable(const std::string& name) const {
  return links_.back().index->FindTable(name);
}

absl::StatusOr<std::shared_ptr<const SafetensorsReader>> CheckpointReader::OpenFile(
    size_t link, const v1::CheckpointFile& file) const {
  return files_->Open(links_[link].path, file);
}

uint64_t CheckpointReader::bytes() const {
  uint64_t bytes = 0;
  for (const Link& link : links_) {
    for (const v1::CheckpointFile& file : link.manifest.files()) bytes += file.bytes();
  }
  return bytes;
}

absl::Status CheckpointReader::CheckSizes() const {
  for (const Link& link : links_) {
    for (const v1::CheckpointFile& entry : link.manifest.files()) {
      const std::string path = Join(link.path, entry.name());
      const absl::StatusOr<std::unique_ptr<ReadableFile>> file = disk_->Open(path);
      if (absl::IsNotFound(file.status())) {
        return absl::DataLossError(
            absl::StrCat(path, " is missing, although the manifest lists it"));
      }
      if (!file.ok()) return file.status();
      if ((*file)->size() == entry.bytes()) continue;
      return absl::DataLossError(absl::StrCat(path, " has ", (*file)->size(),
                                              " bytes, and in the manifest ", entry.bytes()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::VerifyFile(size_t number, const v1::CheckpointFile& file,
                                          const Progress& read) const {
  const Link& link = links_[number];
  if (file.tensors().empty()) {
    const absl::StatusOr<std::string> content = ReadPlainFile(disk_, link.path, file);
    if (!content.ok()) return content.status();
    if (file.name() == kIndexName && *content != IndexText(link.manifest)) {
      return absl::DataLossError(absl::StrCat(Join(link.path, file.name()),
                                              " names other tensors or files than the manifest"));
    }
    return read(file.bytes());
  }
  const absl::StatusOr<SafetensorsReader> tensors = OpenTensorFile(disk_, link.path, file);
  if (!tensors.ok()) return tensors.status();
  absl::Status status = read(tensors->head().size());
  for (const v1::CheckpointTensor& tensor : file.tensors()) {
    if (!status.ok()) return status;
    status = ReadChecked(*tensors, tensor, [&](uint64_t, absl::Span<const std::byte> bytes) {
      return read(bytes.size());
    });
  }
  return status;
}

absl::Status CheckpointReader::Verify(const Progress& read) const {
  for (size_t link = 0; link < links_.size(); ++link) {
    for (const v1::CheckpointFile& file : links_[link].manifest.files()) {
      if (absl::Status status = VerifyFile(link, file, read); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadArray(const std::string& table, const std::string& array,
                                         const TakeElements& take) const {
  const absl::Span<const TensorPlace> parts = links_.back().index->Find(table, array);
  for (const TensorPlace& part : parts) {
    const auto reader = OpenFile(links() - 1, *part.file);
    if (!reader.ok()) return reader.status();
    Places places(*part.tensor, BytesOf(*ParseType(part.tensor->dtype())));
    const absl::Status status = ReadChecked(
        **reader, *part.tensor,
        [&](uint64_t, absl::Span<const std::byte> bytes) { return places.Give(bytes, take); });
    if (!status.ok()) return status;
  }
  if (!parts.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      absl::StrCat(path(), " has no array ", Quoted(array), " of a table ", Quoted(table)));
}

std::vector<RowFile> CheckpointReader::RowFiles(const std::string& table) const {
  std::vector<RowFile> files;
  for (size_t link = 0; link < links_.size(); ++link) {
    for (const TensorPlace& keys : links_[link].index->Find(table, kKeys)) {
      files.push_back({link, keys.file, keys.tensor->shape(0)});
    }
  }
  return files;
}

RowFilter CheckpointReader::RowFilterOf(const std::string& table) const {
  const v1::CheckpointTable* newest = FindTable(table);
  if (newest == nullptr || links_.size() == 1) return {};
  std::vector<size_t> first(manifest().partitions());
  for (size_t link = 1; link < links_.size(); ++link) {
    const v1::CheckpointTable* here = links_[link].index->FindTable(table);
    if (here == nullptr) continue;
    // The chain was checked: all its manifests have as many partitions, and name some of them.
    for (const uint32_t partition : here->whole_partitions()) first[partition] = link;
  }
  const bool replaces =
      std::any_of(first.begin(), first.end(), [](size_t link) { return link > 0; });
  if (replaces && VERBENA_FAILPOINT(checkpoint, merge_key_by_key)) return {};
  return {newest->id(), std::move(first)};
}

absl::Status CheckpointReader::ReadRowFile(const RowFile& file, const TakeRows& take) const {
  const Link& link = links_[file.link];
  const absl::StatusOr<SafetensorsReader> reader = OpenTensorFile(disk_, link.path, *file.file);
  if (!reader.ok()) return reader.status();
  const v1::CheckpointTable* table = link.index->FindTable(file.file->tensors(0).table());
  std::vector<TensorCursor> columns;
  std::vector<size_t> row_bytes;
  size_t all_bytes = 0;
  for (const ArraySpec& array : RowArrays(table->spec(), file.rows)) {
    for (const v1::CheckpointTensor& tensor : file.file->tensors()) {
      if (tensor.array() != array.name) continue;
      absl::StatusOr<TensorCursor> cursor = TensorCursor::Open(*reader, tensor);
      if (!cursor.ok()) return cursor.status();
      columns.push_back(*std::move(cursor));
      row_bytes.push_back(file.rows == 0 ? 0 : columns.back().left() / file.rows);
      all_bytes += row_bytes.back();
    }
  }
  const uint64_t most = std::max<uint64_t>(1, kBatchBytes / std::max<size_t>(1, all_bytes));
  std::vector<std::vector<std::byte>> buffers(columns.size());
  for (uint64_t row = 0; row < file.rows; row += most) {
    RowBatch batch;
    batch.count = std::min(most, file.rows - row);
    for (size_t c = 0; c < columns.size(); ++c) {
      buffers[c].resize(batch.count * row_bytes[c]);
      const absl::Status status = columns[c].Read(absl::MakeSpan(buffers[c]));
      if (!status.ok()) return status;
      batch.columns.emplace_back(buffers[c]);
    }
    if (absl::Status status = take(batch); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::ReadRows(const std::string& table, const TakeRows& take) const {
  const std::vector<RowFile> files = RowFiles(table);
  const RowFilter filter = RowFilterOf(table);
  // Links from the latest to the oldest: the latest version of a row counts.
  KeySet seen;
  for (size_t link = links_.size(); link-- > 0;) {
    std::vector<uint64_t> here;
    for (const RowFile& file : files) {
      if (file.link != link) continue;
      const absl::Status status = ReadRowFile(file, [&](const RowBatch& batch) {
        if (link > 0) here.insert(here.end(), batch.keys().begin(), batch.keys().end());
        return GiveUnseen(batch, seen, filter, link, take);
      });
      if (!status.ok()) return status;
    }
    seen.insert(here.begin(), here.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CheckpointReader::CountRows(const std::string& table) const {
  uint64_t rows = 0;
  if (links_.size() == 1) {
    for (const RowFile& file : RowFiles(table)) rows += file.rows;
    return rows;
  }
  const absl::Status status = ReadRows(table, [&](const RowBatch& batch) {
    rows += batch.count;
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return rows;
}

}  // namespace verbena::checkpoint
