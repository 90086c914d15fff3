#include "server/replication/replica_progress.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::server {
namespace {

// The replica will never take it: it differs from the primary, or one of the two has a bug.
bool Broken(ReplyStatus status) {
  return status == ReplyStatus::kMalformed || status == ReplyStatus::kOutOfRange ||
         status == ReplyStatus::kDataLoss;
}

}  // namespace

void ReplicaProgress::Taken(bool last, int64_t now) {
  --out_;
  heard_ns_ = now;
  // A part is no progress yet: the last one may be refused each time.
  if (!last) return;
  refusals_ = 0;
  backoff_.Reset();
}

bool ReplicaProgress::Refuse(ReplyStatus status, int64_t now, Random& random) {
  --out_;
  heard_ns_ = now;
  broken_ |= Broken(status);
  // Later refusals before the retry belong to the same turn.
  if (refused_) return false;
  refused_ = true;
  refusal_ = status;
  if (refusals_++ == 0) refused_since_ = now;
  // The record was ahead of the other side's view, or one was lost: retry soon.
  retry_at_ = now + backoff_.Next(random) / 8;
  return true;
}

void ReplicaProgress::Look(bool queued, bool absent, int64_t now) {
  if (!queued && out_ == 0 && !refused_) {
    waits_since_ = kNever;
  } else if (absent || waits_since_ == kNever) {
    waits_since_ = now;
  }
  if (!absent) return;
  heard_ns_ = now;
  refusals_ = 0;
}

GiveUp ReplicaProgress::Judge(const ReplicaPatience& patience, int64_t lease_ns,
                              int64_t peer_heard_ns, bool learner, int64_t now) const {
  if (waits_since_ == kNever) return GiveUp::kNo;
  if (now - std::max(waits_since_, peer_heard_ns) >= lease_ns) return GiveUp::kSilent;
  // Its record is on the way, others are answered, and it is not.
  if (out_ > 0 && now - heard_ns_ >= patience.no_room_leases * lease_ns) return GiveUp::kSilent;
  // It will have room when something goes there, not by itself: nobody waits for that.
  if (refused_ && refusal_ == ReplyStatus::kMemoryLimit) {
    const bool long_enough = refusals_ >= patience.fewest_turns &&
                             now - refused_since_ >= lease_ns / patience.no_memory_parts;
    return learner || long_enough ? GiveUp::kNoMemory : GiveUp::kNo;
  }
  const bool no_room =
      refusal_ == ReplyStatus::kResourceExhausted && !VERBENA_FAILPOINT(shard, drop_the_busy);
  const int64_t leases = no_room ? patience.no_room_leases : patience.other_leases;
  // Between its turns, which may wait behind those of other partitions, it is not refused.
  const bool refuses =
      refused_ && refusals_ >= patience.fewest_turns && now - refused_since_ >= leases * lease_ns;
  return refuses ? GiveUp::kRefuses : GiveUp::kNo;
}

}  // namespace verbena::server
