// Writes one shard's part of a checkpoint to files: takes the engine's pieces, in any order, and
// lists the files and their contents at the end.
//
// Chunks go to their place in a file when they come. The number of rows is not known, but a file
// has its count at the beginning. So rows are gathered in memory, and written whenever there are
// enough for a file.
//
// **Thread safety**: one thread at a time.
//
// Invariants:
//  1. Memory: kRowBytes of rows for one table at a time and each table that has unfinished rows.
//  2. After an error nothing more is written, and Finish() gives the same error.
#ifndef VERBENA_SERVER_CHECKPOINT_SHARD_WRITER_H_
#define VERBENA_SERVER_CHECKPOINT_SHARD_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/layout.h"
#include "server/checkpoint/files/tensor_file.h"
#include "shard/checkpoint/types.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

struct ShardWriterOptions {
  std::string directory;
  uint32_t writer = 0;       // of the checkpoint's writers
  bool only_writer = false;  // then dense tables are whole, and not in slices
  uint64_t file_bytes = checkpoint::kDefaultFileBytes;
};

class ShardWriter {
 public:
  // Bytes of rows that are gathered before they are written: large writes, and few files.
  static constexpr uint64_t kRowBytes = uint64_t{64} << 20;

  struct Table {
    uint32_t id = 0;
    uint32_t position = 0;         // in the manifest
    v1::TableSpec spec;            // normalised
    std::vector<uint32_t> chunks;  // of a dense table: those of this shard, growing
  };

  ShardWriter(checkpoint::Disk* disk, ShardWriterOptions options, std::vector<Table> tables);

  // Before the first piece: makes the files of dense tables, so that a full disk is found now.
  absl::Status Open();
  absl::Status Write(const shard::CheckpointPiece& piece);
  // The files are durable except for their names.
  absl::StatusOr<v1::WaitCheckpointResponse> Finish();

 private:
  // Where an array of a dense table goes.
  struct Place {
    checkpoint::TensorFileWriter* file = nullptr;
    size_t tensor = 0;
  };
  struct Dense {
    std::vector<Place> arrays;                      // as DenseArrays()
    absl::flat_hash_map<uint32_t, uint32_t> block;  // of a chunk
    std::vector<uint64_t> applies;                  // of its chunks
  };
  struct Rows {
    std::vector<size_t> row_bytes;                // by column
    std::vector<std::vector<std::byte>> columns;  // as RowArrays()
    uint64_t count = 0;
    uint64_t rows_a_file = 0;
    size_t files = 0;
    // Written but not known to be durable: the disk has time until the next file is written.
    std::unique_ptr<checkpoint::TensorFileWriter> last;
  };

  std::vector<checkpoint::PlannedFile> PlanSlices() const;
  absl::Status OpenFile(const checkpoint::PlannedFile& planned);
  absl::Status WritePiece(const shard::CheckpointPiece& piece);
  absl::Status WriteChunk(Dense* dense, const shard::CheckpointPiece& piece);
  absl::Status AddRows(const Table& table, Rows* rows, const shard::CheckpointPiece& piece);
  absl::Status FlushRows(const Table& table, Rows* rows);
  absl::Status FinishLast(Rows* rows);
  absl::Status FinishFiles();
  const Table* FindTable(uint32_t id) const;

  checkpoint::Disk* const disk_;
  const ShardWriterOptions options_;
  const std::vector<Table> tables_;
  absl::flat_hash_map<uint32_t, const Table*> by_id_;
  std::vector<std::unique_ptr<checkpoint::TensorFileWriter>> files_;
  absl::flat_hash_map<uint32_t, Dense> dense_;
  absl::flat_hash_map<uint32_t, Rows> rows_;
  v1::WaitCheckpointResponse result_;
  absl::Status status_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_SHARD_WRITER_H_
