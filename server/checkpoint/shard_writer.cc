#include "server/checkpoint/shard_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::server {
namespace {

using checkpoint::ArraySpec;
using checkpoint::PlannedFile;

template <typename T>
absl::Span<const std::byte> BytesOf(absl::Span<const T> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

uint64_t TensorBytes(const v1::CheckpointTensor& tensor) {
  uint64_t bytes = checkpoint::BytesOf(*checkpoint::ParseType(tensor.dtype()));
  for (const uint64_t d : tensor.shape()) bytes *= d;
  return bytes;
}

}  // namespace

ShardWriter::ShardWriter(checkpoint::Disk* disk, ShardWriterOptions options,
                         std::vector<Table> tables)
    : disk_(disk), options_(std::move(options)), tables_(std::move(tables)) {
  for (const Table& table : tables_) by_id_.emplace(table.id, &table);
}

const ShardWriter::Table* ShardWriter::FindTable(uint32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

// ---- opening ------------------------------------------------------------------------------------

std::vector<PlannedFile> ShardWriter::PlanSlices() const {
  std::vector<PlannedFile> files;
  for (const Table& table : tables_) {
    if (table.spec.dim() > 0 || table.chunks.empty()) continue;
    for (v1::CheckpointTensor& tensor :
         checkpoint::PartitionTensors(table.spec, table.chunks, options_.writer)) {
      const uint64_t bytes = TensorBytes(tensor);
      if (files.empty() || files.back().bytes + bytes > options_.file_bytes) files.emplace_back();
      files.back().bytes += bytes;
      files.back().tensors.push_back(std::move(tensor));
    }
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].name = checkpoint::PartitionFileName(options_.writer, i + 1);
  }
  return files;
}

absl::Status ShardWriter::OpenFile(const PlannedFile& planned) {
  auto file = checkpoint::TensorFileWriter::Create(
      disk_, checkpoint::Join(options_.directory, planned.name), planned.tensors);
  if (!file.ok()) return file.status();
  for (size_t i = 0; i < planned.tensors.size(); ++i) {
    const v1::CheckpointTensor& tensor = planned.tensors[i];
    for (const Table& table : tables_) {
      if (table.spec.name() != tensor.table()) continue;
      const std::vector<ArraySpec> arrays = checkpoint::DenseArrays(table.spec);
      Dense& dense = dense_[table.id];
      dense.arrays.resize(arrays.size());
      for (size_t a = 0; a < arrays.size(); ++a) {
        if (arrays[a].name == tensor.array()) dense.arrays[a] = {file->get(), i};
      }
    }
  }
  files_.push_back(*std::move(file));
  return absl::OkStatus();
}

absl::Status ShardWriter::Open() {
  std::vector<PlannedFile> planned;
  if (options_.only_writer) {
    std::vector<v1::TableSpec> specs;
    for (const Table& table : tables_) specs.push_back(table.spec);
    planned = checkpoint::PlanDense(specs, options_.file_bytes, 1);
  } else {
    planned = PlanSlices();
  }
  for (const Table& table : tables_) {
    if (table.spec.dim() > 0) {
      Rows& rows = rows_[table.id];
      uint64_t row_bytes = 0;
      for (const ArraySpec& array : checkpoint::RowArrays(table.spec, 1)) {
        const size_t bytes =
            array.elements * checkpoint::BytesOf(*checkpoint::ParseType(array.dtype));
        rows.row_bytes.push_back(bytes);
        row_bytes += bytes;
      }
      rows.columns.resize(rows.row_bytes.size());
      rows.rows_a_file =
          std::max<uint64_t>(1, std::min(kRowBytes, options_.file_bytes) / row_bytes);
      continue;
    }
    if (table.chunks.empty()) continue;
    Dense& dense = dense_[table.id];
    for (uint32_t i = 0; i < table.chunks.size(); ++i) dense.block[table.chunks[i]] = i;
    dense.applies.resize(table.chunks.size());
  }
  for (const PlannedFile& file : planned) {
    if (status_ = OpenFile(file); !status_.ok()) return status_;
  }
  return absl::OkStatus();
}

// ---- pieces -------------------------------------------------------------------------------------

absl::Status ShardWriter::Write(const shard::CheckpointPiece& piece) {
  if (status_.ok()) status_ = WritePiece(piece);
  return status_;
}

absl::Status ShardWriter::WritePiece(const shard::CheckpointPiece& piece) {
  const Table* table = FindTable(piece.table);
  if (table == nullptr) {
    return absl::InternalError(
        absl::StrCat("a piece of table ", piece.table, ", not in this save"));
  }
  if (piece.kind == shard::CheckpointPiece::Kind::kEnd) {
    v1::WaitCheckpointResponse::Part* part = result_.add_parts();
    part->set_table(piece.table);
    part->set_partition(piece.partition);
    part->set_version(piece.version);
    part->set_applies(piece.applies);
    part->set_incremental(piece.incremental);
    if (table->spec.dim() > 0) part->set_rows(piece.items);
    if (piece.optimizer_changes > 0) *part->mutable_optimizer() = piece.optimizer;
    part->set_optimizer_changes(piece.optimizer_changes);
    return absl::OkStatus();
  }
  result_.set_written_bytes(result_.written_bytes() + piece.bytes());
  if (piece.kind == shard::CheckpointPiece::Kind::kRows) {
    return AddRows(*table, &rows_[table->id], piece);
  }
  return WriteChunk(&dense_[table->id], piece);
}

absl::Status ShardWriter::WriteChunk(Dense* dense, const shard::CheckpointPiece& piece) {
  const auto block = dense->block.find(piece.chunk);
  std::vector<absl::Span<const std::byte>> arrays = {piece.parameters};
  if (!piece.master.empty()) arrays.push_back(BytesOf(piece.master));
  for (const auto& state : piece.state) arrays.push_back(BytesOf(state));
  // Behind them the counts of applies, which are written in the end.
  if (block == dense->block.end() || arrays.size() + 1 != dense->arrays.size()) {
    return absl::InternalError(absl::StrCat("table ", piece.table, ": chunk ", piece.chunk, " of ",
                                            arrays.size(), " arrays, not as the files have it"));
  }
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Place& place = dense->arrays[i];
    absl::Status status = place.file->WriteBlock(place.tensor, block->second, arrays[i]);
    if (!status.ok()) return status;
  }
  dense->applies[block->second] = piece.applies;
  return absl::OkStatus();
}

absl::Status ShardWriter::AddRows(const Table& table, Rows* rows,
                                  const shard::CheckpointPiece& piece) {
  std::vector<absl::Span<const std::byte>> columns = {BytesOf(piece.keys), piece.parameters,
                                                      BytesOf(piece.row_applies)};
  for (const auto& state : piece.state) columns.push_back(BytesOf(state));
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns.size() == rows->columns.size() &&
        columns[i].size() == piece.count * rows->row_bytes[i]) {
      continue;
    }
    return absl::InternalError(absl::StrCat("table ", table.id, ": rows of ", columns.size(),
                                            " columns, not as the files have them"));
  }
  for (uint64_t first = 0; first < piece.count;) {
    const uint64_t n = std::min<uint64_t>(piece.count - first, rows->rows_a_file - rows->count);
    for (size_t i = 0; i < columns.size(); ++i) {
      const size_t bytes = rows->row_bytes[i];
      const auto from = columns[i].subspan(first * bytes, n * bytes);
      rows->columns[i].insert(rows->columns[i].end(), from.begin(), from.end());
    }
    rows->count += n;
    first += n;
    if (rows->count < rows->rows_a_file) continue;
    if (absl::Status status = FlushRows(table, rows); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ShardWriter::FlushRows(const Table& table, Rows* rows) {
  if (rows->count == 0) return absl::OkStatus();
  const std::string name = checkpoint::RowFileName(table.position, options_.writer, ++rows->files);
  auto file =
      checkpoint::TensorFileWriter::Create(disk_, checkpoint::Join(options_.directory, name),
                                           checkpoint::RowTensors(table.spec, rows->count));
  if (!file.ok()) return file.status();
  for (size_t i = 0; i < rows->columns.size(); ++i) {
    absl::Status status = (*file)->Append(i, rows->columns[i]);
    if (!status.ok()) return status;
    rows->columns[i].clear();
  }
  rows->count = 0;
  if (absl::Status status = FinishLast(rows); !status.ok()) return status;
  rows->last = *std::move(file);
  return absl::OkStatus();
}

absl::Status ShardWriter::FinishLast(Rows* rows) {
  if (rows->last == nullptr) return absl::OkStatus();
  auto finished = rows->last->Finish();
  if (!finished.ok()) return finished.status();
  *result_.add_files() = *std::move(finished);
  rows->last.reset();
  return absl::OkStatus();
}

// ---- the end ------------------------------------------------------------------------------------

absl::Status ShardWriter::FinishFiles() {
  for (const Table& table : tables_) {
    if (const auto rows = rows_.find(table.id); rows != rows_.end()) {
      if (absl::Status s = FlushRows(table, &rows->second); !s.ok()) return s;
      if (absl::Status s = FinishLast(&rows->second); !s.ok()) return s;
      rows->second.columns.clear();
      continue;
    }
    const auto dense = dense_.find(table.id);
    if (dense == dense_.end()) continue;
    const Place& place = dense->second.arrays.back();
    const absl::Span<const uint64_t> applies = dense->second.applies;
    if (absl::Status s = place.file->Append(place.tensor, BytesOf(applies)); !s.ok()) return s;
  }
  for (const auto& file : files_) {
    auto finished = file->Finish();
    if (!finished.ok()) return finished.status();
    *result_.add_files() = *std::move(finished);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::WaitCheckpointResponse> ShardWriter::Finish() {
  if (status_.ok()) status_ = FinishFiles();
  if (!status_.ok()) return status_;
  status_ = absl::FailedPreconditionError("this part of the checkpoint is finished");
  result_.set_done(true);
  return std::move(result_);
}

}  // namespace verbena::server
