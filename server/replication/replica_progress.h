// The progress of one replica with the records of its partition, as the primary's shard sees it:
// how many are in flight, for how long the replica refuses or does not answer, and when to give it
// up.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_REPLICATION_REPLICA_PROGRESS_H_
#define VERBENA_SERVER_REPLICATION_REPLICA_PROGRESS_H_

#include <cstdint>

#include "proto/wire/record.h"
#include "rdma/base/backoff.h"
#include "rdma/base/clock.h"
#include "server/nanoseconds.h"
#include "server/replication/configuration_calls.h"
#include "server/replication/peer_links.h"

namespace verbena::server {

// How long a primary keeps a replica that answers and takes no record of a partition: pushes to
// that partition wait meanwhile. Each turn is an attempt that was sent and refused.
struct ReplicaPatience {
  // Leases, where it has no room for now (RESOURCE_EXHAUSTED): a cold tier that is behind its disk
  // needs time, and a replica that is copied again needs more of it. 1 to 100.
  int64_t no_room_leases = 4;
  // Refusals for any other reason, in leases: it lacks the primary's view, or earlier records. 1 to
  // 100.
  int64_t other_leases = 1;
  // As a part of a lease, a follower whose server is at its memory limit. 1 to 100.
  int64_t no_memory_parts = 4;
  // Turns, in all cases: fewer may mean that its records waited behind others. 1 to 1,000.
  uint32_t fewest_turns = 4;
};

class ReplicaProgress {
 public:
  ReplicaProgress(PeerId copy, uint64_t since, uint64_t epoch)
      : copy_(copy), since_(since), epoch_(epoch) {}
  const PeerId& copy() const { return copy_; }
  // Since that configuration it is a replica, and of that epoch are its records.
  uint64_t since() const { return since_; }
  uint64_t epoch() const { return epoch_; }
  bool Same(const ReplicaProgress& other) const {
    return copy_ == other.copy_ && since_ == other.since_ && epoch_ == other.epoch_;
  }

  // ---- records and their parts ----
  void Sent(int64_t now) {
    if (out_++ == 0) heard_ns_ = now;
  }
  // Its link is dead: one of those in flight is not.
  void Ended() { --out_; }
  // One in flight was taken, `last` of its record; or refused, see Refuse().
  void Taken(bool last, int64_t now);
  // Returns whether it begins a turn: nothing is sent before records in flight have ended, and some
  // time has passed.
  bool Refuse(ReplyStatus status, int64_t now, Random& random);
  bool in_flight() const { return out_ > 0; }
  bool refused() const { return refused_; }
  // When refused records are sent again. kNever: not before others have ended.
  int64_t retry_at() const { return refused_ && out_ == 0 ? retry_at_ : kNever; }
  void Resend() { refused_ = false; }

  // ---- patience ----
  // At a look: whether records wait to be sent. absent: this side did not run, and answers may be
  // there that nobody has looked at.
  void Look(bool queued, bool absent, int64_t now);
  // peer_heard_ns: when the server last answered a record of any partition.
  GiveUp Judge(const ReplicaPatience& patience, int64_t lease_ns, int64_t peer_heard_ns,
               bool learner, int64_t now) const;
  // The replica reported that it cannot go on.
  bool broken() const { return broken_; }
  // It may be asked again.
  void Mend() { broken_ = false; }

 private:
  PeerId copy_;
  uint64_t since_, epoch_;
  uint32_t out_ = 0;  // records and parts
  bool refused_ = false;
  int64_t retry_at_ = 0;
  Backoff backoff_;
  // Turns refused since the last whole record that was taken, since when, and how the last one.
  uint32_t refusals_ = 0;
  int64_t refused_since_ = 0;
  ReplyStatus refusal_ = ReplyStatus::kOk;
  int64_t heard_ns_ = 0;  // the last answer to a record or part, or when one was sent after none
  int64_t waits_since_ = kNever;  // when a look first found records that it has not taken
  bool broken_ = false;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_REPLICA_PROGRESS_H_
