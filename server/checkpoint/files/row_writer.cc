#include "server/checkpoint/files/row_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/spec/spec_text.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {

RowWriter::RowWriter(Disk* disk, std::string directory, v1::TableSpec spec, size_t table,
                     size_t writer, uint64_t rows, uint64_t file_bytes)
    : disk_(disk),
      directory_(std::move(directory)),
      spec_(std::move(spec)),
      table_(table),
      writer_(writer),
      rows_(rows),
      rows_a_file_(RowsInFile(spec_, file_bytes)) {
  for (const ArraySpec& array : RowArrays(spec_, 1)) {
    row_bytes_.push_back(array.elements * BytesOf(*ParseType(array.dtype)));
  }
}

absl::Status RowWriter::Next() {
  if (absl::Status status = FinishFile(); !status.ok()) return status;
  left_in_file_ = std::min(rows_a_file_, rows_ - appended_);
  const std::string path = Join(directory_, RowFileName(table_, writer_, files_.size() + 1));
  absl::StatusOr<std::unique_ptr<TensorFileWriter>> file =
      TensorFileWriter::Create(disk_, path, RowTensors(spec_, left_in_file_));
  if (!file.ok()) return file.status();
  file_ = *std::move(file);
  return absl::OkStatus();
}

absl::Status RowWriter::FinishFile() {
  if (file_ == nullptr) return absl::OkStatus();
  absl::StatusOr<v1::CheckpointFile> entry = file_->Finish();
  if (!entry.ok()) return entry.status();
  files_.push_back(*std::move(entry));
  file_.reset();
  return absl::OkStatus();
}

absl::Status RowWriter::Append(uint64_t count,
                               absl::Span<const absl::Span<const std::byte>> columns) {
  bool good = columns.size() == row_bytes_.size() && count <= rows_ - appended_;
  for (size_t c = 0; good && c < columns.size(); ++c) {
    good = columns[c].size() == count * row_bytes_[c];
  }
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", Quoted(spec_.name()), ": ", count, " rows of ", columns.size(),
                     " columns; allowed: ", row_bytes_.size(), " columns, whole rows, and ",
                     rows_ - appended_, " rows"));
  }
  for (uint64_t at = 0; at < count;) {
    if (left_in_file_ == 0) {
      if (absl::Status status = Next(); !status.ok()) return status;
    }
    const uint64_t rows = std::min(left_in_file_, count - at);
    for (size_t c = 0; c < columns.size(); ++c) {
      const absl::Status status =
          file_->Append(c, columns[c].subspan(at * row_bytes_[c], rows * row_bytes_[c]));
      if (!status.ok()) return status;
    }
    at += rows;
    appended_ += rows;
    left_in_file_ -= rows;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::CheckpointFile>> RowWriter::Finish() {
  if (appended_ != rows_) {
    return absl::FailedPreconditionError(
        absl::StrCat("table ", Quoted(spec_.name()), ": ", appended_, " rows came of ", rows_));
  }
  if (absl::Status status = FinishFile(); !status.ok()) return status;
  return files_;
}

}  // namespace verbena::checkpoint
