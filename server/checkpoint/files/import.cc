#include "server/checkpoint/files/import.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"
#include "proto/wire/row_applies.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/row_writer.h"
#include "server/checkpoint/files/tensor_file.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {
namespace {

// Elements of one read: a few MiB of any type.
constexpr uint64_t kElementsAtOnce = uint64_t{1} << 19;
// The default of clusters; a restore uses the cluster's own number.
constexpr uint32_t kPartitions = 256;

using Buffer = std::vector<std::byte>;

// `in`, elements of `tensor` from `first` on, as `to`.
absl::Status Convert(const SourceTensor& tensor, uint64_t first, TensorType from, const Buffer& in,
                     TensorType to, Buffer* out) {
  const uint64_t count = in.size() / BytesOf(from);
  out->resize(count * BytesOf(to));
  ConvertNumbers(from, in, to, absl::MakeSpan(*out));
  const std::optional<TooLarge> large = FindTooLarge(from, in, to, *out);
  if (!large) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Which(tensor), ": element ", first + large->index, " is ", Number(large->number),
                   ", too large for ", TypeName(to),
                   "; --dtype names another type, --skip leaves the tensor out"));
}

// Elements of `tensor` as they are in the file.
absl::Status Read(const SourceTensor& tensor, uint64_t first, uint64_t count, Buffer* to) {
  const uint64_t element = BytesOf(tensor.info->type);
  to->resize(count * element);
  return tensor.file->Read(*tensor.info, first * element, absl::MakeSpan(*to));
}

absl::Status SaysTwice(const SourceTensor& keys, uint64_t key, uint64_t rows) {
  std::string at;
  Buffer buffer;
  for (uint64_t first = 0; first < rows; first += kElementsAtOnce) {
    const uint64_t count = std::min(kElementsAtOnce, rows - first);
    if (absl::Status status = Read(keys, first, count, &buffer); !status.ok()) return status;
    for (uint64_t i = 0; i < count; ++i) {
      uint64_t found = 0;
      std::memcpy(&found, buffer.data() + i * sizeof(found), sizeof(found));
      if (found != key) continue;
      absl::StrAppend(&at, at.empty() ? "" : " and ", first + i);
      if (at.find(' ') == std::string::npos) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(Which(keys), " has the key ", key, " in rows ", at, "; allowed: each once"));
    }
  }
  return absl::DataLossError(absl::StrCat(Which(keys), " changes while it is read"));
}

absl::Status CheckKeys(const ImportedTable& table, const CheckpointReader::Progress& written) {
  std::vector<uint64_t> keys(table.rows);
  const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(keys.data()), keys.size() * 8);
  constexpr uint64_t kPiece = kElementsAtOnce * sizeof(uint64_t);
  for (uint64_t at = 0; at < bytes.size(); at += kPiece) {
    absl::Status status = table.keys.file->Read(
        *table.keys.info, at, bytes.subspan(at, std::min<uint64_t>(kPiece, bytes.size() - at)));
    if (status.ok()) status = written(0);
    if (!status.ok()) return status;
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  return twice == keys.end() ? absl::OkStatus() : SaysTwice(table.keys, *twice, table.rows);
}

class Importer {
 public:
  Importer(Disk* disk, const ImportOptions& options, const ImportPlan& plan, std::string to,
           const CheckpointReader::Progress& written)
      : disk_(disk),
        plan_(plan),
        to_(std::move(to)),
        file_bytes_(options.file_bytes == 0 ? kDefaultFileBytes : options.file_bytes),
        written_(written) {
    manifest_.set_written_by(options.written_by);
    manifest_.set_time(options.time);
    manifest_.set_job(plan.tables.front().spec.job());
    manifest_.set_partitions(kPartitions);
    for (const ImportedTable& table : plan.tables) {
      v1::CheckpointTable* entry = manifest_.add_tables();
      tables_.emplace(table.spec.name(), &table);
      *entry->mutable_spec() = table.spec;
      entry->set_rows(table.rows);
    }
  }

  absl::StatusOr<v1::CheckpointManifest> Run() {
    std::vector<v1::TableSpec> specs;
    for (const ImportedTable& table : plan_.tables) specs.push_back(table.spec);
    for (const PlannedFile& file : PlanDense(specs, file_bytes_, 1)) {
      if (absl::Status status = WriteDense(file); !status.ok()) return status;
    }
    for (size_t i = 0; i < plan_.tables.size(); ++i) {
      if (plan_.tables[i].spec.dim() == 0) continue;
      if (absl::Status status = WriteRows(i); !status.ok()) return status;
    }
    const std::string index = IndexText(manifest_);
    if (index.empty()) return manifest_;
    absl::StatusOr<v1::CheckpointFile> entry = WritePlainFile(disk_, to_, kIndexName, index);
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *std::move(entry);
    return manifest_;
  }

 private:
  absl::Status WriteDense(const PlannedFile& file) {
    absl::StatusOr<std::unique_ptr<TensorFileWriter>> writer =
        TensorFileWriter::Create(disk_, Join(to_, file.name), file.tensors);
    if (!writer.ok()) return writer.status();
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      const absl::Status status = WriteArray(file.tensors[i], i, writer->get());
      if (!status.ok()) return status;
    }
    absl::StatusOr<v1::CheckpointFile> entry = (*writer)->Finish();
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *std::move(entry);
    return absl::OkStatus();
  }

  absl::Status WriteArray(const v1::CheckpointTensor& array, size_t index,
                          TensorFileWriter* writer) {
    uint64_t elements = 1;
    for (const uint64_t d : array.shape()) elements *= d;
    const ImportedTable& table = *tables_.at(array.table());
    for (uint64_t first = 0; first < elements; first += kElementsAtOnce) {
      const uint64_t count = std::min(kElementsAtOnce, elements - first);
      absl::Status status = Fill(table, array, first, count);
      if (status.ok()) status = writer->Append(index, out_);
      if (status.ok()) status = written_(out_.size());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // out_: elements of an array of a dense table.
  absl::Status Fill(const ImportedTable& table, const v1::CheckpointTensor& array, uint64_t first,
                    uint64_t count) {
    if (const auto given = table.arrays.find(array.array()); given != table.arrays.end()) {
      return Read(given->second, first, count, &out_);
    }
    const bool parameters = array.array() == kParameters;
    if (!parameters && array.array() != kMaster) {
      out_.assign(count * BytesOf(*ParseType(array.dtype())), std::byte{0});
      return absl::OkStatus();
    }
    const TensorType from = table.values.info->type;
    const TensorType to = TypeOf(table.spec.dtype());
    absl::Status status = Read(table.values, first, count, &in_);
    if (!status.ok()) return status;
    if (parameters && (from == to || to == TensorType::kF32)) {
      return Convert(table.values, first, from, in_, to, &out_);
    }
    // The served values of a table of 16 bits are its master copy, rounded.
    status = Convert(table.values, first, from, in_, TensorType::kF32, &out_);
    if (!status.ok() || !parameters) return status;
    in_.swap(out_);
    return Convert(table.values, first, TensorType::kF32, in_, to, &out_);
  }

  absl::Status WriteRows(size_t index) {
    const ImportedTable& table = plan_.tables[index];
    RowWriter writer(disk_, to_, table.spec, index, 0, table.rows, file_bytes_);
    const uint64_t at_once = std::max<uint64_t>(1, kElementsAtOnce / table.spec.dim());
    for (uint64_t first = 0; first < table.rows; first += at_once) {
      const uint64_t count = std::min(at_once, table.rows - first);
      if (absl::Status status = AppendRows(table, first, count, &writer); !status.ok()) {
        return status;
      }
    }
    absl::StatusOr<std::vector<v1::CheckpointFile>> files = writer.Finish();
    if (!files.ok()) return files.status();
    for (v1::CheckpointFile& file : *files) *manifest_.add_files() = std::move(file);
    return absl::OkStatus();
  }

  absl::Status AppendRows(const ImportedTable& table, uint64_t first, uint64_t count,
                          RowWriter* writer) {
    const uint64_t dim = table.spec.dim();
    Buffer keys(count * sizeof(uint64_t));
    absl::Status status;
    if (table.keys.file != nullptr) {
      status = Read(table.keys, first, count, &keys);
    } else {
      auto* places = reinterpret_cast<uint64_t*>(keys.data());
      std::iota(places, places + count, first);
    }
    if (status.ok()) status = Read(table.values, first * dim, count * dim, &in_);
    if (status.ok()) {
      status =
          Convert(table.values, first * dim, table.values.info->type, in_, TensorType::kF32, &out_);
    }
    if (!status.ok()) return status;
    const Buffer zeros(count * dim * sizeof(float));
    const std::vector<uint32_t> anew(count, kAppliesOfNewState);
    const absl::Span<const std::byte> applies(reinterpret_cast<const std::byte*>(anew.data()),
                                              count * sizeof(uint32_t));
    std::vector<absl::Span<const std::byte>> columns;
    uint64_t bytes = 0;
    for (const ArraySpec& array : RowArrays(table.spec, count)) {
      const uint64_t size = array.elements * BytesOf(*ParseType(array.dtype));
      columns.push_back(array.name == kKeys      ? absl::MakeConstSpan(keys)
                        : array.name == kValues  ? absl::MakeConstSpan(out_)
                        : array.name == kApplies ? applies
                                                 : absl::MakeConstSpan(zeros).first(size));
      bytes += size;
    }
    status = writer->Append(count, columns);
    return status.ok() ? written_(bytes) : status;
  }

  Disk* const disk_;
  const ImportPlan& plan_;
  const std::string to_;
  const uint64_t file_bytes_;
  const CheckpointReader::Progress& written_;
  v1::CheckpointManifest manifest_;
  std::map<std::string, const ImportedTable*> tables_;
  Buffer in_, out_;
};

// A new checkpoint would be the newest of the existing ones, and prune could remove those for it.
absl::Status CheckNone(Disk* disk, const std::string& root) {
  const absl::StatusOr<std::vector<Listed>> all = ListCheckpoints(disk, root);
  if (absl::IsNotFound(all.status())) return absl::OkStatus();
  if (!all.ok()) return all.status();
  if (all->empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(root, " has checkpoints already, the newest is ",
                                               all->back().name, "; name another directory"));
}

}  // namespace

absl::StatusOr<std::string> Import(Disk* disk, const ImportOptions& options, const ImportPlan& plan,
                                   const CheckpointReader::Progress& written) {
  // Checked before any work, and again below under the directory's lock.
  if (absl::Status status = CheckNone(disk, options.to); !status.ok()) return status;
  for (const ImportedTable& table : plan.tables) {
    if (table.keys.file == nullptr) continue;
    if (absl::Status status = CheckKeys(table, written); !status.ok()) return status;
  }
  const absl::StatusOr<std::unique_ptr<CheckpointDirectory>> directory =
      CheckpointDirectory::Open(disk, options.to);
  if (!directory.ok()) return directory.status();
  if (absl::Status status = CheckNone(disk, options.to); !status.ok()) return status;
  const absl::StatusOr<std::string> path = (*directory)->Begin();
  if (!path.ok()) return path.status();
  const absl::StatusOr<v1::CheckpointManifest> manifest =
      Importer(disk, options, plan, *path, written).Run();
  absl::StatusOr<std::string> name = manifest.ok() ? (*directory)->Commit(*manifest)
                                                   : absl::StatusOr<std::string>(manifest.status());
  // Remains that cannot be removed now go at the next import. Report the first error.
  if (!name.ok()) (void)(*directory)->Abandon();
  return name;
}

}  // namespace verbena::checkpoint
