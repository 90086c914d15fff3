// One checkpoint of some tables of this shard: its pieces, its memory, and its result.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Memory goes from applies to pieces and back. A holder of memory waits for nothing but the
//     release of a piece. So as long as pieces are taken and released, all applies proceed.
#ifndef VERBENA_SHARD_CHECKPOINT_PARTITION_CHECKPOINT_H_
#define VERBENA_SHARD_CHECKPOINT_PARTITION_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "shard/checkpoint/budget.h"
#include "shard/checkpoint/table_checkpoint.h"
#include "shard/checkpoint/types.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class PartitionCheckpoint {
 public:
  // `memory_bytes`: that of the request, or its default. The other arguments outlive it.
  PartitionCheckpoint(const PartitionCheckpointRequest& request, uint64_t memory_bytes,
                      BufferPool* pool, CheckpointCounters* counters);
  ~PartitionCheckpoint();
  PartitionCheckpoint(const PartitionCheckpoint&) = delete;
  PartitionCheckpoint& operator=(const PartitionCheckpoint&) = delete;

  CheckpointParts parts();
  // Adds a table with its slices.
  void Add(std::unique_ptr<TableCheckpoint> table);
  void Start();
  // Whether it still writes the table.
  bool PartitionCheckpoints(uint32_t table) const;

  // False: none now.
  bool Take(CheckpointPiece* piece);
  // False: no such piece is out.
  bool Release(uint64_t piece);

  // Gives up the table's slices for which `why` returns an error.
  using Why =
      absl::FunctionRef<absl::Status(uint32_t slice, const TableCheckpoint::LocalPartition& state)>;
  void Abort(uint32_t table, Why why);
  // The table is about to go; all its slices have ended or are given up.
  void Leave(uint32_t table);
  // No piece is taken any more.
  void End(bool committed);
  bool ended() const { return ended_; }
  // Whether the save has ended and none of its pieces is used any more.
  bool over() const { return ended_ && out_.empty(); }

  CheckpointProgress progress() const;

 private:
  struct Out {
    TableCheckpoint* table;
    HeldPiece held;
  };

  const PartitionCheckpointRequest request_;
  BufferPool& pool_;
  CheckpointCounters& counters_;
  CheckpointBudget budget_;
  std::vector<std::unique_ptr<TableCheckpoint>> tables_;
  absl::flat_hash_map<uint32_t, TableCheckpoint*> by_id_;
  size_t turn_ = 0;  // whose piece is next
  absl::flat_hash_map<uint64_t, Out> out_;
  uint64_t last_piece_ = 0;
  uint64_t taken_bytes_ = 0;
  bool ended_ = false;
  absl::Status status_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_PARTITION_CHECKPOINT_H_
