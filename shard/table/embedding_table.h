// The rows of one embedding table that live on this shard: by partition, with a version each.
//
// **Thread safety**: one owner thread.
//
// A slice has all the rows of a partition. It takes no memory before the first is pushed, so it is
// never starved.
//
// Invariants:
//  1. LocalPartition::applies counts every apply to the slice since it was made;
//  LocalPartition::version restarts
//     with the job. A row's own count, where its optimizer goes by that, is of the applies that
//     named it.
//  2. Rows are gathered into memory of their own, so they are not pinned. Exception: a table with a
//     cold tier pins rows for requests that wait for them or are about to change them.
#ifndef VERBENA_SHARD_TABLE_EMBEDDING_TABLE_H_
#define VERBENA_SHARD_TABLE_EMBEDDING_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/engine.h"
#include "shard/kernel/reduce.h"
#include "shard/optimizer/optimizer.h"
#include "shard/table/admission.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/changed_rows.h"
#include "shard/table/eviction.h"
#include "shard/table/hot_keys.h"
#include "shard/table/hot_rows.h"
#include "shard/table/partitioned_table.h"
#include "shard/table/row_arena.h"
#include "shard/table/row_store.h"
#include "shard/table/watch.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

class EmbeddingTable final : public PartitionedTable {
 public:
  struct LocalPartition {
    std::unique_ptr<RowStore> rows;  // null unless ready
    uint64_t version = 0;
    uint64_t applies = 0;
    std::unique_ptr<ChangedRows> changed;  // since a save that asked for it; null: nobody asked
    // Eviction: the last apply that is to drop rows, which ones, and when they last went by
    // seconds.
    uint64_t sweep = 0;
    ApplyStamp keep;
    uint32_t last_sweep = 0;
    uint64_t wait = 0;  // cold tier: for rows that the next apply names; 0: none
  };

  // INVALID_ARGUMENT for a specification this shard cannot serve.
  static absl::StatusOr<std::unique_ptr<EmbeddingTable>> Create(const v1::Table& table,
                                                                uint32_t partitions,
                                                                BufferPool* pool,
                                                                JobAccount* account = nullptr,
                                                                ColdIo* cold = nullptr);

  uint32_t dim() const { return dim_; }
  size_t row_bytes() const { return dim_ * sizeof(float); }  // of parameters, or a gradient, as f32
  ElementType push_type() const { return push_type_; }
  ElementType pull_type() const { return pull_type_; }
  const LocalPartition& slice(uint32_t index) const { return slices_[index]; }

  void Release(uint32_t slice, bool gone) override;
  absl::Status Acquire(absl::Span<const Placement> placement) override;
  void SetVersions(uint32_t slice, uint64_t version) override {
    if (version == 0) optimizer().Restart(slice);
    slices_[slice].version = version;
  }
  uint64_t version(uint32_t slice) const override { return slices_[slice].version; }
  uint64_t parameter_bytes() const override;
  uint64_t row_count() const override;

  // The part of a push that may go to rows: for keys that have a row, and keys that the table
  // admits. Valid until the next call; if nothing is refused it is the whole push.
  struct Admitted {
    absl::Span<const uint64_t> keys;
    absl::Span<const float> rows;
    absl::Span<const uint64_t> refused;
  };
  Admitted Admit(uint32_t slice, absl::Span<const uint64_t> keys, absl::Span<const float> rows);
  // Counts keys of a push that were refused, once the push, or its step, counts.
  void CountRefused(uint32_t slice, absl::Span<const uint64_t> keys) {
    admission_.Count(slice, keys);
    counters().refused_keys += keys.size();
  }
  // Prepares a slice without rows for about so many rows.
  void Expect(uint32_t slice, uint64_t rows) { slices_[slice].rows->Expect(rows); }
  // The rows of keys, made where there is none. False, with nothing changed: no memory for them.
  // `guesses` and `growth` as in RowStore.
  bool FindOrCreate(uint32_t slice, absl::Span<const uint64_t> keys, uint32_t* rows,
                    absl::Span<const uint32_t> guesses = {},
                    RowStore::Fresh fresh = RowStore::Fresh::kInitial,
                    RowGrowth* growth = nullptr) {
    return slices_[slice].rows->FindOrCreate(keys, rows, guesses, fresh, growth);
  }

  // Call before an apply that names these rows, or earlier. False: one of them has to be saved
  // first, and there is no memory to keep it; or not all are in memory yet. Waits() then returns
  // whether it is worth to ask again. They stay in memory until EndApply() or Unprepare().
  bool Prepare(uint32_t slice, absl::Span<const uint32_t> rows) {
    if (hot_ != nullptr && !MakeHot(slice, rows)) return false;
    return watch_ == nullptr || watch_->BeforeChange(slice, rows);
  }
  // ---- cold tier (tiered_rows.cc) ----
  bool tiered() const { return hot_ != nullptr; }
  HotRows* hot() const { return hot_.get(); }
  // The most rows that an apply may name.
  uint32_t most_rows() const { return hot_ == nullptr ? UINT32_MAX : hot_->most(); }
  bool Waits(uint32_t slice) const {
    return hot_ != nullptr && slices_[slice].wait != 0 && !hot_->ready(slices_[slice].wait);
  }
  // Prepare() for callers that cannot wait. Not OK: no memory, or a row that cannot be read.
  absl::Status PrepareNow(uint32_t slice, absl::Span<const uint32_t> rows);
  // The apply will not be made.
  void Unprepare(uint32_t slice);
  // Starts to read rows that will be named soon.
  void Fetch(uint32_t slice, absl::Span<const uint32_t> rows);
  // Starts to read the rows of keys that will be looked up soon.
  void Prefetch(uint32_t slice, absl::Span<const uint64_t> keys);
  // A caller that fills rows without waiting has to come again later.
  bool behind() const { return hot_ != nullptr && hot_->behind(); }
  // The id of the wait that a lookup of these keys needs (HotRows::Want()); 0: none.
  uint64_t WantRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys);
  // The slice with that life; kNone: there is none.
  uint32_t LocalPartitionOfLife(uint32_t life) const;
  // ---- eviction ----
  // Rows may be dropped by an apply: numbers are to be looked up after the one before.
  bool evicts() const { return !eviction_.never(); }
  // The stamps for the apply of the rows `named`, which follows `told` others that are not made
  // yet. While one of them is to drop rows, no other does. After an apply that was refused, the
  // next call repeats the decision by age. The decision by number is made again, because it depends
  // on `named`.
  ApplyStamp Stamp(
      uint32_t slice, absl::Span<const uint32_t> named, uint64_t appended = 0,
      Eviction::Waiting waiting = [](std::vector<Eviction::WaitingRow>*) {});
  // Prepare() for the rows that the apply drops.
  bool Prepare(uint32_t slice, const ApplyStamp& stamp);
  // Whether numbers of rows that were dropped become other rows'.
  void SetReuses(uint32_t slice, bool reuses) { slices_[slice].rows->set_reuses(reuses); }
  // The time in seconds since an origin that all servers share.
  void SetSeconds(uint32_t seconds) { seconds_ = seconds; }

  // One apply to a slice: BeginApply(), ApplyRow() for each row that it names, EndApply().
  // optimizer: null: that of the slice's step.
  void BeginApply(uint32_t slice, const ApplyStamp& stamp, OptimizerPointer optimizer = nullptr);
  // By sum(sources) / divisor. At least one source. If one of them assigns, the last such replaces
  // the parameters, and the state of the optimizer stays.
  void ApplyRow(uint32_t row, absl::Span<const Source> sources, float divisor);
  void Prefetch(uint32_t slice, uint32_t row) const { slices_[slice].rows->Prefetch(row); }
  // Version and apply count go up by one. Returns how many rows were dropped.
  uint32_t EndApply();

  // The keys that workers look up and push most; the caller adds them.
  HotKeys& hot_keys() { return hot_keys_; }
  const HotKeys& hot_keys() const { return hot_keys_; }

  // ---- checkpoints (shard/checkpoint) ----
  // Called at every apply; null: no watch.
  void Watch(RowWatch* watch) { watch_ = watch; }
  size_t state_arrays() const { return optimizer().initial().state_arrays(); }
  // Numbers that each of them has for a row.
  uint32_t state_width() const { return optimizer().initial().row_wise() ? 1 : dim_; }
  const RowStore& rows(uint32_t slice) const { return *slices_[slice].rows; }
  // A row becomes that: `parameters` has dim numbers, each of `state` state_width(); applies 0: as
  // if it had never been pushed, and both are not looked at. It counts as pushed by the apply that
  // follows `after`. False: no memory.
  bool LoadRow(uint32_t slice, uint32_t row, uint32_t applies, const float* parameters,
               absl::Span<const float* const> state, uint64_t after);
  // The caller's to take and to replace.
  std::unique_ptr<ChangedRows>& changed(uint32_t slice) { return slices_[slice].changed; }

  // ---- replicas: rows by number, a row's content as in row_store.h ----
  // Some of these numbers may be free.
  uint32_t rows_in(uint32_t slice) const { return slices_[slice].rows->size(); }
  size_t content_bytes() const { return content_bytes_; }
  // `from`: as a RowReader passes it.
  void ReadRow(uint32_t slice, uint32_t row, const std::byte* from, uint64_t* key,
               std::byte* content) const;
  // Hash of the row's key, content, count and stamp, wherever the row is: equal where these are
  // equal.
  uint64_t Digest(uint32_t slice, uint32_t row, const std::byte* from) const;
  // False: no memory.
  bool WriteRow(uint32_t slice, uint32_t row, const std::byte* content);
  void Find(uint32_t slice, absl::Span<const uint64_t> keys, uint32_t* rows) const {
    slices_[slice].rows->Find(keys, rows);
  }
  void SetVersion(uint32_t slice, uint64_t version, uint64_t applies) {
    slices_[slice].version = version;
    slices_[slice].applies = applies;
  }

  // The rows of the groups' keys as pull_type(), initial ones for keys without; the groups' slices
  // are ready.
  // False: no memory to gather them in, or some cannot be read, as with the next two.
  bool Gather(absl::Span<const Group> groups, absl::Span<const uint64_t> keys, ChunkView* view);
  // Their sums by bag, in the order of keys. Every use's bag is one of the count.
  bool Pool(absl::Span<const Group> groups, absl::Span<const uint64_t> keys, const Bags& bags,
            ChunkView* view);
  // At most `count` committed rows from `cursor` on, as keys, zeros to KeyBytes(), rows. *next is
  // the cursor behind them; *found is their number. False: no memory.
  bool Scan(uint32_t slice, uint64_t cursor, uint32_t count, ChunkView* view, uint64_t* next,
            uint32_t* found);

 private:
  // Scalars are a function of the slice's count and the row's own; most rows of an apply share
  // them.
  struct Memo {
    uint64_t step = 0;
    uint64_t t = 0;
    ApplyScalars scalars;
  };
  static constexpr size_t kMemos = 256;

  EmbeddingTable(const v1::Table& table, uint32_t partitions, BufferPool* pool, JobAccount* account,
                 ColdIo* cold, std::unique_ptr<Optimizer> optimizer);
  // visit(i, parameters) for each of the groups' keys in turn; of a key without a row initial ones.
  // False: some cannot be read.
  template <typename Visit>
  bool ForRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys, Visit visit) const;
  template <typename Visit>
  bool ForTieredRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys,
                     Visit visit) const;
  bool MakeHot(uint32_t slice, absl::Span<const uint32_t> rows);
  void SetShare();
  const ApplyScalars& ScalarsFor(uint64_t t);
  uint32_t Sweep(LocalPartition* slice);
  void ApplyNarrow(uint32_t row, absl::Span<const Source> sources, float divisor);

  HotKeys hot_keys_;
  const uint32_t dim_;
  BufferPool* const pool_;
  const ElementType push_type_, pull_type_;  // element types of rows on the wire
  const RowShape shape_;
  const size_t content_bytes_;  // of a row: stamp, how often it was changed, parameters, state
  RowArena arena_;
  const std::unique_ptr<HotRows> hot_;  // null: all rows are in memory
  Admission admission_;
  Eviction eviction_;
  uint32_t seconds_ = 0;
  std::vector<LocalPartition> slices_;  // by slice index
  // The slice of the current apply.
  LocalPartition* applying_ = nullptr;
  OptimizerPointer with_;  // of the current apply, and of memos_
  ApplyStamp stamp_;
  std::vector<uint32_t> named_;   // rows, if it drops others
  std::vector<bool> named_rows_;  // scratch of Sweep(): by row
  std::vector<float> wide_;       // scratch of ApplyRow(): parameters of 16 bits
  RowWatch* watch_ = nullptr;
  std::vector<Memo> memos_;
  std::vector<uint32_t> found_;  // scratch of Scan(), Admit(), WantRows() and Prefetch()
  std::vector<uint64_t> admitted_keys_, refused_keys_;  // scratch of Admit()
  std::vector<float> admitted_rows_;                    // the same
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_EMBEDDING_TABLE_H_
