// A table on this shard, with the parts that it consists of; and a partition as the view has it.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_STATE_H_
#define VERBENA_SHARD_TABLE_STATE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "shard/checkpoint/restore.h"
#include "shard/engine.h"
#include "shard/partition/deferred_lookups.h"
#include "shard/partition/deferred_pulls.h"
#include "shard/partition/dense_consistency.h"
#include "shard/partition/row_consistency.h"
#include "shard/table/dense_table.h"
#include "shard/table/embedding_table.h"
#include "shard/view/jobs.h"

namespace verbena::shard {

// A partition in the last view.
struct PartitionInfo {
  uint64_t epoch = 0;
  bool ours = false;   // this shard is the primary
  bool copy = false;   // it is a follower or a learner
  uint64_t since = 0;  // which it is since that configuration
  CopyId primary;
  bool enough = true;  // there are as many replicas as a push has to have
  bool moves = false;  // its learner is of a planned move
  // By the view being applied:
  bool epoch_changed = false;
  bool promoted = false;  // from a copy to the primary
  // It is the primary without having been promoted: its content was lost, and reset since, in views
  // that this shard has not seen.
  bool renewed = false;
  bool stale = false;  // the content here is outdated: from a time as primary or learner
};

// Facts about a slice of a replica that its table does not hold.
struct CopyMarks {
  uint32_t generation = 0;  // of the job, as of the last record
  std::map<uint64_t, WorkerMark> workers;
};

struct DenseState {
  std::unique_ptr<DenseTable> table;
  std::unique_ptr<DeferredPulls> parking;
  std::unique_ptr<DenseConsistency> consistency;
};
struct RowState {
  std::unique_ptr<EmbeddingTable> table;
  std::unique_ptr<DeferredLookups> parking;
  std::unique_ptr<RowConsistency> consistency;
};

struct TableState {
  // One of the two, or none: the specification cannot be served here; the table answers
  // kUnavailable.
  DenseState dense;
  RowState rows;
  // The parts of that one.
  PartitionedTable* table = nullptr;
  DeferredRequests* parking = nullptr;
  Consistency* consistency = nullptr;
  JobState* job = nullptr;
  std::map<uint32_t, CopyMarks> marks;  // by partition: those that are replicas
  std::vector<Placement> placement;     // by partition
  std::vector<uint32_t> lost;           // partitions, as the last view has them
  bool starved = false;                 // slices that are not ready lack memory
  absl::Status unserved;                // not OK: why the last view could not be followed
  bool lacks_cold_store = false;        // it cannot be served here, but elsewhere
  std::unique_ptr<Restore> restore;     // null: it is not being restored

  // Its slice of the partition if that is ready, else kNone.
  uint32_t ReadySlice(uint32_t partition) const {
    const uint32_t slice = table == nullptr ? PartitionedTable::kNone : table->slice_of(partition);
    return slice == PartitionedTable::kNone || !table->ready(slice) ? PartitionedTable::kNone
                                                                    : slice;
  }
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_STATE_H_
