// How pushes become applies: what sync, ssp and async mean for dense and embedding tables alike.
// One object per table.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_CONSISTENCY_H_
#define VERBENA_SHARD_PARTITION_CONSISTENCY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/kernel/reduce.h"
#include "shard/partition/roster.h"
#include "shard/partition/sink.h"
#include "shard/replica/log.h"
#include "shard/table/sliced_table.h"

namespace verbena::shard {

// What a copy of a slice knows of a worker, and its next primary has to.
struct WorkerMark {
  uint64_t worker = 0;    // incarnation
  uint64_t sequence = 0;  // async, ssp: its last one
  uint64_t clock = 0;     // ssp: the steps it has ended
};

class Consistency : public ReplicaLog::Owner {
 public:
  virtual ~Consistency() = default;

  // `slice` is ready. clock: ssp, the steps this worker has ended now. *detail: contributions
  // missing, with kTooEarly.
  virtual ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                              const Roster::Member& member, uint32_t slice, uint32_t* detail) = 0;
  // Whether an await of min_version is answered already.
  virtual bool Reached(uint32_t slice, uint64_t min_version) const = 0;

  // Goes on with what waited for a buffer. The engine calls it after every Unpin() that freed one,
  // and after a view or a dead lane has taken something out of the way.
  virtual void Retry() = 0;
  // The table got slices or chunks, or the roster got members.
  virtual void Resize() = 0;
  // Members came or went. Resize() has been called.
  virtual void RosterChanged() = 0;
  // A new generation of the job: what is held is answered kExpired, per-step state is forgotten.
  // What the log has is applied whether the follower has it or not; the caller has held reads.
  virtual void Reset() = 0;
  // Everything held in a slice is answered `why`. `keep`: the slice stays here (a new epoch).
  virtual void FailSlice(uint32_t slice, ReplyStatus why, bool keep) = 0;
  // Forgets what is held for a dead lane, without a word.
  virtual void ForgetLane(uint32_t lane) = 0;

  // What a copy of the slice has to know of workers.
  virtual std::vector<WorkerMark> Marks(uint32_t /*slice*/) const { return {}; }
  // How far each worker's pushes are in what is here: up to that sequence all of them, and nothing
  // behind. Those of Marks() may be on their way.
  virtual std::vector<WorkerMark> Applied(uint32_t /*slice*/) const { return {}; }
  // Applies at once what copies were told and nothing but memory or a disk holds up: rows that are
  // not in memory are read and waited for. Some may stay, for want of memory.
  virtual void ApplyNow(uint32_t /*slice*/) {}
  // A new copy that starts empty is told the clocks of workers: for one that it has not heard of
  // the next primary waits.
  virtual void TellClocks(uint32_t /*slice*/) {}
  // The slice was a copy and is the primary's now: that is known of workers, some of whom may be
  // gone.
  virtual void Adopt(uint32_t /*slice*/, absl::Span<const WorkerMark> /*marks*/) {}
};

// True: a push of the n numbers of `gradient` contributes zero and is answered *answer: an empty
// one, or one with a NaN or Inf where the table rejects (kNonFinite) or skips (kOk) such; those are
// counted here.
bool ContributesZero(SlicedTable* table, const Source& gradient, size_t n, Sink* sink,
                     ReplyStatus* answer);

// Tells the copy of the slice's partition, if there is one that knows the slice, what is known of a
// worker now.
void TellMark(Sink* sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
              const WorkerMark& mark);
// The same of what a view has changed, for which nobody has asked for room.
void NoteMark(Sink* sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
              const WorkerMark& mark);

// By what a mean divides where every push is an apply of its own.
uint32_t AsyncDivisor(const v1::TableSpec& spec, const Roster& roster);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_CONSISTENCY_H_
