// The clocks of an ssp table: how many steps each worker has ended, by slice.
//
// Stale synchronous parallel (Ho et al.: More effective distributed ML via a stale synchronous
// parallel parameter server, NIPS 2013): pushes are applied as in async, and a pull by a worker
// that has ended c steps waits until every worker has ended c - s.
//
// A worker's clock is the worker's own, said in each end-step and pull, the same to all partitions:
// were it counted here, from wherever the least clock was when each partition heard of a joiner,
// two joiners could wait for each other. A joiner counts here as having the least clock, learns
// that from the answers to its pulls (Answer::version), and goes on from the greatest it has seen,
// which nobody's clock is behind.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_PARTITION_CLOCKS_H_
#define VERBENA_SHARD_PARTITION_CLOCKS_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "shard/engine.h"
#include "shard/partition/consistency.h"
#include "shard/partition/roster.h"

namespace verbena::shard {

class Clocks {
 public:
  // tell: what copies of a slice have to know of a worker.
  using Tell = std::function<void(uint32_t slice, const WorkerMark& mark)>;
  Clocks(const Roster* roster, uint64_t bound, Tell tell)
      : roster_(*roster), bound_(bound), tell_(std::move(tell)) {}

  // Takes over who is there. What waits in any slice may be readable now. Tells the clocks that
  // begin here: of those who have joined, and of all in a new slice.
  void Follow(uint32_t slices);
  // Tells the clocks of all in a slice.
  void TellAll(uint32_t slice) const;
  // A worker has ended `clock` steps. True: what waits in the slice may be readable now.
  bool EndStep(uint32_t slice, const Roster::Member& member, uint64_t clock);
  // Whether a worker that has ended `clock` steps may read; *answer gets the least clock as version
  // and by how much it is behind as detail.
  bool Readable(const Roster::Member& member, uint32_t slice, uint64_t clock, Answer* answer) const;
  // The same for a request that has waited, whose worker may be gone.
  bool Readable(uint64_t worker, uint32_t slice, uint64_t clock, Answer* answer) const {
    const Roster::Member* member = roster_.Find(worker);
    return member != nullptr && Readable(*member, slice, clock, answer);
  }
  // A member's clock.
  uint64_t of(uint32_t slice, uint32_t index) const { return slices_[slice].clocks[index]; }
  // The slice was a copy, which knew that of the workers; others count from the slice's least
  // clock until they end a step.
  void Adopt(uint32_t slice, absl::Span<const WorkerMark> marks);
  // A new generation of the job; Follow() comes next.
  void Reset();

 private:
  struct Slice {
    std::vector<uint64_t> clocks;  // by member index
    uint64_t least = 0;            // of all who count; never falls
  };

  uint64_t Least(const Slice& slice) const;

  const Roster& roster_;
  const uint64_t bound_;
  const Tell tell_;
  std::vector<Slice> slices_;
  std::vector<uint64_t> owners_;  // of each member index, as of the last roster
  std::vector<uint8_t> counts_;   // by member index: a worker, not an observer
  bool complete_ = false;         // no rank is waited for that has never joined
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_CLOCKS_H_
