// The checkpoints in progress on this shard: the slices of a table that they contain, and events
// that end them early.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_CHECKPOINT_CHECKPOINTS_H_
#define VERBENA_SHARD_CHECKPOINT_CHECKPOINTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/view_difference.h"
#include "shard/checkpoint/partition_checkpoint.h"
#include "shard/checkpoint/types.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

struct EngineCore;

class Checkpoints {
 public:
  explicit Checkpoints(EngineCore* core) : core_(*core) {}

  // Begins a checkpoint of the given tables, for partitions whose primary this shard is.
  // OUT_OF_RANGE: a sync table is past its step. *newest gets, also after success, the step of each
  // table's farthest slice, 0 for tables that are not sync. A slice that is not at its step yet is
  // saved when it is, before it changes again. FAILED_PRECONDITION: a table has lost partitions,
  // has no memory for some, or is in another checkpoint. NOT_FOUND: unknown table.
  // INVALID_ARGUMENT: id or tables. After an error nothing has begun.
  absl::Status Begin(const PartitionCheckpointRequest& request, std::vector<uint64_t>* newest);
  // Whether a worker has contributed to a step of the table, in a partition whose primary this
  // shard is, that is not committed.
  bool HasOpenStep(uint32_t table) const;
  // Takes the next piece. False: none now; there may be later unless progress is complete or
  // aborted. Go on to take and release pieces whatever else is waited for, because applies may wait
  // for them.
  bool Take(uint64_t save, CheckpointPiece* piece);
  // Call when the piece is not read any more, also for a save that has ended. Events may follow.
  void Release(uint64_t save, uint64_t piece);
  // NOT_FOUND: no such save, or it has ended. A new epoch, another primary, the end of a table or
  // of its job's generation give up the partitions that have not been taken whole.
  absl::StatusOr<CheckpointProgress> progress(uint64_t save) const;
  // The pieces taken are durable, and may be the base of other checkpoints.
  void Commit(uint64_t save);
  // Drops pieces that were not taken. Pieces in flight still have to be released.
  void Abort(uint64_t save);
  const CheckpointCounters& counters() const { return counters_; }

  // ---- for the engine's parts ----
  CheckpointCounters& counters() { return counters_; }
  // By the view being applied, before tables follow it.
  void FollowView(const v1::ClusterView& view, const ViewDifference& what);
  void AbortTable(uint32_t table, const absl::Status& why);
  void AbortPartition(uint32_t table, uint32_t partition, const absl::Status& why);

 private:
  void FollowTable(uint32_t table, const v1::Table* now);
  absl::Status CheckCheckpoint(const PartitionCheckpointRequest& request) const;
  absl::Status CheckSaved(const TableToCheckpoint& what, uint64_t* newest) const;
  // Memory for a checkpoint whose request does not set it.
  uint64_t CheckpointMemory(const PartitionCheckpointRequest& request) const;
  void AddToCheckpoint(const TableToCheckpoint& what, PartitionCheckpoint* save);
  void End(uint64_t save, bool committed);

  EngineCore& core_;
  CheckpointCounters counters_;
  std::map<uint64_t, std::unique_ptr<PartitionCheckpoint>> saves_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_CHECKPOINTS_H_
