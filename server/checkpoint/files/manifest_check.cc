#include "server/checkpoint/files/manifest_check.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {
namespace {

constexpr size_t kMostFileNameBytes = 200;
constexpr uint32_t kMostPartitions = 1 << 20;

absl::Status Bad(const std::string& field, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: ", allowed));
}

std::string Shape(const google::protobuf::RepeatedField<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The parts of a table's arrays that the files have.
struct TableParts {
  const v1::CheckpointTable* table = nullptr;
  bool dense = false;
  std::map<std::string, ArraySpec> arrays;                                   // of a dense table
  std::map<std::string, std::vector<std::pair<uint64_t, uint64_t>>> ranges;  // first, count
  uint64_t rows = 0;
};

class Checker {
 public:
  explicit Checker(const v1::CheckpointManifest& manifest) : manifest_(manifest) {}

  absl::Status Check() {
    const uint32_t partitions = manifest_.partitions();
    if (partitions == 0 || partitions > kMostPartitions) {
      return Bad("partitions", absl::StrCat(partitions), absl::StrCat("1..", kMostPartitions));
    }
    if (manifest_.has_base()) {
      if (!IsPlainName(manifest_.base().name())) {
        return Bad("base.name", Quoted(manifest_.base().name()), "a checkpoint's name");
      }
      if (!IsHashText(manifest_.base().checksum())) {
        return Bad("base.checksum", Quoted(manifest_.base().checksum()), "16 hexadecimal digits");
      }
    }
    for (const v1::CheckpointTable& table : manifest_.tables()) {
      if (absl::Status status = AddTable(table); !status.ok()) return status;
    }
    for (const v1::CheckpointFile& file : manifest_.files()) {
      if (absl::Status status = CheckFile(file); !status.ok()) return status;
    }
    for (const auto& [name, parts] : tables_) {
      const absl::Status status = parts.dense ? CheckCover(name, parts) : CheckRows(name, parts);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status AddTable(const v1::CheckpointTable& table) {
    const v1::TableSpec& spec = table.spec();
    const absl::StatusOr<v1::TableSpec> normal = NormalizeTableSpec(spec);
    if (!normal.ok()) return normal.status();
    if (absl::Status same = CheckSameSpec(spec, *normal); !same.ok()) return same;
    if (!IsKnownOptimizer(spec.optimizer().name())) {
      return Bad(absl::StrCat("table ", Quoted(spec.name()), ": optimizer.name"),
                 Quoted(spec.optimizer().name()), "an optimizer that this program knows");
    }
    for (const auto* by_partition : {&table.partition_versions(), &table.partition_applies()}) {
      const auto size = static_cast<uint32_t>(by_partition->size());
      if (size == 0 || size == manifest_.partitions()) continue;
      return Bad(absl::StrCat("table ", Quoted(spec.name()),
                              ": the length of partition_versions or partition_applies"),
                 absl::StrCat(size), absl::StrCat("0 or ", manifest_.partitions()));
    }
    if (absl::Status status = CheckWhole(table); !status.ok()) return status;
    TableParts parts;
    parts.table = &table;
    parts.dense = spec.dim() == 0;
    if (parts.dense) {
      for (ArraySpec& array : DenseArrays(spec)) {
        const std::string name = array.name;
        parts.arrays.emplace(name, std::move(array));
      }
    }
    if (tables_.emplace(spec.name(), std::move(parts)).second) return absl::OkStatus();
    return Bad("tables", absl::StrCat("with two named ", Quoted(spec.name())), "one of a name");
  }

  absl::Status CheckWhole(const v1::CheckpointTable& table) const {
    const auto& whole = table.whole_partitions();
    const bool allowed = manifest_.has_base() && table.spec().dim() > 0 &&
                         manifest_.format_version() >= kWholePartitionsVersion;
    const bool ascend =
        std::adjacent_find(whole.begin(), whole.end(), std::greater_equal<>()) == whole.end();
    if (whole.empty() || (allowed && ascend && *whole.rbegin() < manifest_.partitions())) {
      return absl::OkStatus();
    }
    return Bad(absl::StrCat("table ", Quoted(table.spec().name()), ": whole_partitions"),
               absl::StrJoin(whole, ", "),
               absl::StrCat("none, but of an embedding table in an incremental checkpoint of "
                            "version ",
                            kWholePartitionsVersion, " or later ascending ones below ",
                            manifest_.partitions()));
  }

  absl::Status CheckFile(const v1::CheckpointFile& file) {
    const std::string where = absl::StrCat("file ", Quoted(file.name()));
    if (!IsPlainName(file.name()) || file.name() == kManifestName) {
      return Bad("a file's name", Quoted(file.name()),
                 "1..200 characters of [A-Za-z0-9_.-], no dot first, not manifest.json");
    }
    if (!files_.insert(file.name()).second) {
      return Bad("files", absl::StrCat("with two named ", Quoted(file.name())), "one of a name");
    }
    if (!IsHashText(file.xxh3())) {
      return Bad(absl::StrCat(where, ": xxh3"), Quoted(file.xxh3()), "16 hexadecimal digits");
    }
    std::set<std::string> names;
    uint64_t bytes = 0;
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      const std::string which = absl::StrCat(where, ", tensor ", Quoted(tensor.name()));
      if (tensor.name().empty() || !names.insert(tensor.name()).second) {
        return Bad(which, "there twice, or without a name", "one of a name");
      }
      if (absl::Status status = CheckTensor(which, tensor, &bytes); !status.ok()) return status;
    }
    if (file.tensors().empty()) return absl::OkStatus();
    if (bytes > file.bytes()) {
      return Bad(absl::StrCat(where, ": bytes"), absl::StrCat(file.bytes()),
                 absl::StrCat("more than its tensors' ", bytes));
    }
    const auto rows = tables_.find(file.tensors(0).table());
    const bool dense = rows == tables_.end() || rows->second.dense;
    const absl::Status status =
        dense ? CheckDense(where, file) : CheckRowFile(where, file, &rows->second);
    return status.ok() ? CheckBlocks(where, file) : status;
  }

  static absl::Status CheckTensor(const std::string& which, const v1::CheckpointTensor& tensor,
                                  uint64_t* bytes) {
    const std::optional<TensorType> type = ParseType(tensor.dtype());
    if (!type) return Bad(absl::StrCat(which, ": dtype"), Quoted(tensor.dtype()), TypeNames());
    const size_t size = BytesOf(*type);
    const std::optional<uint64_t> elements = ElementsOf(tensor.shape(), size);
    if (!elements || __builtin_add_overflow(*bytes, *elements * size, bytes)) {
      return Bad(absl::StrCat(which, ": shape"), Shape(tensor.shape()), "less than 2^63 bytes");
    }
    if (tensor.block_bytes() == 0 || tensor.block_bytes() % size != 0 ||
        tensor.block_bytes() > kMostBlockBytes) {
      return Bad(absl::StrCat(which, ": block_bytes"), absl::StrCat(tensor.block_bytes()),
                 absl::StrCat("multiples of ", size, " up to ", kMostBlockBytes));
    }
    if (!IsHashText(tensor.xxh3())) {
      return Bad(absl::StrCat(which, ": xxh3"), Quoted(tensor.xxh3()), "16 hexadecimal digits");
    }
    return absl::OkStatus();
  }

  static absl::Status CheckBlocks(const std::string& where, const v1::CheckpointFile& file) {
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      const size_t size = BytesOf(*ParseType(tensor.dtype()));
      const uint64_t bytes = *ElementsOf(tensor.shape(), size) * size;
      const uint64_t blocks =
          bytes / tensor.block_bytes() + (bytes % tensor.block_bytes() > 0 ? 1 : 0);
      const std::string& hashes = tensor.block_xxh3();
      const bool as_many =
          hashes.size() % sizeof(uint64_t) == 0 && hashes.size() / sizeof(uint64_t) == blocks;
      if (hashes.empty() || (as_many && HashText(hashes) == tensor.xxh3())) continue;
      return Bad(absl::StrCat(where, ", tensor ", Quoted(tensor.name()), ": block_xxh3"),
                 absl::StrCat(hashes.size(), " bytes"),
                 absl::StrCat("8 bytes of each of ", blocks, " blocks, with the checksum xxh3"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckDense(const std::string& where, const v1::CheckpointFile& file) {
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      const std::string which = absl::StrCat(where, ", tensor ", Quoted(tensor.name()));
      const auto parts = tables_.find(tensor.table());
      if (parts == tables_.end() || !parts->second.dense) {
        return Bad(absl::StrCat(which, ": table"), Quoted(tensor.table()),
                   "a dense table of this checkpoint");
      }
      const auto array = parts->second.arrays.find(tensor.array());
      if (array == parts->second.arrays.end() || array->second.dtype != tensor.dtype()) {
        return Bad(absl::StrCat(which, ": array and dtype"),
                   absl::StrCat(Quoted(tensor.array()), " of ", tensor.dtype()),
                   "the arrays of the table's type and optimizer");
      }
      const absl::Status status =
          AddRanges(which, tensor, array->second, &parts->second.ranges[tensor.array()]);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  static absl::Status AddRanges(const std::string& which, const v1::CheckpointTensor& tensor,
                                const ArraySpec& array,
                                std::vector<std::pair<uint64_t, uint64_t>>* ranges) {
    if (tensor.ranges().empty()) {
      ranges->emplace_back(0, array.elements);
      if (std::equal(tensor.shape().begin(), tensor.shape().end(), array.shape.begin(),
                     array.shape.end())) {
        return absl::OkStatus();
      }
      return Bad(absl::StrCat(which, ": shape"), Shape(tensor.shape()),
                 absl::StrCat("the table's, [", absl::StrJoin(array.shape, ", "), "]"));
    }
    uint64_t sum = 0, at = 0;
    for (const v1::CheckpointTensor::Range& range : tensor.ranges()) {
      if (range.count() == 0 || range.first() < at || range.first() > array.elements ||
          range.count() > array.elements - range.first()) {
        return Bad(absl::StrCat(which, ": ranges"),
                   absl::StrCat("with ", range.count(), " elements from ", range.first(), " on"),
                   absl::StrCat("ones that grow, and end by ", array.elements));
      }
      at = range.first() + range.count();
      sum += range.count();
      ranges->emplace_back(range.first(), range.count());
    }
    if (tensor.shape_size() == 1 && tensor.shape(0) == sum) return absl::OkStatus();
    return Bad(absl::StrCat(which, ": shape"), Shape(tensor.shape()),
               absl::StrCat("[", sum, "], the sum of its ranges"));
  }

  static absl::Status CheckRowFile(const std::string& where, const v1::CheckpointFile& file,
                                   TableParts* parts) {
    const std::string& table = file.tensors(0).table();
    const auto keys = std::find_if(file.tensors().begin(), file.tensors().end(),
                                   [](const auto& t) { return t.array() == kKeys; });
    if (keys == file.tensors().end() || keys->shape_size() != 1) {
      return Bad(where, "without keys", "keys, in a file of rows");
    }
    const uint64_t rows = keys->shape(0);
    const std::vector<ArraySpec> arrays = RowArrays(parts->table->spec(), rows);
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      const auto array = std::find_if(arrays.begin(), arrays.end(),
                                      [&](const auto& a) { return a.name == tensor.array(); });
      const bool same = array != arrays.end() && tensor.table() == table &&
                        tensor.name() == tensor.array() && tensor.dtype() == array->dtype &&
                        tensor.ranges().empty() &&
                        std::equal(tensor.shape().begin(), tensor.shape().end(),
                                   array->shape.begin(), array->shape.end());
      if (same) continue;
      return Bad(
          absl::StrCat(where, ", tensor ", Quoted(tensor.name())),
          absl::StrCat("array ", Quoted(tensor.array()), " of table ", Quoted(tensor.table()), ", ",
                       tensor.dtype(), " ", Shape(tensor.shape())),
          absl::StrCat("one of the arrays of ", rows, " rows of table ", Quoted(table)));
    }
    if (static_cast<size_t>(file.tensors_size()) != arrays.size()) {
      return Bad(absl::StrCat(where, ": its number of tensors"), absl::StrCat(file.tensors_size()),
                 absl::StrCat(arrays.size()));
    }
    if (!__builtin_add_overflow(parts->rows, rows, &parts->rows)) return absl::OkStatus();
    return Bad(absl::StrCat(where, ": rows"), absl::StrCat(rows), "fewer than 2^64 in all");
  }

  static absl::Status CheckCover(const std::string& table, const TableParts& parts) {
    for (const auto& [name, array] : parts.arrays) {
      const auto found = parts.ranges.find(name);
      auto ranges = found == parts.ranges.end() ? std::vector<std::pair<uint64_t, uint64_t>>{}
                                                : found->second;
      std::sort(ranges.begin(), ranges.end());
      uint64_t at = 0;
      for (const auto& [first, count] : ranges) {
        if (first != at) break;
        at += count;
      }
      uint64_t sum = 0;
      for (const auto& range : ranges) sum += range.second;
      if (at == array.elements && sum == at) continue;
      return Bad(absl::StrCat("table ", Quoted(table), ": array ", name),
                 absl::StrCat("of ", sum, " elements, in order up to ", at),
                 absl::StrCat("all of its ", array.elements, " elements, each once"));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckRows(const std::string& table, const TableParts& parts) {
    if (parts.rows == parts.table->rows()) return absl::OkStatus();
    return Bad(absl::StrCat("table ", Quoted(table), ": rows"), absl::StrCat(parts.table->rows()),
               absl::StrCat("as many as the files have, ", parts.rows));
  }

  const v1::CheckpointManifest& manifest_;
  std::map<std::string, TableParts> tables_;
  std::set<std::string> files_;
};

}  // namespace

bool IsPlainName(const std::string& name) {
  if (name.empty() || name.size() > kMostFileNameBytes || name.front() == '.') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
  });
}

absl::Status CheckBase(const v1::CheckpointManifest& manifest, const v1::CheckpointManifest& base) {
  // By which the rows of a partition are found.
  if (manifest.partitions() != base.partitions()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it is of ", manifest.partitions(), " partitions, and its base of ", base.partitions()));
  }
  absl::flat_hash_map<absl::string_view, const v1::CheckpointTable*> older_tables;
  for (const v1::CheckpointTable& older : base.tables()) {
    older_tables.emplace(older.spec().name(), &older);
  }
  for (const v1::CheckpointTable& table : manifest.tables()) {
    const v1::TableSpec& spec = table.spec();
    const auto found = older_tables.find(spec.name());
    if (found == older_tables.end() || spec.dim() == 0) continue;
    const v1::CheckpointTable& older = *found->second;
    const bool same = manifest.cluster_id() == base.cluster_id() && table.id() == older.id() &&
                      spec.dim() == older.spec().dim() &&
                      spec.optimizer().name() == older.spec().optimizer().name();
    if (same) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("table ", Quoted(spec.name()),
                     " is another one in the base: its cluster, id, "
                     "dim or optimizer differ, so its rows there are not its own"));
  }
  return absl::OkStatus();
}

absl::Status CheckManifest(const v1::CheckpointManifest& manifest) {
  return Checker(manifest).Check();
}

}  // namespace verbena::checkpoint
