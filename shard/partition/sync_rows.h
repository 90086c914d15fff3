// Bulk synchronous steps of an embedding table. See engine.h, invariants 1 and 6. Only for
// sync_rows.cc and sync_rows_commit.cc: others use row_consistency.h.
//
// An arriving push is copied and its rows are created: no push holds a slot, and only then can it
// still be refused for lack of memory. A refused push changes nothing: the step waits for the empty
// push that its worker sends when it has the refusal. A partition's step commits when every rank
// has ended it or departed. Then the pushes are summed by key, in the order of (rank, index), and
// the named rows are changed. If the partition has a follower, the sums are replicated to it first,
// and are applied when it has them (replica/log.h). The step waits while there is no memory to keep
// row contents that a checkpoint has yet to write. In a table with a cold tier, it also waits until
// all of its rows are in memory.
//
// **Thread safety**: the engine's.
#ifndef VERBENA_SHARD_PARTITION_SYNC_ROWS_H_
#define VERBENA_SHARD_PARTITION_SYNC_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/kernel/fused_pass.h"
#include "shard/partition/row_consistency.h"
#include "shard/table/bookkeeping.h"

namespace verbena::shard {

class SyncRows final : public RowConsistency {
 public:
  explicit SyncRows(const RowParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        pool_(*parts.pool),
        members_(*parts.members),
        sink_(*parts.sink),
        mean_(table_.spec().reduction() == v1::REDUCTION_MEAN),
        bookkeeping_(parts.pool, table_.account()) {
    Resize();
  }
  ~SyncRows() override {
    for (LocalPartition& s : slices_) Drop(&s);
  }

  Answer Push(const RowPush& push, const Members::Member& member, uint32_t slice) override;
  ReplyStatus EndStep(const Group& group, uint64_t, uint64_t worker, const Members::Member& member,
                      uint32_t slice, uint32_t* detail) override;
  ReplyStatus SetOptimizer(const Group& group, uint64_t, const Members::Member& member,
                           uint32_t slice, uint64_t* from) override {
    const uint64_t open = table_.slice(slice).version + (slices_[slice].appended != 0 ? 1 : 0);
    return TakeStepOfChange(group, member, ranks_, open, from);
  }
  void Awaited(const Members::Member& member, uint32_t slice) override;
  bool Reached(uint32_t slice, uint64_t min_version) const override {
    return table_.slice(slice).version >= min_version;
  }
  bool HasOpenStep(uint32_t slice) const override { return !slices_[slice].contributions.empty(); }
  bool Readable(uint64_t, uint32_t slice, uint64_t min_version, Answer* answer) const override {
    answer->version = table_.slice(slice).version;
    return answer->version >= min_version;
  }
  void Resize() override;
  void MembersChanged() override;
  void Reset() override;
  void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) override;
  void Retry() override;
  void Replicated(uint32_t slice, uint64_t sequence) override;
  void ApplyNow(uint32_t slice) override {
    if (slices_[slice].appended != 0) Advance(slice);
  }

 private:
  // A rank's push to the open step of a slice, by one record.
  struct Contribution {
    uint32_t rank;
    uint32_t index;
    uint64_t worker;
    uint32_t count;  // of keys; 0: it contributes zero
    Buffer copy;     // keys, numbers of their rows, gradients
    bool assigns;    // the latter are new parameters

    const uint64_t* keys() const { return reinterpret_cast<const uint64_t*>(copy.data); }
    uint32_t* rows() const {
      return reinterpret_cast<uint32_t*>(copy.data + size_t{count} * sizeof(uint64_t));
    }
    float* gradients() const { return reinterpret_cast<float*>(rows() + count); }
  };
  struct LocalPartition {
    std::vector<Contribution> contributions;  // of the open step, by (rank, index)
    std::vector<uint64_t> refused;            // keys of the open step that get no row
    std::vector<uint64_t> ended;              // by rank: steps below this one are ended
    uint64_t appended = 0;                    // the record that has the open step; 0: none
    uint32_t told_keys = 0;                   // that it names
    uint32_t told_assigned = 0;               // the last so many are assigned
    uint32_t listed = 0;                      // by its commit
    ApplyStamp stamp;                         // of its commit
    // by the follower: the record of `told` may be applied
    bool acknowledged = false;
    bool blocked = false;  // there was no memory for it
    // This is the primary, and a worker that has joined waits for its first step. Steps below this
    // one end empty; 0: none.
    uint64_t awaited = 0;
  };
  // The next key of a contribution, while they are merged.
  struct Head {
    uint64_t key;
    uint32_t contribution;
    uint32_t at;
    // For a heap with the least in front.
    bool operator<(const Head& other) const {
      return key != other.key ? key > other.key : contribution > other.contribution;
    }
  };

  // Whether the open step would name more rows than may be in memory together.
  bool TooMany(uint32_t slice, absl::Span<const uint64_t> keys) const;
  // Copies a push and creates its rows. If the answer is not kOk, nothing has changed.
  Answer Copy(const RowPush& push, uint32_t slice, Contribution* x);
  // The step waits for the rank's worker, or for one that has yet to join.
  bool Counts(uint32_t rank, uint64_t step) const {
    return !members_.departed(rank) && firsts_[rank] <= step;
  }
  uint32_t Arrived(const LocalPartition& slice, uint32_t rank, uint64_t worker) const;
  // Commits as long as steps are complete.
  void Advance(uint32_t slice);
  bool Commit(uint32_t slice);
  // The open step is applied to the rows.
  void Committed(uint32_t slice);
  uint32_t Listed(uint32_t slice) const;
  // The step's contributions are final.
  void Observe(uint32_t slice, bool abandoned);
  float Divisor(const LocalPartition& slice) const {
    return mean_ ? static_cast<float>(slice.listed) : 1.0f;
  }
  // Replicates the open step, which is complete. False: no memory.
  bool Replicate(uint32_t slice);
  // Whether all rows that the open step names may be changed now.
  bool Prepare(uint32_t slice);
  // False: it waits for memory to keep rows for a checkpoint.
  bool ApplyReplicated(uint32_t slice, bool now = false);
  void SetBlocked(LocalPartition* slice, bool blocked);
  uint32_t PartitionOf(uint32_t slice) const { return table_.life(slice).partition; }
  // Calls `row` (key, number, sources) for each row that the step names, by key.
  template <typename Row>
  void ForEachRow(uint32_t slice, Row row);
  void PushHead(uint32_t slice, uint32_t contribution, uint32_t at);
  void Drop(LocalPartition* slice);

  EmbeddingTable& table_;
  DeferredLookups& parking_;
  BufferPool& pool_;
  const Members& members_;
  EngineContext& sink_;
  const bool mean_;
  uint32_t ranks_ = 0;
  std::vector<LocalPartition> slices_;
  std::vector<uint64_t> owners_;  // of each rank, as of the last member list
  std::vector<uint64_t> firsts_;  // the same: its first step
  std::vector<Head> heads_;       // scratch of ForEachRow()
  std::vector<Source> sources_;   // the same
  std::vector<uint32_t> named_;   // scratch of Commit(): rows of the step
  std::vector<uint64_t> contributors_;
  Bookkeeping bookkeeping_;  // of slices_, for each rank
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_SYNC_ROWS_H_
