// How pushes become applies: the interface of sync, ssp and async, one object per table.
//
// The engine has checked the request: the worker is a member that may push, the chunk is resident
// and its slice ready, the payload has the chunk's size (or is empty: a contribution of zero) and
// is aligned.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_CONSISTENCY_H_
#define VERBENA_SHARD_PARTITION_CONSISTENCY_H_

#include <cstdint>
#include <memory>

#include "shard/engine.h"
#include "shard/partition/parking.h"
#include "shard/partition/roster.h"
#include "shard/partition/sink.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {

// What a table's consistency works with; all outlive it.
struct TableParts {
  DenseTable* table;
  Parking* parking;
  BufferPool* pool;
  const Roster* roster;
  Sink* sink;
};

class Consistency {
 public:
  virtual ~Consistency() = default;

  virtual PushOutcome Push(const PushRequest& request, const Roster::Member& member,
                           uint32_t chunk) = 0;
  // `slice` is ready. clock: ssp, the steps this worker has ended now. *detail: contributions
  // missing, with kTooEarly.
  virtual ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                              const Roster::Member& member, uint32_t slice, uint32_t* detail) = 0;
  // Whether an await of min_version is answered already.
  virtual bool Reached(uint32_t slice, uint64_t min_version) const = 0;
  // Whether a pull of min_version is answered now; otherwise it is parked. sync, async: a version
  // of the chunk. ssp: the clock of `member`; answer->detail says by how much the least clock is
  // behind it, and answer->version is that.
  virtual bool Readable(const Roster::Member& member, uint32_t chunk, uint64_t min_version,
                        Answer* answer) const = 0;

  // Goes on with what waited for a buffer. The engine calls it after every Unpin() that freed one,
  // and after a view or a dead lane has taken something out of the way.
  virtual void Retry() = 0;
  // The table got chunks, or the roster got members.
  virtual void Resize() = 0;
  // Members came or went. Resize() has been called.
  virtual void RosterChanged() = 0;
  // A new generation of the job: what is held is answered kExpired, per-step state is forgotten.
  virtual void Reset() = 0;
  // Everything held in a slice is answered `why`. `keep`: the slice stays here (a new epoch).
  virtual void FailSlice(uint32_t slice, ReplyStatus why, bool keep) = 0;
  // Forgets what is held for a dead lane, without a word.
  virtual void ForgetLane(uint32_t lane) = 0;
};

std::unique_ptr<Consistency> MakeSync(const TableParts& parts);
std::unique_ptr<Consistency> MakeAsync(const TableParts& parts);
std::unique_ptr<Consistency> MakeSsp(const TableParts& parts);

// True: the push contributes zero and is answered *answer: an empty one, or one with a NaN or Inf
// where the table rejects (kNonFinite) or skips (kOk) such; those are counted here.
bool ContributesZero(DenseTable* table, const PushRequest& request, uint32_t elements, Sink* sink,
                     ReplyStatus* answer);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_CONSISTENCY_H_
