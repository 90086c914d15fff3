// Leases between a primary and its replicas: which server may answer for a partition, and since
// when a server has been silent (PacificA: Lin et al., PacificA: Replication in log-based
// distributed storage systems, Microsoft Research 2008).
//
// A primary sends beacons to its replicas. A follower's acknowledgement promises not to request
// another primary before a lease has passed since the beacon *came*. So the primary answers while
// the beacon was *sent* less than 0.8 of a lease ago. No two clocks are compared: each side
// measures its own, and their rates may differ by a quarter. A promoted replica answers once the
// lease that it granted has passed.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A primary with followers, or with a learner for which it has requested promotion to
//     follower, reads for workers only under the leases of all of these.
//  2. A shard serves as primary only after the lease has passed that its last answer to a beacon
//     granted, in whatever role. A learner's answer grants one too, because its primary may have
//     requested to make it a follower. A shard that was a follower until then also waits
//     for a lease since its last beacon, or since it became a replica. After a HAND_OVER a
//     follower need not wait: the primary before had served, and asked for it when it had stopped.
//  3. A follower reads for workers what its primary had at most the requested time ago. A beacon
//     that the primary sent while it might read, and as one that has this follower, tells that all
//     that it had applied is here. The time of sending is unknown here, but not before the answer
//     whose clock value comes back with it. Clocks may run a quarter faster here.
//  4. A side that did not run for a while judges no peer by that time.
#ifndef VERBENA_SERVER_REPLICATION_REPLICA_LEASES_H_
#define VERBENA_SERVER_REPLICATION_REPLICA_LEASES_H_

#include <cstdint>
#include <vector>

#include "proto/wire/record.h"
#include "server/nanoseconds.h"
#include "server/replication/peer_links.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class ReplicaLeases {
 public:
  // Follows this view as shard `self`.
  void Follow(const v1::ClusterView& view, const PeerId& self, int64_t now);
  // Whether there are replicas, here or elsewhere.
  bool active() const { return active_; }

  // Whether pushes to and reads of a partition may be answered.
  bool MayServe(uint32_t partition, int64_t now) const {
    return partition >= parts_.size() || parts_[partition].serve_from <= now;
  }
  bool MayRead(uint32_t partition, int64_t now) const {
    return partition >= parts_.size() ||
           (parts_[partition].serve_from <= now && now < parts_[partition].read_until);
  }

  // MayRead() for all partitions of this shard.
  bool MayReadAll(int64_t now);

  // ---- as the primary ----
  struct Beacon {
    PeerId to;
    std::vector<Group> groups;  // their sequence: Replica.since
  };
  // Beacons that are due.
  std::vector<Beacon> TakeBeacons(int64_t now);
  // `group`: of the beacon as it was sent.
  void Acknowledged(const PeerId& from, const Group& group, int64_t sent_ns);
  // The coordinator is asked to make the learner a follower: it may be one from now on.
  void Admitting(uint32_t partition, uint64_t server);

  // Whether this shard may read now as the primary of which the replica of the beacon's group is a
  // follower.
  bool Vouches(const PeerId& to, const Group& group, int64_t now) const;

  // Whether the server's replica has acknowledged a beacon that was sent at that time or later.
  bool Heard(uint32_t partition, uint64_t server, int64_t since) const;

  // ---- as a replica ----
  // `echo`: of this clock, when it answered the last beacon that the sender knows to be answered.
  ReplyStatus OnBeacon(const PeerId& from, const Group& group, int64_t now, int64_t echo = 0);
  // Whether a follower here has what its primary had at most `age_ns` ago.
  bool IsFresh(const Group& group, int64_t age_ns, int64_t now) const;

  // Appends the changes to request from the coordinator because of silence to *changes.
  void Judge(int64_t now, std::vector<v1::ConfigurationChange>* changes);
  int64_t NextTimerNanos() const { return active_ ? next_beacon_ns_ : kNever; }
  int64_t lease_ns() const { return lease_ns_; }

 private:
  enum class Role : uint8_t { kNone, kPrimary, kFollower, kLearner };
  // A replica elsewhere of a partition of which this shard is the primary.
  struct Copy {
    PeerId id;
    uint64_t since = 0;
    bool leased = false;   // it is a follower, or may be one
    int64_t sent_ns = 0;   // when the last beacon was sent that it acknowledged
    int64_t alive_ns = 0;  // the same, or since when there is the replica
  };
  struct Part {
    Role role = Role::kNone;
    uint64_t epoch = 0, configuration = 0;
    int64_t serve_from = 0;
    int64_t read_until = kNever;
    int64_t given_until = 0;   // end of the lease that this shard granted, in any role
    std::vector<Copy> copies;  // kPrimary
    // A replica: since when it is one, and its primary.
    uint64_t since = 0;
    PeerId primary;
    int64_t heard_ns = 0;
    int64_t fresh_ns = 0;  // all that its primary had applied then is here; 0: unknown
  };

  void FollowPrimary(const v1::Partition& partition, Part* part, const Part& was, int64_t now);
  void SetReadUntil(Part* part);

  PeerId self_;
  bool active_ = false;
  int64_t lease_ns_ = 0;
  int64_t next_beacon_ns_ = kNever;
  int64_t judged_ns_ = 0;
  int64_t read_all_until_ = 0;  // when read_all_known_
  bool read_all_known_ = false;
  std::vector<Part> parts_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_REPLICA_LEASES_H_
