// Restores: loads a checkpoint into tables that are not served yet.
//
// For a table that the view marks as being restored. Its workers are answered kNotReady until the
// view changes that, when every shard's progress is complete. Parts that are not finished here by
// then are lost (kDataLoss). A partition that has moved has to be loaded again as a whole. Replicas
// receive the loaded data.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_CHECKPOINT_RESTORES_H_
#define VERBENA_SHARD_CHECKPOINT_RESTORES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "shard/checkpoint/types.h"

namespace verbena::shard {

struct EngineCore;
struct TableState;

class Restores {
 public:
  explicit Restores(EngineCore* core) : core_(*core) {}

  // Errors of all: NOT_FOUND: unknown table. FAILED_PRECONDITION: it is not being restored, or its
  // restore has not begun, or has begun with other arguments.
  absl::Status Begin(const RestoreRequest& request);
  // Errors of loading: INVALID_ARGUMENT: not of the table's shape. RESOURCE_EXHAUSTED: no memory
  // for rows. UNAVAILABLE: replicas, or writes of cold rows, lag behind; retry. Rows continue at
  // `loaded`, which begins as RowsLoaded(). Without it, a call after a failed one loads all of its
  // rows again.
  absl::Status LoadElements(const ElementsToRestore& elements);
  absl::Status LoadRows(const RowsToRestore& rows, RowsLoaded* loaded = nullptr);
  // All that is this shard's was loaded. FAILED_PRECONDITION also: something is missing. May be
  // called again.
  absl::Status Finish(uint32_t table);
  absl::StatusOr<RestoreProgress> progress(uint32_t table) const;

  // ---- for the engine's parts ----
  // By the view being applied, in which the restore is complete.
  void End(TableState* state);

 private:
  absl::Status FindRestoring(uint32_t table, TableState** state) const;
  // Loads elements first.. of a chunk from elements from.. of `elements`. False: no memory for the
  // replica's record.
  bool LoadChunk(const ElementsToRestore& elements, TableState* state, uint32_t index,
                 uint32_t first, uint32_t count, uint64_t from);
  // A batch of rows, partition by partition.
  absl::Status LoadBatch(const RowsToRestore& rows, TableState* state, RowsLoaded* at);
  // Rows of one partition, at most those of one record for its replicas.
  absl::Status LoadPartition(const RowsToRestore& rows, TableState* state, uint32_t partition,
                             absl::Span<const uint32_t> which);
  bool ReplicateLoaded(uint32_t partition, const TableState& state, uint32_t index);
  bool ReplicateLoadedRows(uint32_t partition, const TableState& state, uint32_t slice,
                           absl::Span<const uint32_t> rows);
  // False: no memory for the replicas' records.
  bool FinishLocalPartition(TableState* state, uint32_t slice);

  EngineCore& core_;
  struct {
    std::vector<std::vector<uint32_t>> which;  // by partition: places of its rows
    std::vector<uint32_t> partitions;          // those that have some
    std::vector<uint64_t> keys;
    std::vector<uint32_t> numbers;
  } scratch_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_RESTORES_H_
