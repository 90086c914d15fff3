// A dense table's part in a checkpoint: each chunk as it is when it is due.
//
// A chunk is due when it is at the table's step (sync), or when the checkpoint begins. A chunk that
// no apply changes is not copied: its buffers are pinned while they are written. An earlier apply
// goes to buffers lent for it, out of place. The old contents are kept, pinned, until their piece
// is released.
//
// **Thread safety**: one owner thread.
//
// A chunk is
//     none      not on this shard, no longer to be written, or already written
//     waiting  --(it is at its step)-->  due
//     due  --(an apply)-->  kept  --(taken)-->  out  --(released)-->  none
//     due  --(taken)-->  out
//     due  --(an apply, and no memory)-->  due, urgent: the apply waits
//     due, kept, waiting  --(the slice is given up)-->  none
// An apply to a chunk that is out, and unchanged since, is handled like one to a due chunk.
#ifndef VERBENA_SHARD_CHECKPOINT_CHUNK_CHECKPOINT_H_
#define VERBENA_SHARD_CHECKPOINT_CHUNK_CHECKPOINT_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "shard/checkpoint/table_checkpoint.h"
#include "shard/table/dense_table.h"
#include "shard/table/watch.h"

namespace verbena::shard {

class ChunkCheckpoint final : public TableCheckpoint, public PreUpdateHook {
 public:
  // The table outlives it, or Leave() is called first.
  ChunkCheckpoint(DenseTable* table, const TableToCheckpoint& what, const CheckpointParts& parts);
  ~ChunkCheckpoint() override;

  void Start() override;
  void Release(const HeldPiece& held) override;
  void Leave() override;
  void End(bool) override {}

  bool BeforeChange(uint32_t chunk, bool content, bool force, ChunkSpares* spares) override;
  void Changed(uint32_t chunk) override;

 protected:
  bool TakeContent(CheckpointPiece* piece, HeldPiece* held) override;
  void Drop(uint32_t slice) override;

 private:
  enum class State : uint8_t { kNone, kWaiting, kDue, kKept, kOut };
  struct Record {
    State state = State::kNone;
    bool waited = false;  // an apply found no memory to keep it
    bool kept = false;    // the contents to write differ from the table's by now
    uint32_t slice = 0;
    // At the time when it was due; the pins since it was kept or taken.
    uint64_t version = 0, applies = 0;
    uint32_t parameters = BufferPool::kNone;
    uint32_t optimizer = BufferPool::kNone;
    uint64_t parameters_pin = 0, optimizer_pin = 0;
    uint64_t bytes = 0;  // taken of the budget, if it is kept
  };

  void SetDue(uint32_t chunk);
  void Pin(uint32_t chunk);
  void Unpin(Record* record);
  bool Lend(uint32_t chunk, ChunkSpares* spares);
  bool Next(std::deque<uint32_t>* queue, State state, uint32_t* chunk);

  DenseTable* table_;  // null: it is gone
  const bool sync_;
  const uint64_t step_;
  std::vector<Record> records_;               // by local chunk; later ones are none
  std::vector<uint32_t> untaken_;             // chunks by slice
  std::deque<uint32_t> urgent_, kept_, due_;  // with entries that are that no more
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_CHUNK_CHECKPOINT_H_
