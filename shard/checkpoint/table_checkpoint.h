// One table's part in a checkpoint: the common part of dense and embedding tables.
//
// **Thread safety**: one owner thread.
//
// A slice is
//     none                                     the table has nothing there, or it is not ours
//     waiting  --(it is at its step)-->  open  (of a sync table; of others it is open at once)
//     open  --(its last chunk or row is taken)-->  taken  --(kEnd is taken)-->  ended
//     waiting, open, taken  --(given up)-->  aborted
//
// Invariants:
//  1. A piece has the contents at the time when the slice (in a dense table: the chunk) became
//     open, whatever is applied meanwhile. This also holds for a slice that is given up, until its
//     pieces are released.
//  2. A chunk or row of an open slice is in exactly one piece; none is once the slice is given up.
#ifndef VERBENA_SHARD_CHECKPOINT_TABLE_CHECKPOINT_H_
#define VERBENA_SHARD_CHECKPOINT_TABLE_CHECKPOINT_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "shard/checkpoint/budget.h"
#include "shard/checkpoint/types.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/partitioned_table.h"

namespace verbena::shard {

// The objects that a table's checkpoint uses; all outlive it.
struct CheckpointParts {
  uint64_t save = 0;
  uint32_t piece_bytes = 0;
  BufferPool* pool = nullptr;
  CheckpointBudget* budget = nullptr;
  CheckpointCounters* counters = nullptr;
};

// The state of a piece that is in flight.
struct HeldPiece {
  uint32_t chunk = BufferPool::kNone;  // of a dense table, by its local index
  Buffer rows;
};

class TableCheckpoint {
 public:
  enum class State : uint8_t { kNone, kWaiting, kOpen, kTaken, kEnded, kAborted };
  struct LocalPartition {
    State state = State::kNone;
    uint32_t partition = 0;
    uint64_t epoch = 0;
    uint64_t version = 0, applies = 0;  // of an embedding table
    bool incremental = false;
    uint32_t pieces = 0;
    uint64_t items = 0;
    std::vector<SavedPrefix> prefix;
    v1::Optimizer optimizer;
    uint64_t optimizer_changes = 0;
  };

  virtual ~TableCheckpoint() = default;
  TableCheckpoint(const TableCheckpoint&) = delete;
  TableCheckpoint& operator=(const TableCheckpoint&) = delete;

  uint32_t table() const { return table_; }
  const std::vector<LocalPartition>& slices() const { return slices_; }

  // Before Start(): this shard has the slice.
  void AddLocalPartition(uint32_t slice, uint32_t partition, uint64_t epoch,
                         std::vector<SavedPrefix> prefix);
  // The current contents are those to write.
  virtual void Start() = 0;
  // The next piece, but for its id. False: none now.
  bool Take(CheckpointPiece* piece, HeldPiece* held);
  // The piece is not read any more.
  virtual void Release(const HeldPiece& held) = 0;
  // Gives up a slice that has not ended. False: there is nothing to give up.
  bool Abort(uint32_t slice);
  // The table is about to go; all slices have ended or are given up.
  virtual void Leave() = 0;
  // No further piece is taken. Slices that were not committed cannot be a base.
  virtual void End(bool committed) = 0;

 protected:
  TableCheckpoint(uint32_t table, const CheckpointParts& parts) : parts_(parts), table_(table) {}

  virtual bool TakeContent(CheckpointPiece* piece, HeldPiece* held) = 0;
  // Drops the kept contents of a slice that is given up.
  virtual void Drop(uint32_t slice) = 0;

  LocalPartition& at(uint32_t slice) { return slices_[slice]; }
  bool has(uint32_t slice, State state) const {
    return slice < slices_.size() && slices_[slice].state == state;
  }
  // All of the slice is at the state to write.
  void Open(uint32_t slice, const PartitionedTable& table, uint64_t step) {
    LocalPartition& s = slices_[slice];
    s.state = State::kOpen;
    s.optimizer = table.optimizer().SpecAt(slice, step, &s.optimizer_changes);
  }
  // A piece of the slice, with `items` chunks or rows, is taken.
  void Fill(uint32_t slice, uint64_t items, CheckpointPiece* piece);
  // All of an open slice is taken.
  void ContentTaken(uint32_t slice);

  const CheckpointParts parts_;

 private:
  const uint32_t table_;
  std::vector<LocalPartition> slices_;  // by slice index; later ones are none
  std::deque<uint32_t> taken_;          // slices whose kEnd is next
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_TABLE_CHECKPOINT_H_
