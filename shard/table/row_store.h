// The rows of an embedding table in one partition: key -> parameters and optimizer state.
//
// A row is [key, applies, stamp | dim parameters | state] in one piece, so that after the index
// (row_index.h) a row costs one cache miss. Parameters may be of 16 bits; state is f32. Where the
// optimizer does not go by a row's count of applies, there is none with it, but one bit whether
// there was any. The rows of a chunk lie side by side; those of the last chunk are in smaller
// pieces until it is full, or a quarter full where too few such pieces are idle, so that a slice
// wastes half a kilobyte and not half a chunk. Numbers of rows never change, addresses may when
// rows are made. A table with eviction has a stamp with each row (eviction.h); the number of a row
// that was dropped is that of another one later.
//
// In a table with a cold tier there is, instead of parameters and state, the number of the frame
// that has them, or why there is none (hot_rows.h).
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A row's number never changes; numbers count up in the order rows are made, but for those that
//     are used again.
//  2. A failed allocation leaves the rows as they were.
#ifndef VERBENA_SHARD_TABLE_ROW_STORE_H_
#define VERBENA_SHARD_TABLE_ROW_STORE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "proto/wire/row_applies.h"
#include "shard/kernel/convert.h"
#include "shard/kernel/prefetch.h"
#include "shard/table/bookkeeping.h"
#include "shard/table/hot_rows.h"
#include "shard/table/row_arena.h"
#include "shard/table/row_index.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// How rows lie in memory: the same in all slices of a table.
struct RowShape {
  // Behind a row's `numbers` parameters there are `of_state` numbers.
  RowShape(uint32_t numbers, uint32_t of_state, bool counts_applies, bool has_stamps = false,
           ElementType type_of_parameters = ElementType::kF32, bool in_frames = false);

  size_t few_bytes() const { return (size_t{1} << few_shift) * stride; }
  size_t many_bytes() const { return (size_t{1} << many_shift) * stride; }
  // Bytes of parameters and state.
  size_t content_bytes() const { return content; }
  bool narrow() const { return type != ElementType::kF32; }

  uint32_t dim;
  uint32_t state;
  bool counts;          // applies, in each row
  bool stamps;          // in each row
  bool tiered;          // content is in frames
  ElementType type;     // of parameters: f32, bf16, f16
  uint32_t header;      // bytes before the parameters
  uint32_t parameters;  // bytes of them, of whole f32
  uint32_t content;     // bytes of parameters and state
  uint32_t stride;      // bytes from row to row
  uint32_t few_shift;   // log2 of the rows of a small piece
  uint32_t many_shift;  // log2 of the rows of a chunk, 64 at most
  // Limit of a slice; less in tests.
  uint64_t most_rows = kMaxRowsOfPartition;
};

// Memory that new rows take, and their limit.
struct RowGrowth {
  uint64_t room = UINT64_MAX;
  uint64_t bytes = 0;    // about, where the same rows are made elsewhere
  bool refused = false;  // they were not made: the room was not enough
};

class RowStore {
 public:
  static constexpr uint32_t kNone = RowIndex::kNone;
  static constexpr uint64_t kIndexed = 16;            // bytes of the index of a row, at most
  static constexpr uint32_t kFreeStamp = UINT32_MAX;  // of a number that no row has
  // The parameters of a new row; kBlank: any, as the caller writes them.
  enum class Fresh : uint8_t { kInitial, kBlank };

  // State is zero at first. The others outlive the store; the arena has pieces of that shape.
  // `hot`: for a tiered shape.
  RowStore(const RowShape& shape, const v1::Initializer* initializer, RowArena* arena,
           HotRows* hot = nullptr);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  // Numbers of rows are less. A free row has the stamp of free rows, and no applies.
  uint32_t size() const { return size_; }
  uint32_t live() const { return size_ - free_count_; }
  // There are no numbers for so many rows more.
  bool FullFor(uint64_t more) const {
    return size_ - (reuses_ ? free_count_ : 0) + more > shape_.most_rows;
  }
  // All that it takes but parameters and state, and rows' room that has none yet.
  uint64_t overhead_bytes() const;

  // An estimate of the memory of so many rows: with their part of the index, and idle pieces at the
  // end of a slice.
  uint64_t BytesOf(uint64_t rows) const { return rows * (shape_.stride + kIndexed) * 9 / 8; }
  // Where there is no row yet: so many will come, perhaps, and all together.
  void Expect(uint64_t rows);
  // The row of each key, or kNone. Their memory is on its way to the cache.
  void Find(absl::Span<const uint64_t> keys, uint32_t* rows) const;
  // Like Find(); keys without a row get one. `guesses`: likely rows of the first keys, from a
  // lookahead. False: no memory for them all. Nor, if `growth` is not null, may they take more than
  // it has room for.
  bool FindOrCreate(absl::Span<const uint64_t> keys, uint32_t* rows,
                    absl::Span<const uint32_t> guesses = {}, Fresh fresh = Fresh::kInitial,
                    RowGrowth* growth = nullptr);

  // For callers that will look keys up here soon: prefetches the store itself, and the data that it
  // knows by then.
  void PrefetchStore() const {
    for (size_t i = 0; i < sizeof(*this); i += 64) {
      PrefetchToRead(reinterpret_cast<const std::byte*>(this) + i);
    }
  }
  void PrefetchDirectory() const { index_.PrefetchDirectory(); }

  // A lookup in steps, for callers with many in flight (row_lookahead.h): each step finds in the
  // cache the memory that the one before has prefetched. At the end the row itself is being
  // prefetched. Rows may be made meanwhile; then it may be another row, and the lookup must not be
  // finished.
  struct Probe {
    uint64_t key, hash;
    RowIndex::Place at;
    uint32_t row;             // probably
    const std::byte* row_at;  // where that is; null: it is none
  };
  void Start(uint64_t key, Probe* p) const {
    p->key = key;
    p->row = kNone;
    p->row_at = nullptr;
    p->at.lines = 0;
    if (size_ == 0) return;
    p->hash = RowIndex::Hash(key);
    p->at = {index_, p->hash};
    index_.PrefetchPage(p->at);
  }
  void PrefetchLine(Probe* p) const {
    if (p->at.lines != 0) index_.PrefetchLine(&p->at);
  }
  // True: the row may be in the second line, so that two more steps are PrefetchLine() and
  // GuessAgain().
  bool Guess(Probe* p) const {
    if (p->at.lines == 0) return false;
    if (GuessAgain(p)) return false;
    if (!RowIndex::TryNext(&p->at, p->hash)) return false;
    index_.PrefetchPage(p->at);
    return true;
  }
  bool GuessAgain(Probe* p) const {
    p->row = RowIndex::Guess(p->at, p->hash);
    if (p->row < in_chunks_) PrefetchToRead(&chunks_[p->row >> shape_.many_shift]);
    return p->row != kNone;
  }
  void PrefetchRow(Probe* p) const {
    if (p->row >= size_) return;
    p->row_at = At(p->row);
    Prefetch(p->row, p->row_at);
  }
  uint32_t Finish(const Probe& p) const { return GuessedRight(p) ? p.row : FindAgain(p); }
  // The content of the probed row; null: the key has no row. Not for tiered tables.
  const std::byte* FinishContent(const Probe& p) const {
    if (GuessedRight(p)) return p.row_at + shape_.header;
    const uint32_t row = FindAgain(p);
    return row == kNone ? nullptr : content(row);
  }

  uint64_t key(uint32_t row) const { return KeyAt(At(row)); }
  // How often the optimizer has changed the row (proto/wire/row_applies.h), where it counts that;
  // else 0 or 1. 0: nothing of it is committed.
  uint32_t applies(uint32_t row) const {
    if (!shape_.counts) return AppliedBit(row);
    uint32_t applies = 0;
    std::memcpy(&applies, At(row) + sizeof(uint64_t), sizeof(applies));
    return applies;
  }
  void CountApply(uint32_t row) {
    if (shape_.counts) {
      SetApplies(row, CountAfterApply(applies(row)));
    } else if (AppliedBit(row) == 0) {
      SetApplies(row, 1);
    }
  }
  void SetApplies(uint32_t row, uint32_t applies);
  // Rows that were changed.
  uint32_t applied_rows() const { return applied_rows_; }

  // ---- where rows have stamps ----
  uint32_t stamp(uint32_t row) const {
    uint32_t stamp = 0;
    std::memcpy(&stamp, At(row) + shape_.header - sizeof(stamp), sizeof(stamp));
    return stamp;
  }
  void SetStamp(uint32_t row, uint32_t stamp) {
    std::memcpy(At(row) + shape_.header - sizeof(stamp), &stamp, sizeof(stamp));
  }
  bool is_free(uint32_t row) const { return shape_.stamps && stamp(row) == kFreeStamp; }
  // For callers that look at all of them in turn: prefetches the next ones.
  void PrefetchStamp(uint32_t row) const {
    if (row + kAheadOfSweep < size_) PrefetchToRead(At(row + kAheadOfSweep));
  }
  // The row's number is free for another one.
  void Drop(uint32_t row);
  // Whether numbers are used again.
  void set_reuses(bool reuses) { reuses_ = reuses; }

  // ---- content: RowShape::content_bytes(); in a tiered table of rows that are hot ----
  std::byte* content(uint32_t row) {
    return shape_.tiered ? hot_->at(RawFrame(row)) : At(row) + shape_.header;
  }
  const std::byte* content(uint32_t row) const { return const_cast<RowStore*>(this)->content(row); }
  // Parameters of f32.
  float* parameters(uint32_t row) { return reinterpret_cast<float*>(content(row)); }
  const float* parameters(uint32_t row) const {
    return reinterpret_cast<const float*>(content(row));
  }
  // Parameters of 16 bits.
  uint16_t* half_data(uint32_t row) { return reinterpret_cast<uint16_t*>(content(row)); }
  const uint16_t* half_data(uint32_t row) const {
    return reinterpret_cast<const uint16_t*>(content(row));
  }
  // The parameters as f32, where they are or in `wide`, which has room for them.
  const float* Widened(uint32_t row, float* wide) const {
    return WidenedContent(content(row), wide);
  }
  // Parameters, as f32, and state of any row content.
  const float* WidenedContent(const std::byte* of, float* wide) const {
    if (!shape_.narrow()) return reinterpret_cast<const float*>(of);
    Widen(BestIsa(), shape_.type, reinterpret_cast<const uint16_t*>(of), wide, shape_.dim);
    return wide;
  }
  const float* StateOfContent(const std::byte* of) const {
    return reinterpret_cast<const float*>(of + shape_.parameters);
  }
  void SetParameters(uint32_t row, const float* parameters);  // to the nearest
  float* state(uint32_t row) { return reinterpret_cast<float*>(content(row) + shape_.parameters); }
  const float* state(uint32_t row) const {
    return reinterpret_cast<const float*>(content(row) + shape_.parameters);
  }
  // Gives the row the content of a new one, with its state; in a tiered table, no frame.
  void MakeFresh(uint32_t row);
  // The parameters of a row that is made now.
  void Initial(uint64_t key, float* parameters) const;
  void Prefetch(uint32_t row) const { Prefetch(row, At(row)); }

  // ---- where content is in frames ----
  bool tiered() const { return shape_.tiered; }
  HotRows* hot() const { return hot_; }
  uint32_t life() const { return life_; }
  // kFresh for a number that no row has.
  uint32_t frame(uint32_t row) const {
    return row >= size_ || is_free(row) ? HotRows::kFresh : RawFrame(row);
  }
  void set_frame(uint32_t row, uint32_t frame) {
    std::memcpy(At(row) + shape_.header, &frame, sizeof(frame));
  }
  bool is_hot(uint32_t row) const { return !shape_.tiered || frame(row) < HotRows::kFresh; }
  // The content of a row that is made now, with its state.
  void InitialContent(uint64_t key, std::byte* content) const;
  // The row's frame gets that.
  void Fill(uint32_t row) { InitialContent(key(row), content(row)); }
  // Before all of the content of a row is written: it has a place. False: no memory.
  bool MakePlace(uint32_t row) {
    if (!shape_.tiered) return true;
    const uint32_t at = frame(row);
    if (at >= HotRows::kFresh) return hot_->Take(this, row) != HotRows::kNone;
    hot_->SetDirty(at);
    return true;
  }
  void SetDirty(uint32_t row) {
    if (shape_.tiered) hot_->SetDirty(RawFrame(row));
  }

 private:
  static constexpr uint32_t kAheadOfSweep = 8;
  // Both in one line of the cache: a push needs both.
  struct Chunk {
    std::byte* rows = nullptr;  // null: the last one, in tail_
    uint64_t applied = 0;       // a bit a row, where applies are not counted
  };

  static uint64_t KeyAt(const std::byte* row) {
    uint64_t key = 0;
    std::memcpy(&key, row, sizeof(key));
    return key;
  }
  std::byte* At(uint32_t row) const {
    if (row < in_chunks_) {
      return chunks_[row >> shape_.many_shift].rows + size_t{row & many_mask_} * shape_.stride;
    }
    return tail_[(row & many_mask_) >> shape_.few_shift] + size_t{row & few_mask_} * shape_.stride;
  }
  uint32_t RawFrame(uint32_t row) const {
    uint32_t frame = 0;
    std::memcpy(&frame, At(row) + shape_.header, sizeof(frame));
    return frame;
  }
  uint32_t AppliedBit(uint32_t row) const {
    return static_cast<uint32_t>(chunks_[row >> shape_.many_shift].applied >> (row & many_mask_)) &
           1;
  }
  void Prefetch(uint32_t row, const std::byte* at) const {
    if (shape_.tiered && frame(row) < HotRows::kFresh) return hot_->Prefetch(frame(row));
    for (uint32_t i = 0; i < prefetch_bytes_; i += 64) PrefetchToWrite(at + i);
    PrefetchToWrite(at + prefetch_bytes_ - 1);  // rows do not begin on a line
  }
  bool GuessedRight(const Probe& p) const {
    return p.row_at != nullptr && KeyAt(p.row_at) == p.key;
  }
  uint32_t FindAgain(const Probe& p) const { return size_ == 0 ? kNone : FindOne(p.key, p.hash); }
  // Find() for keys whose rows are in the cache if the guesses are right.
  void FindGuessed(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> guesses,
                   uint32_t* rows) const;
  uint32_t FindOne(uint64_t key, uint64_t hash) const {
    return index_.Find(hash, [this, key](uint32_t row) { return this->key(row) == key; });
  }
  void SetInitialParameters(uint64_t key, std::byte* to) const;
  void WriteApplies(uint32_t row, uint32_t applies);
  // The row's content is nobody's any more, in a frame, cold or being read.
  void LeaveFrame(uint32_t row);
  void HashesOf(absl::Span<const uint32_t> rows, uint64_t* hashes) const;
  uint64_t FewFor(uint64_t number) const;
  bool Reserve(uint32_t more);
  void FillEarly();
  // Inserts a row and returns its number. kNone: no memory. At least `coming` more rows follow,
  // most likely.
  uint32_t Insert(uint64_t key, Fresh fresh, uint64_t coming);
  bool MakeRoom(uint64_t coming);
  void FillChunk();
  uint64_t bookkeeping_bytes() const;

  const RowShape shape_;
  const uint32_t few_mask_;
  const uint32_t many_mask_;
  const uint32_t prefetch_bytes_;
  const v1::Initializer* const initializer_;
  RowArena* const arena_;
  HotRows* const hot_;
  const uint32_t life_;
  uint32_t size_ = 0;
  uint32_t applied_rows_ = 0;
  uint32_t free_ =
      kNone;  // the first number that is free; in each is the next, as its first number
  uint32_t free_count_ = 0;
  bool reuses_ = true;
  uint32_t in_chunks_ = 0;  // rows below are in chunks (there may be room yet), others in tail_
  std::vector<Chunk> chunks_;
  std::vector<std::byte*> tail_;
  RowIndex index_;
  Bookkeeping bookkeeping_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_STORE_H_
