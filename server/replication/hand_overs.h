// Planned moves of a shard's partitions: stops a partition, and decides when the coordinator is
// asked to make a follower its primary.
//
// **Thread safety**: one owner thread, the shard's.
//
// Invariants:
//  1. A partition stops only when it was served here, the follower and the coordinator were heard a
//     moment ago, and goes on soon when it could not ask. Where the cluster keeps one replica, no
//     step of a sync table is open in it then.
//  2. Partitions that can be handed over at one time stop together, only while the coordinator can
//     be asked at once, and HAND_OVER is asked for all of them in one call: each further call would
//     be one more round in which they are not served. One that is ready waits for the others no
//     longer than it took itself. Before the next ones stop, workers have kPauseFactor times as
//     long for each server that hands over, up to kLongestPause: calls with keys of many partitions
//     would wait for one after the other otherwise.
//  3. Once HAND_OVER was asked for, it goes on in another configuration only: until then the
//     follower may be the primary already, and not wait for the lease that it gave.
#ifndef VERBENA_SERVER_REPLICATION_HAND_OVERS_H_
#define VERBENA_SERVER_REPLICATION_HAND_OVERS_H_

#include <cstdint>
#include <map>

#include "server/nanoseconds.h"
#include "server/replication/peer_links.h"
#include "server/replication/replica_leases.h"
#include "shard/engine.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

class HandOvers {
 public:
  static constexpr int64_t kPauseFactor = 4;
  static constexpr int64_t kLongestPause = 1000 * kNanosPerMilli;

  // A new engine has stopped nothing.
  void Reset() { stopped_.clear(); }
  // Partitions of another configuration go on. `self`: this shard.
  void Follow(const v1::ClusterView& view, const PeerId& self, shard::Engine* engine, int64_t now);
  // A follower of that partition that the primary is to drop; 0: none.
  uint64_t Surplus(uint32_t partition) const;
  // Whether the partition waits for an answer of the coordinator, to know that it is there.
  bool NeedsTicket(uint32_t partition, int64_t ticket_ns, const ReplicaLeases& leases,
                   int64_t now) const;
  // The coordinator, as this shard knows it.
  struct Coordinator {
    int64_t answered_ns = 0;  // when it last answered
    bool ready = false;       // no call to it is in flight
  };
  // Stops the partition if it is to be handed over. Returns the server to ask HAND_OVER for, when
  // all replicas have everything; 0: not now, or it was asked for a moment ago.
  uint64_t Ready(uint32_t partition, const Coordinator& coordinator, const ReplicaLeases& leases,
                 shard::Engine* engine, int64_t now);
  // From when on HAND_OVER is asked for the partitions that are ready: `now`, or when the wait for
  // those is over that stopped with them; kNever: none is ready yet.
  int64_t AskNanos(int64_t now) const;
  void Asked(uint32_t partition, int64_t now) {
    stopped_.at(partition).asked = true;
    stopped_.at(partition).asked_ns = now;
  }
  // Whether answers of replicas are waited for.
  bool waits() const { return !stopped_.empty(); }
  // Whether a partition waits for the end of the call to the coordinator that is in flight.
  bool waits_for_call() const;
  // Whether steps are waited for that are open in a partition.
  bool closing() const;
  // When partitions may stop that could not because of those before; kNever: none waits for that.
  int64_t NextNanos(int64_t now) const;

 private:
  struct Planned {
    uint64_t configuration = 0;
    uint64_t heir = 0, surplus = 0;  // servers
  };
  struct Stopped {
    uint64_t configuration = 0;
    uint64_t heir = 0;
    int64_t since_ns = 0;
    int64_t ready_ns = 0;  // when all replicas had everything; 0: not yet
    int64_t asked_ns = 0;  // last
    bool closing = true;   // until no step is open
    bool asked = false;
    bool resumed = false;  // it could not ask, and goes on for a while
  };

  // Those that are not served now.
  bool AnyStopped() const;
  bool MayStop(const Coordinator& coordinator, int64_t now);
  // The last of those that stopped together goes on.
  void Pause(int64_t now);

  bool between_steps_ = false;           // partitions stop between steps
  int64_t handing_over_ = 0;             // servers
  int64_t together_ns_ = 0;              // when the newest ones stopped
  int64_t paused_until_ns_ = 0;          // none stops before
  bool delayed_ = false;                 // one is to stop then, or after the call in flight
  std::map<uint32_t, Planned> planned_;  // by partition
  std::map<uint32_t, Stopped> stopped_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_HAND_OVERS_H_
