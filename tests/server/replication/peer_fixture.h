// Shards of several servers in one thread, with their links: over sim on virtual time, or over shm.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_REPLICATION_PEER_FIXTURE_H_
#define VERBENA_TESTS_SERVER_REPLICATION_PEER_FIXTURE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rdma/base/clock.h"
#include "rdma/sim/sim_network.h"
#include "server/executor/shard_executor.h"
#include "tests/cluster/sim_control.h"
#include "tests/rdma/forwarding_endpoint.h"

namespace verbena::server {

inline constexpr uint32_t kPeerChunkBytes = 64 * 1024;
inline constexpr uint64_t kPeerWorker = 500;  // a worker's incarnation
inline constexpr PeerId kA{10, 0}, kB{11, 0}, kC{12, 0};

// The configuration of every lane here.
rdma::LaneConfig PeerLaneConfig();

// Records of the lanes that an endpoint accepted, as they lie in their slots when they arrive.
class SpyEndpoint final : public rdma::ForwardingEndpoint {
 public:
  using ForwardingEndpoint::ForwardingEndpoint;
  struct Arrived {
    RecordHeader header = {};
    Group group = {};  // the first
    ReplicaHeader replica = {};
    std::vector<std::byte> data;  // behind that
  };
  std::vector<Arrived> arrived;
  rdma::LaneConfig config = PeerLaneConfig();  // of the lanes that it accepted
  absl::Status write_status;                   // of writes; OK: the transport's status
  int destroyed_alive = 0;                     // connections that were not dead

  absl::Status Prepare(rdma::ConnectionId connection,
                       const rdma::ConnectionLimits& limits) override;
  absl::StatusOr<rdma::RemoteMemory> Expose(rdma::ConnectionId connection,
                                            std::shared_ptr<rdma::MemoryBlock> block, size_t offset,
                                            size_t bytes) override;
  absl::Status PostWrite(rdma::ConnectionId connection,
                         const rdma::WriteRequest& request) override {
    if (!write_status.ok()) return write_status;
    return ForwardingEndpoint::PostWrite(connection, request);
  }
  size_t Poll(absl::Span<rdma::Completion> out) override;
  void Destroy(rdma::ConnectionId connection) override {
    if (!Dead(connection)) ++destroyed_alive;
    ForwardingEndpoint::Destroy(connection);
  }

 private:
  void Read(const std::byte* slot);
  std::set<rdma::ConnectionId> accepted_;
  std::map<rdma::ConnectionId, std::byte*> rings_;
};

// Records the calls of a shard's links.
struct PeerRecorder final : PeerListener {
  struct Answered {
    PeerId peer;
    uint64_t cookie = 0;
    ReplyStatus status = ReplyStatus::kOk;
  };
  std::vector<PeerId> opened, dead, room;
  std::vector<Answered> replies;

  void OnOpen(const PeerId& peer) override { opened.push_back(peer); }
  void OnReply(const PeerId& peer, uint64_t cookie, const Reply& reply) override {
    replies.push_back({peer, cookie, reply.status});
  }
  void OnRoom(const PeerId& peer) override { room.push_back(peer); }
  void OnDead(const PeerId& peer) override { dead.push_back(peer); }
};

class PeerWorld {
 public:
  // A shard of a server; servers are distinguished by their incarnation.
  struct Node {
    PeerId id;
    std::string address;
    bool paused = false;  // does nothing
    SpyEndpoint* endpoint = nullptr;
    PeerRecorder recorder;
    std::vector<std::string> log;
    int opens = 0, closes = 0;  // control calls that arrived
    absl::Status refuse_opens;
    std::unique_ptr<ShardExecutor> shard;
  };
  struct Configuration {
    PeerId primary;
    std::vector<PeerId> followers, learners;
  };

  explicit PeerWorld(bool shm) : PeerWorld(shm, 1, {}, {}) {}
  PeerWorld(bool shm, uint64_t seed, const rdma::SimFaults& network,
            const test::ControlFaults& control);

  std::unique_ptr<rdma::Endpoint> NewEndpoint(const std::string& host);
  // `replicates`: its links serve copies, instead of its recorder. small_slots: of lanes to it.
  Node& Add(const PeerId& id, bool replicates = false,
            uint32_t small_slots = PeerLaneConfig().small_slots);
  // As by a crash: peers learn of it only from the transport and from calls that fail.
  void Remove(Node* node);

  // The next view: these servers and those that were added, and a partition for each configuration.
  std::shared_ptr<v1::ClusterView> View(const std::vector<Configuration>& partitions,
                                        const std::set<uint64_t>& silent = {});
  // Every shard learns of it.
  void Apply(const std::shared_ptr<v1::ClusterView>& view);
  void Apply(Node* node, const std::shared_ptr<v1::ClusterView>& view);
  void Configure(const std::vector<Configuration>& partitions) { Apply(View(partitions)); }

  // False: it has not come true for a long time.
  bool Until(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(30));
  // Everybody runs for so long.
  void Pass(absl::Duration time);

  v1::OpenLaneRequest Request(const PeerId& from, const PeerId& to) const;
  // Closes the lanes of `node` on its side.
  void CloseLanes(Node* node);
  PeerLinkCounters counters(const Node& node) const {
    return node.shard->Snapshot().counters.links;
  }
  rdma::SimNetwork& network() { return network_; }
  test::SimControl& control() { return control_; }
  int64_t now() const { return clock_->NowNanos(); }

 private:
  void Serve(const std::string& address);
  Node* Find(const std::string& address, uint32_t shard);
  bool Run();
  int64_t NextTimerNanos() const;
  std::string transport() const { return shm_ ? "shm" : "sim"; }

  const bool shm_;
  const MonotonicClock real_;
  rdma::SimNetwork network_;
  const Clock* const clock_;
  test::SimControl control_;
  uint64_t revision_ = 0;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_REPLICATION_PEER_FIXTURE_H_
