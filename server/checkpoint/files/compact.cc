#include "server/checkpoint/files/compact.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/array_reader.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/row_writer.h"
#include "server/checkpoint/files/tensor_file.h"

namespace verbena::checkpoint {
namespace {

class Compaction {
 public:
  Compaction(Disk* disk, const CheckpointReader& from, std::string to, uint64_t file_bytes,
             const CheckpointReader::Progress& read)
      : disk_(disk), from_(from), to_(std::move(to)), file_bytes_(file_bytes), read_(read) {
    manifest_ = from.manifest();
    manifest_.clear_base();
    manifest_.clear_files();
  }

  absl::StatusOr<v1::CheckpointManifest> Run() {
    for (const v1::CheckpointFile& file : from_.manifest().files()) {
      if (file.tensors().empty() || HasRows(file) || HasSlices(from_)) continue;
      if (absl::Status status = CopyDense(file); !status.ok()) return status;
    }
    if (HasSlices(from_)) {
      if (absl::Status status = JoinSlices(); !status.ok()) return status;
    }
    for (int i = 0; i < manifest_.tables_size(); ++i) {
      if (manifest_.tables(i).spec().dim() == 0) continue;
      if (absl::Status status = CopyRows(i); !status.ok()) return status;
    }
    const std::string index = IndexText(manifest_);
    if (index.empty()) return manifest_;
    const absl::StatusOr<v1::CheckpointFile> entry = WritePlainFile(disk_, to_, kIndexName, index);
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *entry;
    return manifest_;
  }

 private:
  bool HasRows(const v1::CheckpointFile& file) const {
    const v1::CheckpointTable* table = from_.FindTable(file.tensors(0).table());
    return table != nullptr && table->spec().dim() > 0;
  }

  absl::Status CopyDense(const v1::CheckpointFile& file) {
    const absl::StatusOr<SafetensorsReader> reader = OpenTensorFile(disk_, from_.path(), file);
    if (!reader.ok()) return reader.status();
    absl::StatusOr<std::unique_ptr<TensorFileWriter>> writer = TensorFileWriter::Create(
        disk_, Join(to_, file.name()), {file.tensors().begin(), file.tensors().end()});
    if (!writer.ok()) return writer.status();
    for (int i = 0; i < file.tensors_size(); ++i) {
      const absl::Status status =
          ReadChecked(*reader, file.tensors(i), [&](uint64_t, absl::Span<const std::byte> bytes) {
            const absl::Status written = (*writer)->Append(static_cast<size_t>(i), bytes);
            return written.ok() ? read_(bytes.size()) : written;
          });
      if (!status.ok()) return status;
    }
    absl::StatusOr<v1::CheckpointFile> entry = (*writer)->Finish();
    if (!entry.ok()) return entry.status();
    *manifest_.add_files() = *std::move(entry);
    return absl::OkStatus();
  }

  absl::Status JoinSlices() {
    std::vector<v1::TableSpec> specs;
    for (const v1::CheckpointTable& table : manifest_.tables()) specs.push_back(table.spec());
    for (const PlannedFile& file : PlanDense(specs, file_bytes_, 1)) {
      absl::StatusOr<std::unique_ptr<TensorFileWriter>> writer =
          TensorFileWriter::Create(disk_, Join(to_, file.name), file.tensors);
      if (!writer.ok()) return writer.status();
      for (size_t i = 0; i < file.tensors.size(); ++i) {
        const absl::Status status = JoinArray(file.tensors[i], i, writer->get());
        if (!status.ok()) return status;
      }
      absl::StatusOr<v1::CheckpointFile> entry = (*writer)->Finish();
      if (!entry.ok()) return entry.status();
      *manifest_.add_files() = *std::move(entry);
    }
    return absl::OkStatus();
  }

  absl::Status JoinArray(const v1::CheckpointTensor& tensor, size_t index,
                         TensorFileWriter* writer) const {
    absl::StatusOr<ArrayReader> array = ArrayReader::Open(from_, tensor.table(), tensor.array());
    if (!array.ok()) return array.status();
    const uint64_t element = BytesOf(array->type());
    const uint64_t piece = kDefaultBlockBytes / element;
    std::vector<std::byte> buffer;
    for (uint64_t first = 0; first < array->elements(); first += piece) {
      buffer.resize(std::min(piece, array->elements() - first) * element);
      absl::Status status = array->Read(first, absl::MakeSpan(buffer));
      if (status.ok()) status = writer->Append(index, buffer);
      if (status.ok()) status = read_(buffer.size());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status CopyRows(int index) {
    if (from_.links() > 1 && VERBENA_FAILPOINT(checkpoint, compact_oldest)) {
      const auto oldest = CheckpointReader::Open(disk_, from_.path_of(0));
      return oldest.ok() ? CopyRows(index, *oldest) : oldest.status();
    }
    return CopyRows(index, from_);
  }

  absl::Status CopyRows(int index, const CheckpointReader& from) {
    v1::CheckpointTable* table = manifest_.mutable_tables(index);
    const absl::StatusOr<uint64_t> rows = from.CountRows(table->spec().name());
    if (!rows.ok()) return rows.status();
    table->set_rows(*rows);
    table->clear_whole_partitions();
    RowWriter writer(disk_, to_, table->spec(), static_cast<size_t>(index), 0, *rows, file_bytes_);
    const absl::Status status = from.ReadRows(table->spec().name(), [&](const RowBatch& batch) {
      const absl::Status written = writer.Append(batch.count, batch.columns);
      if (!written.ok()) return written;
      uint64_t bytes = 0;
      for (const absl::Span<const std::byte> column : batch.columns) bytes += column.size();
      return read_(bytes);
    });
    if (!status.ok()) return status;
    absl::StatusOr<std::vector<v1::CheckpointFile>> files = writer.Finish();
    if (!files.ok()) return files.status();
    for (v1::CheckpointFile& file : *files) *manifest_.add_files() = std::move(file);
    return absl::OkStatus();
  }

  Disk* const disk_;
  const CheckpointReader& from_;
  const std::string to_;
  const uint64_t file_bytes_;
  const CheckpointReader::Progress& read_;
  v1::CheckpointManifest manifest_;
};

}  // namespace

bool HasSlices(const CheckpointReader& reader) {
  for (const v1::CheckpointFile& file : reader.manifest().files()) {
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      if (tensor.ranges_size() > 0) return true;
    }
  }
  return false;
}

absl::StatusOr<std::string> Compact(Disk* disk, const CheckpointReader& from,
                                    CheckpointDirectory* directory, uint64_t file_bytes,
                                    const CheckpointReader::Progress& read) {
  // A new checkpoint becomes the newest, so its source must be the newest now.
  const absl::StatusOr<std::vector<Listed>> all = ListCheckpoints(disk, directory->root());
  if (!all.ok()) return all.status();
  if (all->empty() || all->back().checksum != from.checksum()) {
    return absl::FailedPreconditionError(
        absl::StrCat(from.path(), " is not the newest checkpoint of ", directory->root(),
                     ": only that can be compacted"));
  }
  const absl::StatusOr<std::string> path = directory->Begin();
  if (!path.ok()) return path.status();
  const absl::StatusOr<v1::CheckpointManifest> manifest =
      Compaction(disk, from, *path, file_bytes, read).Run();
  absl::StatusOr<std::string> name =
      manifest.ok() ? directory->Commit(*manifest) : absl::StatusOr<std::string>(manifest.status());
  // Remains that cannot be removed now go at the next checkpoint. Report the first error.
  if (!name.ok()) (void)directory->Abandon();
  return name;
}

}  // namespace verbena::checkpoint
