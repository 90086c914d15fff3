// Reads any part of a dense table's array, across its pieces: for readers that combine slices.
//
// Each block of a tensor is verified before bytes of it are returned (TensorCursor).
//
// **Thread safety**: one thread an object.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_ARRAY_READER_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_ARRAY_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/safetensors.h"
#include "server/checkpoint/files/tensor_file.h"
#include "server/checkpoint/files/tensor_type.h"

namespace verbena::checkpoint {

class ArrayReader {
 public:
  // Opens the array's files and checks that their headers match the manifest. NOT_FOUND: there is
  // no such array. The checkpoint outlives it.
  static absl::StatusOr<ArrayReader> Open(const CheckpointReader& checkpoint,
                                          const std::string& table, const std::string& array);

  TensorType type() const { return type_; }
  uint64_t elements() const { return elements_; }
  // Reads elements from `first` on, as many as fit into `to`. OUT_OF_RANGE: there are fewer.
  absl::Status Read(uint64_t first, absl::Span<std::byte> to);

 private:
  struct Piece {
    uint64_t first = 0, count = 0;  // elements of the array
    size_t tensor = 0;              // of cursors_
    uint64_t at = 0;                // element of the tensor
  };
  ArrayReader() = default;

  std::string what_;
  TensorType type_ = TensorType::kF32;
  uint64_t elements_ = 0;
  std::vector<Piece> pieces_;  // by `first`; without holes
  // Cursors refer to files, and to entries of the checkpoint's manifest, which outlives this.
  std::vector<std::shared_ptr<const SafetensorsReader>> files_;
  std::vector<TensorCursor> cursors_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_ARRAY_READER_H_
