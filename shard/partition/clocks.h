// The clocks of an ssp table: how many steps each worker has ended, by slice.
//
// Stale synchronous parallel (Ho et al.: More effective distributed ML via a stale synchronous
// parallel parameter server, NIPS 2013): pushes are applied as in async, and a pull by a worker
// that has ended c steps waits until every worker has ended c - s.
//
// Each worker counts its own clock, and sends it in each end-step and pull to all partitions. A
// count here could deadlock: each partition would start a joiner at the least clock at the time
// when it saw the joiner, so two joiners could wait for each other. Here a joiner has the least
// clock. It learns that clock from the answers to its pulls (Answer::version), and continues from
// the greatest that it has seen; no worker's clock is behind that one.
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
#include "shard/partition/members.h"

namespace verbena::shard {

class Clocks {
 public:
  // Sends a worker's progress to the replicas of a slice.
  using Replicate = std::function<void(uint32_t slice, const WorkerMark& mark)>;
  Clocks(const Members* members, uint64_t bound, Replicate replicates)
      : members_(*members), bound_(bound), replicate_(std::move(replicates)) {}

  // Applies the current members; waiting requests of any slice may be readable now. Replicates the
  // clocks that begin here: those of joiners, and all of them in a new slice.
  void Follow(uint32_t slices);
  // Replicates the clocks of all members in a slice.
  void ReplicateAll(uint32_t slice) const;
  // A worker has ended `clock` steps. True: waiting requests of the slice may be readable now.
  bool EndStep(uint32_t slice, const Members::Member& member, uint64_t clock);
  // Whether a worker that has ended `clock` steps may read. *answer gets the least clock as
  // version, and the distance to it as detail.
  bool Readable(const Members::Member& member, uint32_t slice, uint64_t clock,
                Answer* answer) const;
  // Readable() for a deferred request, whose worker may be gone.
  bool Readable(uint64_t worker, uint32_t slice, uint64_t clock, Answer* answer) const {
    const Members::Member* member = members_.Find(worker);
    return member != nullptr && Readable(*member, slice, clock, answer);
  }
  // A member's clock.
  uint64_t of(uint32_t slice, uint32_t index) const { return slices_[slice].clocks[index]; }
  // The slice changes from replica to primary, with these clocks of workers. Other workers count
  // from the slice's least clock until they end a step.
  void Adopt(uint32_t slice, absl::Span<const WorkerMark> marks);
  // A new generation of the job; Follow() comes next.
  void Reset();

 private:
  struct LocalPartition {
    std::vector<uint64_t> clocks;  // by member index
    uint64_t least = 0;            // of all counted members; never falls
  };

  uint64_t Least(const LocalPartition& slice) const;

  const Members& members_;
  const uint64_t bound_;
  const Replicate replicate_;
  std::vector<LocalPartition> slices_;
  std::vector<uint64_t> owners_;  // of each member index, as of the last member list
  std::vector<uint8_t> counts_;   // by member index: a worker, not an observer
  bool complete_ = false;         // no rank is waited for that has never joined
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PARTITION_CLOCKS_H_
