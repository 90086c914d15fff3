// A tensor of a safetensors file with the parameters of a table, in the type that a worker writes.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_TABLE_TENSOR_H_
#define VERBENA_SERVER_CLI_VERBENA_TABLE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/safetensors.h"
#include "verbena/v1/table.pb.h"

namespace verbena::cli {

class TableTensor {
 public:
  // The tensor `name` of the file `path`, for a table: a dense one has the table's shape; rows of
  // an embedding table are [rows, dim]. Numbers are converted to the table's dtype (rows: f32).
  // INVALID_ARGUMENT: shape or type do not fit. NOT_FOUND: there is no such tensor; the message
  // lists the others. Else as SafetensorsReader::Open().
  static absl::StatusOr<TableTensor> Open(checkpoint::Disk* disk, const std::string& path,
                                          const std::string& name, const v1::TableSpec& spec);

  // Rows of an embedding table; 0 for a dense one.
  uint64_t rows() const { return rows_; }
  uint64_t elements() const { return elements_; }
  // The bytes of all elements, as Read() returns them.
  size_t bytes() const { return elements_ * checkpoint::BytesOf(to_); }
  // The name of its type in the file: "F32".
  const char* type_name() const { return checkpoint::TypeName(tensor_.type); }

  // Elements from `first` on, as many as `to` has room for. INVALID_ARGUMENT: a number is too large
  // for the table's dtype.
  absl::Status Read(uint64_t first, absl::Span<std::byte> to) const;
  // The keys of rows(): tensor `name` of the same file, of type I64 or U64; an empty name: 0, 1,
  // ...
  absl::StatusOr<std::vector<uint64_t>> ReadKeys(const std::string& name) const;

 private:
  TableTensor(checkpoint::SafetensorsReader file, const checkpoint::TensorInfo& tensor)
      : file_(std::move(file)), tensor_(tensor) {}

  checkpoint::SafetensorsReader file_;
  checkpoint::TensorInfo tensor_;
  checkpoint::TensorType to_ = checkpoint::TensorType::kF32;
  uint64_t rows_ = 0, elements_ = 0;
};

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TABLE_TENSOR_H_
