// Plain data of checkpoints and restores of a shard's tables, between the engine and its caller.
//
// **Thread safety**: plain data. The memory of a piece stays unchanged, for any thread to read,
// until Checkpoints::Release().
#ifndef VERBENA_SHARD_CHECKPOINT_TYPES_H_
#define VERBENA_SHARD_CHECKPOINT_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "verbena/v1/table.pb.h"

namespace verbena::shard {

struct TableToCheckpoint {
  uint32_t table = 0;
  // sync: the state with exactly so many committed steps. Others: the current state; 0.
  uint64_t step = 0;
  // Embedding tables. 0: all rows. Otherwise the rows that changed since the checkpoint of this id,
  // in partitions where that is known; all rows in others.
  uint64_t base = 0;
  // Embedding tables: tracks changes from this checkpoint on, for one that is based on it. Costs a
  // bit a row, two while a checkpoint is in progress.
  bool track = false;
};

struct PartitionCheckpointRequest {
  uint64_t id = 0;  // not 0; of this cluster's saves
  std::vector<TableToCheckpoint> tables;
  // Memory limit in bytes of contents that change before they are written, and of rows that are
  // being written; one piece may exceed it. None: the size of the dense tables with their state, so
  // that no apply waits, plus kRowMemory.
  std::optional<uint64_t> memory_bytes = std::nullopt;
  static constexpr uint64_t kRowMemory = uint64_t{256} << 20;
  uint32_t piece_bytes = 1 << 20;  // rows of one piece, about
};

// How far a worker's pushes to a partition are in the checkpoint: completely up to this sequence,
// and none after it.
struct SavedPrefix {
  uint64_t worker = 0;  // incarnation
  uint64_t sequence = 0;
};

// Part of one partition of one table. The order within a partition: its chunks or rows, each once,
// then kEnd.
struct CheckpointPiece {
  enum class Kind : uint8_t {
    kChunk,
    kRows,
    kEnd,  // these were all. Without content
  };
  uint64_t id = 0;  // for Checkpoints::Release()
  Kind kind = Kind::kEnd;
  uint32_t table = 0;
  uint32_t partition = 0;
  uint64_t epoch = 0;
  // Number of applies, and of those in this generation of the job (sync: committed steps). kChunk:
  // of the chunk. kEnd of an embedding table: of the partition.
  uint64_t applies = 0;
  uint64_t version = 0;

  // kChunk
  uint32_t chunk = 0;          // of the table
  uint64_t first_element = 0;  // in the table
  // kRows
  absl::Span<const uint64_t> keys;
  absl::Span<const uint32_t> row_applies;  // how often each row was changed; 0: it was dropped

  // kChunk: elements. kRows: rows.
  uint32_t count = 0;
  // Encoded as for pulls: of the table's dtype.
  ElementType dtype = ElementType::kNone;
  absl::Span<const std::byte> parameters;
  // The optimizer's values, if they are not the parameters; else empty.
  absl::Span<const float> master;
  // The optimizer's arrays: as many numbers as there are parameters, or one a row.
  std::vector<absl::Span<const float>> state;

  // kEnd
  bool incremental = false;         // rows that have not changed since the base are left out
  uint32_t pieces = 0;              // before this one
  uint64_t items = 0;               // chunks or rows in them
  std::vector<SavedPrefix> prefix;  // async and ssp
  // The specification of the optimizer with the values of the next apply, and the number of changes
  // of values since the table was created; 0: it is the table's.
  v1::Optimizer optimizer;
  uint64_t optimizer_changes = 0;

  uint64_t bytes() const {
    uint64_t bytes = keys.size() * sizeof(uint64_t) + row_applies.size() * sizeof(uint32_t) +
                     parameters.size() + master.size() * sizeof(float);
    for (const auto& array : state) bytes += array.size() * sizeof(float);
    return bytes;
  }
};

struct CheckpointProgress {
  absl::Status status;   // why a partition of it was given up, first of all
  uint32_t slices = 0;   // partitions of tables
  uint32_t waiting = 0;  // of those: not at their step yet, in part at least
  uint32_t ended = 0;    // kEnd was taken
  uint32_t aborted = 0;  // given up
  uint32_t out = 0;      // pieces that were taken and not released
  uint64_t taken_bytes = 0;
  uint64_t memory_bytes = 0;  // in use
  uint64_t memory_limit = 0;  // that may be
  bool complete() const { return slices == ended && out == 0; }
};

// The initial state of a table that the view marks as being restored.
struct RestoreRequest {
  uint32_t table = 0;
  // The step that workers push next (sync), or the base of versions.
  uint64_t version = 0;
  // Embedding tables: the applies of each partition so far, which the schedule uses.
  uint64_t applies = 0;
};

// Elements of a dense table, independent of chunk boundaries. Elements of other shards are ignored.
struct ElementsToRestore {
  uint32_t table = 0;
  uint64_t first_element = 0;
  uint64_t count = 0;
  // f32, bf16 or f16, independent of the table's type; aligned for its numbers. 16-bit values are
  // widened for the optimizer, unless there is a master copy, which replaces them.
  ElementType dtype = ElementType::kF32;
  absl::Span<const std::byte> parameters;
  absl::Span<const float> master;  // or empty
  // `count` numbers of each of the optimizer's arrays; none: they stay zero.
  std::vector<absl::Span<const float>> state;
  // The applies of the chunk so far, which the schedule and the optimizer use; if several ranges
  // meet in a chunk, the greatest counts. 0 for parameters without state.
  uint64_t applies = 0;
};

struct RowsToRestore {
  uint32_t table = 0;
  uint64_t expected = 0;            // rows of the table, of all partitions; 0: nobody knows
  absl::Span<const uint64_t> keys;  // those that are not this shard's are left alone
  // How often each was changed, encoded as in proto/wire/row_applies.h. Empty: once with state,
  // kAppliesOfNewState without. 0: the row becomes one that was never pushed.
  absl::Span<const uint32_t> row_applies;
  ElementType dtype = ElementType::kF32;
  absl::Span<const std::byte> parameters;      // dim numbers a row, aligned
  std::vector<absl::Span<const float>> state;  // as a piece has them; none: zero
};

// How far a RowsToRestore is loaded. Restores::LoadRows() returns UNAVAILABLE where it cannot
// continue now, and continues from there in the next call with this. Each call that loads something
// makes progress, however little of a tiered table is in memory.
struct RowsLoaded {
  size_t rows = 0;          // those before are loaded
  size_t end = 0;           // of the batch that begins there: rows that may be in memory together
  uint32_t partitions = 0;  // of that batch: rows of partitions before are loaded
  size_t of_partition = 0;  // of that batch and of this partition: that many rows are loaded
};

struct RestoreProgress {
  uint64_t missing_elements = 0;  // here
  uint32_t unfinished = 0;        // partitions that FinishRestore() is to be called for (again)
  uint32_t behind = 0;            // partitions whose replicas do not have everything yet
  bool complete() const { return unfinished == 0 && behind == 0; }
};

struct CheckpointCounters {
  uint64_t saves = 0, committed = 0, aborted = 0;  // begun, and how they ended
  uint64_t pieces = 0, bytes = 0, chunks = 0, rows = 0;
  uint64_t kept_chunks = 0, kept_rows = 0;  // that were changed before they were saved
  uint64_t waits = 0;         // applies without memory for the contents that they would change
  uint64_t memory_bytes = 0;  // in use by all saves
  uint64_t restored_elements = 0, restored_rows = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_TYPES_H_
