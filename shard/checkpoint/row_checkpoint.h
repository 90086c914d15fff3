// An embedding table's part in a checkpoint: the rows of each slice as they are when it becomes
// open.
//
// A cursor goes through a slice's rows and packs them into pieces. A row ahead of the cursor that
// an apply is about to change is kept first: packed into a piece of its slice, of at most
// kKeptBytes. Rows that were created and never changed are not written: they have their initial
// values. An incremental checkpoint first lists the rows that were dropped since its base: their
// count of applies is 0.
//
// In addition to the checkpoint's memory this takes a bit for each row of open slices: whether it
// is kept.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_CHECKPOINT_ROW_CHECKPOINT_H_
#define VERBENA_SHARD_CHECKPOINT_ROW_CHECKPOINT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "shard/checkpoint/table_checkpoint.h"
#include "shard/table/changed_rows.h"
#include "shard/table/embedding_table.h"
#include "shard/table/watch.h"

namespace verbena::shard {

class RowCheckpoint final : public TableCheckpoint, public RowWatch {
 public:
  // Small, because each slice may have one that is not full.
  static constexpr uint64_t kKeptBytes = 16 << 10;

  // The table outlives it, or Leave() is called first.
  RowCheckpoint(EmbeddingTable* table, const TableToCheckpoint& what, const CheckpointParts& parts);
  ~RowCheckpoint() override;

  void Start() override;
  void Release(const HeldPiece& held) override;
  void Leave() override;
  void End(bool committed) override;

  bool BeforeChange(uint32_t slice, absl::Span<const uint32_t> rows) override;
  void Changed(uint32_t slice) override;

 protected:
  bool TakeContent(CheckpointPiece* piece, HeldPiece* held) override;
  void Drop(uint32_t slice) override;

 private:
  // Rows side by side: keys, counts of applies, parameters, arrays of state; room for `capacity`.
  struct Packed {
    Buffer buffer;
    uint32_t slice = 0;
    uint32_t rows = 0;
    uint32_t capacity = 0;
  };
  struct LocalPartitionRows {
    uint32_t rows = 0;              // when it became open
    uint32_t cursor = 0;            // rows below are taken, unless they are not to be
    std::vector<uint64_t> dropped;  // keys, to be taken before rows
    uint32_t packed = 0;            // pieces of kept_
    bool tracks = false;            // the table tracks changes from this checkpoint on
    Packed open;                    // rows that are kept, not in kept_ yet
    std::unique_ptr<ChangedRows> kept;
    std::unique_ptr<ChangedRows> base;  // changes since the previous checkpoint
  };

  void SetDue(uint32_t slice);
  // All remaining rows are kept already.
  bool AtEnd(uint32_t slice) const {
    return rows_[slice].cursor == rows_[slice].rows && rows_[slice].dropped.empty();
  }
  bool ToCheckpoint(const LocalPartitionRows& s, uint32_t slice, uint32_t row) const;
  bool Keep(uint32_t slice, uint32_t row, const std::byte* content);
  bool NewPacked(uint32_t slice, uint32_t capacity, Packed* packed);
  // `content`: from a RowReader.
  void Add(uint32_t row, const std::byte* content, Packed* packed) const;
  void AddDropped(uint64_t key, Packed* packed) const;
  std::vector<uint64_t> StillDropped(uint32_t slice, const ChangedRows& changed) const;
  bool TakeDropped(uint32_t slice, Packed* packed);
  void FreePacked(Packed* packed);
  bool TakeCursor(uint32_t slice, Packed* packed);
  void EndContent(uint32_t slice);
  bool FindContent(Packed* packed);
  void View(const Packed& packed, CheckpointPiece* piece) const;
  // Changes belong to the previous checkpoint again, unless a checkpoint will be based on this one.
  void EndTracking(uint32_t slice, bool committed);

  EmbeddingTable* table_;  // null: it is gone
  const bool sync_;
  const TableToCheckpoint what_;
  const size_t row_bytes_;  // packed
  const uint32_t kept_capacity_;
  std::vector<LocalPartitionRows> rows_;  // by slice
  std::deque<Packed> kept_;
  std::deque<uint32_t> open_;      // slices; the cursor is in the first that is so still
  uint32_t partly_kept_ = 0;       // slices with an open piece
  std::vector<uint32_t> found_;    // scratch of TakeCursor()
  std::vector<uint32_t> to_keep_;  // the same of BeforeChange()
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_ROW_CHECKPOINT_H_
