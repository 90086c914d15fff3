// How pushes become applies: the rules of sync, ssp and async that dense and embedding tables
// share. One object per table.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_CONSISTENCY_H_
#define VERBENA_SHARD_PARTITION_CONSISTENCY_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/kernel/reduce.h"
#include "shard/partition/members.h"
#include "shard/partition/sink.h"
#include "shard/replica/log.h"
#include "shard/table/partitioned_table.h"

namespace verbena::shard {

// A worker's progress as a replica of a slice has it; a new primary needs it.
struct WorkerMark {
  uint64_t worker = 0;    // incarnation
  uint64_t sequence = 0;  // async, ssp: its last one
  uint64_t clock = 0;     // ssp: the steps it has ended
};

// So many steps of workers that are all gone end empty by one request of a worker that has joined
// for a later one. Workers that had left were some steps ahead; a first step that is farther off
// was made up, and must not hold the shard up.
inline constexpr uint64_t kEmptySteps = 1024;

class Consistency : public ReplicaLog::Owner {
 public:
  virtual ~Consistency() = default;

  // `slice` is ready. clock: ssp, the steps this worker has ended now. *detail: contributions
  // missing, with kTooEarly.
  virtual ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                              const Members::Member& member, uint32_t slice, uint32_t* detail) = 0;
  // A change of the slice's optimizer by a member: takes its sequence. *from: sync: the step from
  // which it is in force: that of the group, or, for a client that is no worker, the first that no
  // chunk of the slice has begun to apply. Others: 0: at once.
  virtual ReplyStatus SetOptimizer(const Group& group, uint64_t worker,
                                   const Members::Member& member, uint32_t slice,
                                   uint64_t* from) = 0;
  // A worker waits for a step of the slice, of which this server is the primary. sync: steps before
  // the first step of a worker that has joined end without it, also when nobody else is left.
  virtual void Awaited(const Members::Member& /*member*/, uint32_t /*slice*/) {}
  // Whether an await of min_version is answered already.
  virtual bool Reached(uint32_t slice, uint64_t min_version) const = 0;
  // sync: whether a step of the slice has begun, and not ended: a worker has contributed to it.
  virtual bool HasOpenStep(uint32_t /*slice*/) const { return false; }

  // Resumes pushes that waited for a buffer. The engine calls it after every Unpin() that freed
  // one, and after a view or a dead lane has removed something that blocked.
  virtual void Retry() = 0;
  // The table got slices or chunks, or the job members.
  virtual void Resize() = 0;
  // Members came or went. Resize() has been called.
  virtual void MembersChanged() = 0;
  // A new generation of the job: held requests are answered kExpired, and per-step state is
  // cleared. Records in the log are applied whether or not the follower has them; the caller has
  // held reads.
  virtual void Reset() = 0;
  // Everything held in a slice is answered `why`. `keep`: the slice stays here (a new epoch).
  virtual void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) = 0;
  // Drops requests that are held for a dead lane, without an event.
  virtual void ForgetLane(uint32_t lane) = 0;

  // The workers' progress that a replica of the slice needs.
  virtual std::vector<WorkerMark> Marks(uint32_t /*slice*/) const { return {}; }
  // How far each worker's pushes are contained in the current state: up to that sequence all of
  // them, and none after it. Pushes of Marks() beyond that may be in flight to a replica.
  virtual std::vector<WorkerMark> Applied(uint32_t /*slice*/) const { return {}; }
  // Applies at once every replicated record that only memory or a disk delays. Rows that are not in
  // memory are read synchronously. Some records may stay, for lack of memory.
  virtual void ApplyNow(uint32_t /*slice*/) {}
  // Replicates the workers' clocks to a replica that starts empty. For a worker without a clock
  // there, the next primary would wait.
  virtual void ReplicateClocks(uint32_t /*slice*/) {}
  // The slice changes from replica to primary. `marks` is the known progress of workers, some of
  // which may have left.
  virtual void Adopt(uint32_t /*slice*/, absl::Span<const WorkerMark> /*marks*/) {}
};

// True: a push of the n numbers of `gradient` contributes zero and is answered *answer: an empty
// one, or one with a NaN or Inf where the table rejects (kNonFinite) or skips (kOk) such; those are
// counted here.
bool ContributesZero(PartitionedTable* table, const Source& gradient, size_t n, EngineContext* sink,
                     ReplyStatus* answer);

// Whether a push with this answer leaves its place to the empty push that its worker sends when it
// has the answer: async, ssp: its sequence; sync: its contribution, which the step waits for. The
// answer may be lost with its lane: if the place were taken, the push that is sent again would be a
// duplicate, and OK.
bool AwaitsEmpty(ReplyStatus status);

// Replicates a worker's current progress to the follower of the slice's partition, if there is one
// that knows the slice.
void ReplicateMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
                   uint32_t slice, const WorkerMark& mark);
// The same for a change by a view, for which no room was reserved.
void NoteMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
              uint32_t slice, const WorkerMark& mark);

// SetOptimizer() of a sync table with so many ranks. open: the first step that no chunk of the
// slice has begun to apply. Workers send changes for a step that they may push to, or for the one
// after it; a slice may be one step behind others.
inline ReplyStatus TakeStepOfChange(const Group& group, const Members::Member& member,
                                    uint32_t ranks, uint64_t open, uint64_t* from) {
  *from = open;
  if (member.rank < 0) return ReplyStatus::kOk;
  if (static_cast<uint32_t>(member.rank) >= ranks) return ReplyStatus::kPermissionDenied;
  if (group.sequence > open + 2) return ReplyStatus::kWrongStep;
  *from = std::max(group.sequence, open);
  return ReplyStatus::kOk;
}

// The divisor of a mean when every push is an apply of its own.
uint32_t AsyncDivisor(const v1::TableSpec& spec, const Members& members);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_CONSISTENCY_H_
