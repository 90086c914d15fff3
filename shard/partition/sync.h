// Bulk synchronous steps of a table. See engine.h, invariant 1. Only for sync.cc and
// sync_members.cc: others use dense_consistency.h.
//
// A rank's contribution to a chunk's open step:
//     none  --push, ranks before it are pending-->  held  --its run comes-->  consumed
//     none  --push, its turn-->  consumed
//     none  --empty push, NaN under `skip`-->  empty  (contributes zero, is listed)
//     held  --lane dead, epoch changed-->  owed       (will be sent again: waited for even if the
//                                                      worker has ended the step since)
// All return to none when the step commits. A push that is refused for a NaN changes no state: the
// step waits for the empty push that its worker sends when it has the refusal.
//
// If the partition has a follower, a step with all contributions is summed and replicated to it
// first (replica/log.h). The step commits when the follower has it: until then the chunk is `told`.
//
// **Thread safety**: the engine's.
#ifndef VERBENA_SHARD_PARTITION_SYNC_H_
#define VERBENA_SHARD_PARTITION_SYNC_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "shard/kernel/fused_pass.h"
#include "shard/partition/dense_consistency.h"
#include "shard/partition/norms.h"
#include "shard/table/bookkeeping.h"

namespace verbena::shard {

class Sync final : public DenseConsistency {
 public:
  explicit Sync(const DenseParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        pool_(*parts.pool),
        members_(*parts.members),
        sink_(*parts.sink),
        mean_(table_.spec().reduction() == v1::REDUCTION_MEAN),
        bookkeeping_(parts.pool, table_.account()) {
    const Optimizer& optimizer = table_.optimizer().initial();
    if (optimizer.clip_global_norm() > 0 || optimizer.has_trust_ratio()) {
      norms_ = std::make_unique<Norms>(&table_, &pool_, &sink_);
    }
    Resize();
  }
  ~Sync() override {
    for (Chunk& c : chunks_) DropAccumulator(&c);
    sink_.blocked -= static_cast<uint32_t>(blocked_.size());
  }

  PushOutcome Push(const PushRequest& request, const Members::Member& member,
                   uint32_t chunk) override;
  ReplyStatus EndStep(const Group& group, uint64_t, uint64_t worker, const Members::Member& member,
                      uint32_t slice, uint32_t* detail) override;
  ReplyStatus SetOptimizer(const Group& group, uint64_t, const Members::Member& member,
                           uint32_t slice, uint64_t* from) override {
    return TakeStepOfChange(group, member, ranks_, OpenStep(slice), from);
  }
  void Awaited(const Members::Member& member, uint32_t slice) override;
  bool Reached(uint32_t slice, uint64_t min_version) const override {
    return table_.slice(slice).min_version >= min_version;
  }
  bool HasOpenStep(uint32_t slice) const override;
  bool Readable(const Members::Member&, uint32_t chunk, uint64_t min_version,
                Answer* answer) const override {
    answer->version = table_.chunk(chunk).version;
    return answer->version >= min_version;
  }
  Norms* norms() override { return norms_.get(); }
  void OnTotals(uint32_t slice) override;
  void Retry() override;
  void Resize() override;
  void MembersChanged() override;
  void Reset() override;
  void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) override;
  void ForgetLane(uint32_t lane) override;
  void Replicated(uint32_t chunk, uint64_t) override {
    chunks_[chunk].acknowledged = true;
    Advance(chunk);
  }

 private:
  enum class State : uint8_t { kNone, kArrived, kHeld, kOwed, kConsumed, kEmpty };
  struct Contribution {
    State state = State::kNone;
    Source gradient;  // or new parameters
    uint64_t worker = 0;
    Token token;
  };
  struct Chunk {
    Buffer accumulator;   // sum of the ranks before the cursor; none before the first run
    uint32_t cursor = 0;  // least rank not passed in step `step`
    uint64_t step = 0;
    bool blocked = false;
    bool acknowledged = false;  // by the follower: the record of `told` may be applied
    uint64_t appended = 0;      // the record that has the open step; 0: none
    uint32_t listed = 0;        // by the replicated commit
    Source kind;                // of the sum, without its data: gradients, or an assignment,
                                // after which later gradients do not count
  };
  // A rank's part in a slice.
  struct Progress {
    uint64_t ended = 0;  // steps below this one are ended
    // Chunks contributed to, of the last even and the last odd step: two can be in flux.
    uint64_t step[2] = {UINT64_MAX, UINT64_MAX};
    uint32_t count[2] = {0, 0};
  };

  Contribution& At(uint32_t chunk, uint32_t rank) {
    return contributions_[size_t{chunk} * ranks_ + rank];
  }
  Progress& ProgressOf(uint32_t slice, uint32_t rank) {
    return progress_[size_t{slice} * ranks_ + rank];
  }
  static bool Pending(const Contribution& x) {
    return x.state == State::kArrived || x.state == State::kHeld;
  }
  // The step waits for the rank's worker, or for one that has yet to join.
  bool Counts(uint32_t rank, uint64_t step) const {
    return !members_.departed(rank) && firsts_[rank] <= step;
  }
  // No (further) contribution will come from this rank for the chunk's open step.
  bool Passes(uint32_t chunk, uint32_t rank);
  void Count(uint32_t chunk, uint32_t rank, int change);
  ReplyStatus Repeated(const Contribution& x, uint64_t worker) const;

  // Whether a worker has contributed to that step in the slice, or a chunk is past it.
  bool Begun(uint32_t slice, uint64_t step) const;
  // The first step that no chunk of the slice has begun to apply.
  uint64_t OpenStep(uint32_t slice) const;
  // The cursor is the open step's. In a replica steps end without it, and ranks that it passed
  // because they did not count yet may count in later steps.
  void FollowStep(uint32_t chunk) {
    if (chunks_[chunk].step == table_.chunk(chunk).version) return;
    chunks_[chunk].step = table_.chunk(chunk).version;
    chunks_[chunk].cursor = 0;
  }
  void Advance(uint32_t chunk);
  void Consume(uint32_t chunk, uint32_t end, size_t payloads);
  bool Totalled(uint32_t chunk, size_t payloads);
  // Adds to sources_ the chunk's sum of contributions that were consumed.
  void AddSum(const Chunk& chunk, const std::byte* sum);
  // Replicates a step whose contributions are all there.
  enum class Replicating : uint8_t { kNobody, kReplicated, kNoMemory, kNoRoom };
  Replicating Replicate(uint32_t chunk, size_t payloads);
  bool Commit(uint32_t chunk, bool force = false);
  uint32_t Listed(uint32_t chunk);
  // The step's contributions are final.
  void Observe(uint32_t chunk, uint64_t step, uint32_t listed, bool abandoned);
  // Steps that wait for a buffer or for room were complete before.
  bool Abandoned(uint32_t chunk) const { return !members_.any_live() && !chunks_[chunk].blocked; }
  uint32_t PartitionOf(uint32_t chunk) const {
    return table_.life(table_.chunk(chunk).slice).partition;
  }
  void Settle(uint32_t chunk, Contribution* x, State next);
  // Removes a held contribution; with an event unless why is null.
  void Drop(uint32_t chunk, uint32_t rank, State next, const ReplyStatus* why);
  void DropAccumulator(Chunk* chunk);
  // All workers of the run have left: the open step is not applied, unless all of it is summed.
  void Abandon(uint32_t chunk);
  void SetBlocked(uint32_t chunk);
  void ClearBlocked(uint32_t chunk);

  DenseTable& table_;
  DeferredPulls& parking_;
  BufferPool& pool_;
  const Members& members_;
  EngineContext& sink_;
  const bool mean_;
  std::unique_ptr<Norms> norms_;  // null: steps of this table commit in one phase
  uint32_t ranks_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<Contribution> contributions_;  // chunk major
  std::vector<Progress> progress_;           // slice major
  std::vector<uint64_t> owners_;             // of each rank, as of the last member list
  std::vector<uint64_t> firsts_;             // the same: its first step
  // By slice: this is the primary, and a worker that has joined waits for its first step. Steps
  // below this one end empty; 0: none.
  std::vector<uint64_t> awaited_;
  std::vector<uint32_t> blocked_;
  std::vector<Source> sources_;         // scratch of Advance()
  std::vector<uint64_t> contributors_;  // scratch of Observe()
  Bookkeeping bookkeeping_;             // of contributions_ and progress_
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_SYNC_H_
