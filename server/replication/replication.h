// Replication of a shard: sends its engine's records and beacons to replicas, answers those of
// other primaries, and asks the coordinator for changes of configurations.
//
// **Thread safety**: one owner thread, the shard's.
//
// Invariants:
//  1. A partition's records are sent in order, and again from the first unanswered one when one was
//     refused, but not before all that are out are answered or their link is dead: the engine's
//     memory is read by one of them at a time.
//  2. A replica is given up when it answers no record of any partition for a lease while one waits
//     for it, when it differs, or when it has refused one partition's records in each of their
//     turns for as long as ReplicaPatience allows. A partition whose records wait behind those of
//     others is not given up for that; one that waits has an end in each case.
//  3. A beacon that is due goes before records: those never keep it from being sent.
#ifndef VERBENA_SERVER_REPLICATION_REPLICATION_H_
#define VERBENA_SERVER_REPLICATION_REPLICATION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "proto/control/control_channel.h"
#include "proto/protocol_version.h"
#include "proto/wire/record_check.h"
#include "rdma/base/clock.h"
#include "server/replication/configuration_calls.h"
#include "server/replication/hand_overs.h"
#include "server/replication/move_pace.h"
#include "server/replication/peer_links.h"
#include "server/replication/replica_leases.h"
#include "server/replication/replica_progress.h"
#include "shard/engine.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// The comparison of followers with their primaries while nothing is wrong.
struct AuditTunables {
  // Nanoseconds from one turn to the next, 1 ms to 1 h; kNever (the default): no audit. verbenad
  // takes 1 s: with 1 MiB a turn a shard reads 1 MiB/s at most.
  int64_t interval_ns = kNever;
  // Bytes of contents compared in a turn, which the shard's thread reads at once, as does the
  // follower's: under 1 ms in memory, about 2 to 20 ms where rows are cold. 4 KiB to 16 MiB.
  uint64_t turn_bytes = 1 << 20;
};

struct ReplicationOptions {
  uint32_t shard = 0;
  uint64_t seed = 0;  // of request ids; 0: from the system's random source
  std::function<void(const std::string&)> log;
  AuditTunables audit = {};
  ReplicaPatience patience = {};
};

struct ReplicationCounters : ConfigurationCounters {
  uint64_t sent_records = 0, resent = 0, refused = 0;
  uint64_t applied_records = 0;  // as a replica
  uint64_t no_memory = 0;        // turns in which a follower was at its server's memory limit
  uint64_t mismatches = 0;  // records by which a replica found that it is not equal to its primary
};

class Replication final : public PeerListener {
 public:
  // `control` null: configurations are not changed from here.
  Replication(ReplicationOptions options, ControlChannel* control, const Clock* clock);
  // Before anything else. It outlives this.
  void SetLinks(PeerLinks* links) { links_ = links; }
  // host:port. Before that, configurations are not changed from here.
  void SetCoordinator(std::string address) { calls_.SetCoordinator(std::move(address)); }

  // Follows a view that the engine has, as server `self`.
  void Follow(std::shared_ptr<const v1::ClusterView> view, uint64_t self,
              std::shared_ptr<shard::Engine> engine);
  ReplicaLeases& leases() { return leases_; }
  ReplicationCounters counters() const {
    ReplicationCounters all = counters_;
    static_cast<ConfigurationCounters&>(all) = calls_.counters();
    return all;
  }

  // Sends records and beacons, as far as there is room.
  bool Send();
  bool RunTimers(int64_t now);
  int64_t NextTimerNanos() const;

  // ---- as a replica ----
  shard::Answer OnRecord(const PeerId& from, const Record& record,
                         absl::Span<const std::byte> payload);
  // `echo`: RecordHeader::min_version of the beacon.
  ReplyStatus OnBeacon(const PeerId& from, const Group& group, uint64_t echo);

  // ---- PeerListener ----
  void OnOpen(const PeerId& peer) override;
  void OnReply(const PeerId& peer, uint64_t cookie, const Reply& reply) override;
  void OnRoom(const PeerId& peer) override;
  void OnDead(const PeerId& peer) override;

 private:
  struct Out {  // sent and not answered
    uint32_t partition = 0;
    uint64_t sequence = 0;
    bool last = false;  // part of the record
    uint64_t since = 0, epoch = 0;
    // For a beacon.
    int64_t sent_ns = 0;
    std::vector<Group> groups;
  };
  struct Peer {
    // Groups of beacons that are due and had no room yet: they go before records.
    std::deque<std::vector<Group>> beacons;
    std::deque<shard::ReplicaRecord> queue;
    uint32_t offset = 0;  // of the first: bytes sent
    bool blocked = false;
    std::map<uint64_t, Out> out;  // by cookie
    uint64_t echo = 0;            // RecordHeader::min_version of the next beacon
    int64_t heard_ns = 0;         // when it last answered a record, whatever the answer
  };
  ReplicaProgress* Find(uint32_t partition, const PeerId& copy);
  // Where it counts; null: a beacon, or of a configuration that is over.
  ReplicaProgress* PartOf(const PeerId& copy, const Out& out);
  bool SendTo(const PeerId& id, Peer* peer);
  bool SendFirst(const PeerId& id, Peer* peer);
  bool SendBeacon(const PeerId& id, Peer* peer);
  void SendBeacons(int64_t now);
  bool FollowersRead() const { return ProtocolInForce(*view_) >= kFollowersProtocol; }
  // Frees records that the engine handed over for that replica and that will not be sent any more,
  // if no part of them is in flight.
  void ReleaseUnsent(const PeerId& copy, uint32_t partition);
  void OnRefused(Peer* peer, uint32_t partition, ReplicaProgress* part, ReplyStatus status);
  bool ResendRefused(int64_t now);
  void FollowCopies();
  // Takes records of the engine, within the limit for learners of planned moves.
  bool TakeRecords();
  void Reconfigure(int64_t now);
  // Sets waits_since of all partitions. After a time in which this side did not run, it begins
  // anew.
  void LookForWaiting(int64_t now);
  GiveUp Judge(uint32_t partition, const ReplicaProgress& part, int64_t now) const;
  // Of a partition of this shard with replicas; false: none is wanted.
  bool WantChange(const v1::Partition& partition, int64_t now, WantedChange* wanted);
  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  const ReplicationOptions options_;
  const Clock* const clock_;
  PeerLinks* links_ = nullptr;
  Random random_;
  ConfigurationCalls calls_;
  uint64_t self_ = 0;
  std::shared_ptr<const v1::ClusterView> view_;
  std::shared_ptr<shard::Engine> engine_;
  ReplicaLeases leases_;
  HandOvers hand_overs_;
  MovePace pace_;
  std::map<PeerId, Peer> peers_;                     // ordered: a simulation follows from its seed
  std::vector<std::vector<ReplicaProgress>> parts_;  // by partition
  std::vector<uint32_t> learners_;                   // partitions of this shard that have one
  uint32_t refused_ = 0;                             // of parts_
  uint64_t last_cookie_ = 0;
  int64_t next_ask_ns_ = 0;
  int64_t looked_ns_ = 0;  // LookForWaiting()
  int64_t next_audit_ns_ = 0;
  ReplicationCounters counters_;
  std::vector<shard::ReplicaRecord> records_;  // scratch of Send()
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_REPLICATION_H_
