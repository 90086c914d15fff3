// Writes a safetensors file of a checkpoint, and describes it; checks and reads one.
//
// **Thread safety**: one thread an object.
//
// Invariants:
//  1. A file for which Finish() returned OK has every byte of every tensor, once, and is durable
//     except for its name. Any other file is useless: its directory is removed.
//  2. Tensors are written in blocks, in any order, so that a chunk goes to its place when it comes.
//  3. A tensor is read by its description in the manifest only if the file's own header equals it.
//     TensorCursor returns a byte only after it has compared the checksum of its block. Any
//     different bit gives DATA_LOSS, with file, tensor and offset.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_FILE_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_FILE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/checkpoint/files/checksum.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/safetensors.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

class TensorFileWriter {
 public:
  // `tensors`: name, table, array, dtype, shape, ranges and, if it is not 1 MiB, block_bytes: a
  // multiple of the element's size. Checksums are filled in here. Types of more bytes are put first
  // in the file. `reserve`: checks now whether there is room.
  static absl::StatusOr<std::unique_ptr<TensorFileWriter>> Create(
      Disk* disk, const std::string& path, std::vector<v1::CheckpointTensor> tensors,
      bool reserve = true);

  // `tensor`: its index in the argument of Create(). INVALID_ARGUMENT: no such block, not its size,
  // or one that has been written.
  absl::Status WriteBlock(size_t tensor, uint64_t block, absl::Span<const std::byte> bytes);
  // Appends bytes of any size to a tensor; not for one that WriteBlock() is called for.
  absl::Status Append(size_t tensor, absl::Span<const std::byte> bytes);
  uint64_t written_bytes() const { return written_; }
  uint64_t file_bytes() const { return data_start_ + data_bytes_; }

  // FAILED_PRECONDITION names a tensor that is not complete. Otherwise it is durable, and closed.
  absl::StatusOr<v1::CheckpointFile> Finish();

 private:
  struct Tensor {
    v1::CheckpointTensor entry;
    uint64_t begin = 0, bytes = 0;
    BlockHashes hashes{0, 1};
    uint64_t next_block = 0;         // of Append()
    std::vector<std::byte> partial;  // of the block next_block
  };
  TensorFileWriter() = default;

  std::string path_;
  std::string head_;
  std::vector<Tensor> tensors_;  // as given
  std::vector<size_t> order_;    // in the file
  uint64_t data_start_ = 0, data_bytes_ = 0, written_ = 0;
  uint64_t begun_ = 0;  // of written_: write-back has started up to here
  std::unique_ptr<WritableFile> file_;
};

// Opens the file of `entry` in `directory`. Checks its size, its header's checksum, and that the
// header's tensors equal those of `entry`.
absl::StatusOr<SafetensorsReader> OpenTensorFile(Disk* disk, const std::string& directory,
                                                 const v1::CheckpointFile& entry);

// Reads a tensor, or parts of it, and verifies each block that it reads before it returns bytes of
// it. A tensor without checksums of blocks (format version 1) is read and verified whole by Open().
// Memory: the block that was read last. File and entry outlive it.
class TensorCursor {
 public:
  static absl::StatusOr<TensorCursor> Open(const SafetensorsReader& file,
                                           const v1::CheckpointTensor& entry);
  const TensorInfo& tensor() const { return *tensor_; }
  uint64_t at() const { return at_; }
  uint64_t left() const { return tensor_->bytes() - at_; }
  // The next bytes. OUT_OF_RANGE: there are fewer. DATA_LOSS: they differ from the written ones.
  absl::Status Read(absl::Span<std::byte> to);
  // Reads from `offset`; Read() continues after these bytes.
  absl::Status ReadAt(uint64_t offset, absl::Span<std::byte> to);

 private:
  static constexpr uint64_t kNoBlock = UINT64_MAX;

  TensorCursor(const SafetensorsReader* file, const v1::CheckpointTensor* entry,
               const TensorInfo* tensor);
  // The hashes of the blocks, from the manifest or from the file.
  absl::Status FindHashes();
  uint64_t BytesOf(uint64_t block) const;
  // Reads a block whole, and compares its checksum.
  absl::Status ReadBlock(uint64_t block, absl::Span<std::byte> to) const;

  const SafetensorsReader* file_;
  const v1::CheckpointTensor* entry_;
  const TensorInfo* tensor_;
  uint64_t at_ = 0;
  std::vector<uint64_t> hashes_;
  uint64_t last_block_ = kNoBlock;
  std::vector<std::byte> last_;  // that block
};

// Calls `take` with the tensor's bytes in order, in pieces that are multiples of 64 bytes except
// for the last. Each piece is verified first. An error of `take` ends it.
using TakeBytes = std::function<absl::Status(uint64_t offset, absl::Span<const std::byte> bytes)>;
absl::Status ReadChecked(const SafetensorsReader& file, const v1::CheckpointTensor& entry,
                         const TakeBytes& take);

// The content of a file that is no safetensors file.
absl::StatusOr<std::string> ReadPlainFile(Disk* disk, const std::string& directory,
                                          const v1::CheckpointFile& entry);
// Writes such a file, durable except for its name.
absl::StatusOr<v1::CheckpointFile> WritePlainFile(Disk* disk, const std::string& directory,
                                                  const std::string& name,
                                                  const std::string& content);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_TENSOR_FILE_H_
