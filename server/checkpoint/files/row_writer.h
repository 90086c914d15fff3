// Writes the rows of an embedding table into as many files as they need.
//
// **Thread safety**: one thread an object.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_ROW_WRITER_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_ROW_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/tensor_file.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

class RowWriter {
 public:
  // `table`: the index of `spec` (normalised) in the manifest. `rows`: the number that this writer
  // will append: a file has its count at its beginning.
  RowWriter(Disk* disk, std::string directory, v1::TableSpec spec, size_t table, size_t writer,
            uint64_t rows, uint64_t file_bytes = kDefaultFileBytes);

  // `columns`: the arrays of RowArrays(), keys first, of `count` rows. INVALID_ARGUMENT: another
  // number or size of columns, or more rows than announced.
  absl::Status Append(uint64_t count, absl::Span<const absl::Span<const std::byte>> columns);
  uint64_t appended() const { return appended_; }
  // FAILED_PRECONDITION: fewer rows came than announced. The files are durable except for their
  // names.
  absl::StatusOr<std::vector<v1::CheckpointFile>> Finish();

 private:
  absl::Status Next();
  absl::Status FinishFile();

  Disk* const disk_;
  const std::string directory_;
  const v1::TableSpec spec_;
  const size_t table_, writer_;
  const uint64_t rows_, rows_a_file_;
  std::vector<size_t> row_bytes_;  // by column
  uint64_t appended_ = 0;
  uint64_t left_in_file_ = 0;
  std::unique_ptr<TensorFileWriter> file_;
  std::vector<v1::CheckpointFile> files_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_ROW_WRITER_H_
