#include "server/checkpoint/restore_reader.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::server {
namespace {

using checkpoint::ArraySpec;
using checkpoint::CheckpointReader;

bool SameRanges(const v1::CheckpointTensor& a, const v1::CheckpointTensor& b) {
  if (a.ranges_size() != b.ranges_size()) return false;
  for (int i = 0; i < a.ranges_size(); ++i) {
    if (a.ranges(i).first() != b.ranges(i).first() || a.ranges(i).count() != b.ranges(i).count()) {
      return false;
    }
  }
  return true;
}

size_t BytesOfType(const std::string& dtype) {
  return checkpoint::BytesOf(*checkpoint::ParseType(dtype));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RestoreReader>> RestoreReader::Open(checkpoint::Disk* disk,
                                                                   const RestoreRead& wanted) {
  auto reader = CheckpointReader::Open(disk, wanted.path);
  if (!reader.ok()) return reader.status();
  std::unique_ptr<RestoreReader> made(new RestoreReader(*std::move(reader), wanted));
  if (absl::Status status = made->Plan(); !status.ok()) return status;
  return made;
}

// ---- reading -----------------------------------------------------------------------------------

absl::Status RestoreReader::Plan() {
  applies_.resize(wanted_.tables.size());
  filters_.resize(wanted_.tables.size());
  for (size_t i = 0; i < wanted_.tables.size(); ++i) {
    const std::string& name = wanted_.tables[i].name;
    const v1::CheckpointTable* table = reader_.FindTable(name);
    if (table == nullptr) {
      return absl::NotFoundError(absl::StrCat(reader_.path(), " has no table '", name, "'"));
    }
    absl::Status status = table->spec().dim() > 0 ? PlanRows(i, *table) : PlanDense(i, *table);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status RestoreReader::PlanDense(size_t index, const v1::CheckpointTable& table) {
  const DenseLayout layout = LayoutOf(table.spec());
  std::vector<uint64_t>& applies = applies_[index];
  applies.resize(layout.chunks());
  if (wanted_.state) {
    absl::Status status =
        reader_.ReadArray(table.spec().name(), checkpoint::kApplies,
                          [&](uint64_t first, absl::Span<const std::byte> bytes) {
                            std::memcpy(applies.data() + first, bytes.data(), bytes.size());
                            return absl::OkStatus();
                          });
    if (!status.ok()) return status;
  }
  std::vector<std::string> arrays;
  for (const ArraySpec& array : checkpoint::DenseArrays(table.spec())) {
    const bool wanted = array.name == checkpoint::kParameters || wanted_.state;
    if (wanted && array.name != checkpoint::kApplies) arrays.push_back(array.name);
  }
  const std::string& name = table.spec().name();
  const size_t link = reader_.links() - 1;
  const checkpoint::ManifestIndex& tensors = reader_.index(link);
  for (const checkpoint::TensorPlace& parameters : tensors.Find(name, checkpoint::kParameters)) {
    Group group;
    group.table = index;
    group.link = link;
    group.chunk_elements = layout.chunk_elements;
    group.ranges.assign(parameters.tensor->ranges().begin(), parameters.tensor->ranges().end());
    if (group.ranges.empty()) {
      v1::CheckpointTensor::Range all;
      all.set_count(layout.elements);
      group.ranges.push_back(all);
    }
    for (const std::string& array : arrays) {
      for (const checkpoint::TensorPlace& part : tensors.Find(name, array)) {
        if (!SameRanges(*part.tensor, *parameters.tensor)) continue;
        group.files.push_back(part.file);
        group.tensors.push_back(part.tensor);
        group.element_bytes.push_back(BytesOfType(part.tensor->dtype()));
      }
    }
    if (group.tensors.size() != arrays.size()) {
      return absl::UnimplementedError(
          absl::StrCat(reader_.path(), ": arrays of table '", name,
                       "' are cut differently from one another; 'verbena checkpoint export' "
                       "makes them whole"));
    }
    group.dtype = ParameterType(table.spec());
    group.master = arrays.size() > 1 && arrays[1] == checkpoint::kMaster;
    groups_.push_back(std::move(group));
  }
  return absl::OkStatus();
}

absl::Status RestoreReader::PlanRows(size_t index, const v1::CheckpointTable& table) {
  const std::vector<checkpoint::RowFile> all = reader_.RowFiles(table.spec().name());
  filters_[index] = reader_.RowFilterOf(table.spec().name());
  // Links may have the same keys: there are as many rows as in the largest one, or more.
  std::map<size_t, uint64_t> of_links;
  uint64_t of_table = 0;
  for (const checkpoint::RowFile& rows : all) {
    of_table = std::max(of_table, of_links[rows.link] += rows.rows);
  }
  // The oldest first: of a key that is in several links the latest row counts.
  for (const checkpoint::RowFile& rows : all) {
    Group group;
    group.table = index;
    group.link = rows.link;
    group.rows = true;
    group.count = rows.rows;
    group.of_table = of_table;
    for (const ArraySpec& array : checkpoint::RowArrays(table.spec(), rows.rows)) {
      // Counts of applies: which rows were dropped.
      if (!wanted_.state && array.name != checkpoint::kKeys && array.name != checkpoint::kValues &&
          array.name != checkpoint::kApplies) {
        continue;
      }
      for (const v1::CheckpointTensor& tensor : rows.file->tensors()) {
        if (tensor.table() != table.spec().name() || tensor.array() != array.name) continue;
        group.files.push_back(rows.file);
        group.tensors.push_back(&tensor);
        group.element_bytes.push_back(BytesOfType(array.dtype) *
                                      (rows.rows == 0 ? 0 : array.elements / rows.rows));
      }
    }
    const size_t row =
        std::accumulate(group.element_bytes.begin(), group.element_bytes.end(), size_t{0});
    group.at_once = std::max<uint64_t>(1, kRowBytesAtOnce / std::max<size_t>(1, row));
    if (group.count > 0) groups_.push_back(std::move(group));
  }
  return absl::OkStatus();
}

// ---- reading ------------------------------------------------------------------------------------

bool RestoreReader::OursChunk(size_t table, uint64_t chunk) const {
  return wanted_.ours[PartitionOfChunk(wanted_.tables[table].id, static_cast<uint32_t>(chunk),
                                       static_cast<uint32_t>(wanted_.ours.size()))];
}

bool RestoreReader::OursAny(size_t table, absl::Span<const std::byte> keys) const {
  const auto* key = reinterpret_cast<const uint64_t*>(keys.data());
  const auto partitions = static_cast<uint32_t>(wanted_.ours.size());
  return std::any_of(key, key + keys.size() / sizeof(uint64_t), [&](uint64_t k) {
    return wanted_.ours[PartitionOfKey(wanted_.tables[table].id, k, partitions)];
  });
}

absl::Status RestoreReader::OpenGroup() {
  const Group& group = groups_[group_];
  auto reading = std::make_unique<Reading>();
  for (size_t i = 0; i < group.tensors.size(); ++i) {
    auto file = reader_.OpenFile(group.link, *group.files[i]);
    if (!file.ok()) return file.status();
    reading->files.push_back(*std::move(file));
  }
  reading->cursors.resize(group.tensors.size());
  reading->first_ours =
      !group.rows && OursChunk(group.table, group.ranges[0].first() / group.chunk_elements);
  reading_ = std::move(reading);
  return absl::OkStatus();
}

absl::Status RestoreReader::CloseGroup() {
  if (reading_->first_ours) checked_.push_back(static_cast<uint32_t>(group_));
  reading_.reset();
  ++group_;
  return absl::OkStatus();
}

void RestoreReader::NextOfGroup(RestoreWindow* window) {
  const Group& group = groups_[group_];
  window->table = group.table;
  window->rows = group.rows;
  window->master = group.master;
  window->dtype = group.dtype;
  if (group.rows) {
    window->count = std::min(group.at_once, group.count - reading_->done);
    window->of_table = group.of_table;
    reading_->done += window->count;
    return;
  }
  const v1::CheckpointTensor::Range& range = group.ranges[reading_->range];
  window->first = range.first() + reading_->done;
  // Up to where a chunk ended, so that the whole window was applied to as often.
  const uint64_t chunk = window->first / group.chunk_elements;
  window->count =
      std::min((chunk + 1) * group.chunk_elements - window->first, range.count() - reading_->done);
  window->applies = applies_[group.table][chunk];
  reading_->done += window->count;
  if (reading_->done == range.count()) {
    ++reading_->range;
    reading_->done = 0;
  }
}

absl::Status RestoreReader::ReadColumn(size_t column, RestoreWindow* window) {
  const Group& group = groups_[group_];
  const size_t element = group.element_bytes[column];
  std::vector<std::byte>& to = window->columns[column];
  to.resize(window->count * element);
  std::unique_ptr<checkpoint::TensorCursor>& cursor = reading_->cursors[column];
  if (cursor == nullptr) {
    auto opened = checkpoint::TensorCursor::Open(*reading_->files[column], *group.tensors[column]);
    if (!opened.ok()) return opened.status();
    cursor = std::make_unique<checkpoint::TensorCursor>(*std::move(opened));
  }
  return cursor->ReadAt(reading_->all * element, absl::MakeSpan(to));
}

absl::StatusOr<bool> RestoreReader::Read(RestoreWindow* window) {
  const Group& group = groups_[group_];
  window->columns.resize(group.tensors.size());
  size_t column = 0;
  bool ours = false;
  if (group.rows) {
    if (absl::Status status = ReadColumn(column++, window); !status.ok()) return status;
    const absl::Span<const std::byte> keys = window->columns[0];
    if (reading_->all == 0)
      reading_->first_ours = OursAny(group.table, keys.first(sizeof(uint64_t)));
    ours = OursAny(group.table, keys);
  } else {
    ours = OursChunk(group.table, window->first / group.chunk_elements);
  }
  for (; column < group.tensors.size() && ours; ++column) {
    if (absl::Status status = ReadColumn(column, window); !status.ok()) return status;
  }
  for (const size_t element : group.element_bytes) read_bytes_ += window->count * element;
  reading_->all += window->count;
  if (!ours || !group.rows) return ours;
  DropReplaced(window);
  return OursAny(group.table, window->columns[0]);
}

void RestoreReader::DropReplaced(RestoreWindow* window) const {
  const Group& group = groups_[group_];
  const checkpoint::RowFilter& filter = filters_[group.table];
  if (!filter.Drops(group.link)) return;
  std::vector<uint64_t> kept;
  for (uint64_t row = 0; row < window->count; ++row) {
    uint64_t key = 0;
    std::memcpy(&key, window->columns[0].data() + row * sizeof(key), sizeof(key));
    if (filter.Counts(group.link, key)) kept.push_back(row);
  }
  if (kept.size() == window->count) return;
  for (size_t column = 0; column < window->columns.size(); ++column) {
    const size_t element = group.element_bytes[column];
    std::vector<std::byte>& bytes = window->columns[column];
    for (size_t to = 0; to < kept.size(); ++to) {
      std::memmove(bytes.data() + to * element, bytes.data() + kept[to] * element, element);
    }
    bytes.resize(kept.size() * element);
  }
  window->count = kept.size();
}

absl::StatusOr<bool> RestoreReader::Next(RestoreWindow* window) {
  while (group_ < groups_.size()) {
    if (reading_ == nullptr) {
      if (absl::Status status = OpenGroup(); !status.ok()) return status;
    }
    const Group& group = groups_[group_];
    if (group.rows ? reading_->done == group.count : reading_->range == group.ranges.size()) {
      if (absl::Status status = CloseGroup(); !status.ok()) return status;
      continue;
    }
    NextOfGroup(window);
    absl::StatusOr<bool> ours = Read(window);
    if (!ours.ok() || *ours) return ours;
  }
  return false;
}

}  // namespace verbena::server
