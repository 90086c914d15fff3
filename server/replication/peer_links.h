// The lanes of a shard to the shards of other servers that keep replicas of its partitions: opened
// while they are wanted, reopened after a loss with backoff.
//
// States of a link (one for each server incarnation and shard):
//   kIdle -> kAsking (OpenLane called) -> kOpening (connecting, granting) -> kOpen
//   kAsking -> kIdle with backoff when refused; any with a lane -> kClosing (lost or closed)
//   kClosing -> kIdle once the lane is dead on our side: OnDead(), if it was open
//   kIdle, kAsking -> gone when it is no longer wanted
//
// **Thread safety**: one owner thread, the shard's.
//
// Invariants:
//  1. A link has one lane at a time; the next is requested only after the last is dead.
//  2. Between OnOpen() and its OnDead() a link has one lane. OnDead() comes once for each OnOpen(),
//     also for a link that is no longer wanted.
//  3. The data of a record is read until its OnReply() or its link's OnDead(), and never after.
//  4. Records of a link arrive in the order in which they were sent.
//  5. A beacon has room when the previous one was answered and its write has ended here: records
//     leave it an operation and a small slot, if the lane has more than one.
#ifndef VERBENA_SERVER_REPLICATION_PEER_LINKS_H_
#define VERBENA_SERVER_REPLICATION_PEER_LINKS_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/control/control_channel.h"
#include "proto/wire/record.h"
#include "rdma/base/backoff.h"
#include "rdma/base/clock.h"
#include "rdma/lane/lane_watch.h"
#include "rdma/lane/open_failures.h"
#include "rdma/lane/worker_lane.h"
#include "rdma/selection/transports.h"
#include "rdma/transport.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

// A shard of a server.
struct PeerId {
  uint64_t server = 0;  // incarnation
  uint32_t shard = 0;
  auto operator<=>(const PeerId&) const = default;
};

struct PeerRecord {
  RecordType type = RecordType::kReplicate;  // or kBeacon
  uint32_t table = 0;
  absl::Span<const Group> groups;         // copied by Send()
  const ReplicaHeader* header = nullptr;  // of a kReplicate; copied by Send()
  // The data after the header, read in place (invariant 3): its block is SlabAllocator::BlockOf()
  // of its buffer. May be empty.
  rdma::Segment data;
  uint64_t cookie = 0;  // comes back with the reply
  uint64_t echo = 0;    // of a beacon: RecordHeader::min_version
};

// Callbacks of a link. A callback may call Send() and the const functions, nothing else.
class PeerListener {
 public:
  virtual void OnOpen(const PeerId& peer) = 0;
  virtual void OnReply(const PeerId& peer, uint64_t cookie, const Reply& reply) = 0;
  // After a Send() that was false on an open link.
  virtual void OnRoom(const PeerId& peer) = 0;
  // Everything sent and not answered may be sent again, and its memory released.
  virtual void OnDead(const PeerId& peer) = 0;

 protected:
  ~PeerListener() = default;
};

struct PeerLinkCounters {
  uint64_t open = 0;  // now
  uint64_t opened = 0, lost = 0;
  uint64_t records = 0, payload_bytes = 0;
  uint64_t stalls = 0;  // Send() had no room
};

struct PeerLinkOptions {
  uint32_t shard = 0;  // ours
  uint64_t seed = 0;   // of the backoff's jitter; 0: from the system's random source
  // Called when links are opened, refused or lost. May be empty.
  std::function<void(const std::string&)> log;
};

class PeerLinks {
 public:
  // An endpoint of the shard's, which listens, too. Links use those of rail 0.
  struct Transport {
    rdma::Endpoint* endpoint = nullptr;
    std::string host;
    uint32_t rail = 0;
    uint64_t opened = 0;  // links over it, so far
  };
  // `control` null: no link opens. All pointers outlive it.
  PeerLinks(PeerLinkOptions options, std::vector<Transport> transports,
            std::vector<rdma::MissingTransport> missing, ControlChannel* control,
            const Clock* clock, PeerListener* listener);
  // Closes open links without callbacks.
  ~PeerLinks();

  // Follows this view as server `self`. Opens links that are wanted and in the view, and closes all
  // others; closes all if `self` differs from the last time.
  void Follow(std::shared_ptr<const v1::ClusterView> view, uint64_t self,
              absl::Span<const PeerId> wanted);

  // False: not open (OnOpen() follows) or no room now (OnRoom() follows). A record that does not
  // fit max_data_bytes() is the caller's bug: its link is closed, with a log line.
  bool Send(const PeerId& peer, const PeerRecord& record);
  bool IsOpen(const PeerId& peer) const;
  // The most data that one kReplicate may have; 0 when the link is not open.
  size_t max_data_bytes(const PeerId& peer) const;

  // An event of a connection from `transport` (index). False: it belongs to no link.
  bool OnEvent(size_t transport, const rdma::ConnectionEvent& event);
  bool OnCompletion(size_t transport, const rdma::Completion& completion);
  // Call it after these: it applies their effects to the links. It calls OnOpen(), OnRoom() and
  // OnDead().
  bool RunOnce();
  // May call OnRoom(), too.
  bool RunTimers(int64_t now);
  int64_t NextTimerNanos() const;

  PeerLinkCounters counters() const;

 private:
  enum class State : uint8_t { kIdle, kAsking, kOpening, kOpen, kClosing };
  struct Link {
    PeerId id;
    std::string name;  // of the server, by the view
    std::string address;
    bool wanted = true;
    State state = State::kIdle;
    std::unique_ptr<rdma::WorkerLane> lane;
    size_t transport = 0;  // of the lane
    std::string reason;    // why that one
    rdma::LaneWatch watch;
    Backoff backoff;
    uint64_t ask = 0;      // the OpenLane call whose answer counts
    int64_t retry_at = 0;  // kIdle: to ask; kClosing: to look again
    int64_t room_at = 0;   // kOpen, stalled: OnRoom() at the latest
    bool was_open = false;
    bool stalled = false;             // the last Send() had no room
    bool heard = false;               // a completion since
    uint64_t registered_block = 0;    // the last one that was made ready for writes of this lane
    absl::StatusCode last_told = {};  // of the last failure: the same one is not logged again
    // Transports that did not open are not offered again until an open lane is lost.
    std::vector<rdma::MissingTransport> unusable;
    rdma::OpenFailures failures;  // over the same transport
  };

  Link* FindOpen(const PeerId& peer) const;
  Link* Find(size_t transport, rdma::ConnectionId connection) const;
  bool Registered(Link* link, const rdma::MemoryBlock& block);
  void Ask(Link* link);
  void OnGranted(Link* link, absl::StatusOr<v1::OpenLaneResponse> response);
  absl::Status Connect(Link* link, const v1::OpenLaneResponse& response);
  void NoteOpenFailure(Link* link, size_t transport, const absl::Status& status);
  void Close(Link* link, absl::Status reason);
  // Follows the lane's state. Returns whether the link's changed.
  bool Advance(Link* link);
  void Ended(Link* link);
  void Failed(Link* link, const absl::Status& status);
  void Disown(const std::string& address, const PeerId& peer, const rdma::LaneTicket& ticket);
  void SetSelf(uint64_t self);
  std::string Name(const Link& link) const;
  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  const PeerLinkOptions options_;
  std::vector<Transport> transports_;
  const size_t kinds_;  // of these
  const std::vector<rdma::MissingTransport> missing_;
  ControlChannel* const control_;
  const Clock* const clock_;
  PeerListener* const listener_;
  Random random_;
  uint64_t self_ = 0;
  std::shared_ptr<const v1::ClusterView> view_;
  // Ordered: a simulation's behaviour must follow from its seed.
  std::map<PeerId, std::unique_ptr<Link>> links_;
  absl::flat_hash_map<uint64_t, Link*> by_connection_;
  uint64_t asks_ = 0;
  bool touched_ = false;  // RunOnce() has something to look at
  PeerLinkCounters counters_;
  std::vector<rdma::WorkerLane::Answer> answers_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_REPLICATION_PEER_LINKS_H_
