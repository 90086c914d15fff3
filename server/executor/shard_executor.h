// One shard: its engine, its lanes on every transport, its links to shards with replicas of its
// partitions, and the code that connects them.
//
// **Thread safety**: one owner thread; inbox().Post() and Post() from any thread.
//
// Invariants:
//  1. A lane token is good once, for one worker or server, until lane_open_timeout.
//  2. A retired worker incarnation's lanes are closed as soon as a view without it arrives. Lanes
//     of another server are closed then, too, or when a view reports that server silent and this
//     shard has no replicas of its partitions.
//  3. Bounded work per RunOnce(): at most kCompletionBudget completions per transport.
//  4. A lane id is given out again only after its old lane is dead and the engine has forgotten it.
//  5. A job has at most JobLimits::lanes here, counted from the grant to the end of the connection.
//     A lane that takes its worker's last one's place may be one more until that is closed.
//  6. A chunk being written out stays pinned until the transport no longer reads it.
//  7. A worker has at most one lane on each rail, and lanes on one transport only. Its next lane on
//     a rail ends the one before, which is dead on the worker's side whatever this side knows.
//     Between rails no such order is known: engine.h, invariant 10, is why none is needed. The same
//     holds for each shard of another server.
//  8. A lane of a server takes replicates and beacons, a worker's lane everything else; any other
//     record closes the lane.
//  9. A push or an end of a step that the log for a replica has no room for waits in its slot, in
//     the order of arrival with all others of its partitions, for at most kLongestWaitForRoomNanos;
//     then it is answered kResourceExhausted, and its worker sends it again. Reads and other
//     partitions do not wait behind it, as long as its lane has slots. Of several groups those
//     whose partition is being handed over are refused, and the others do not wait for them.
//
// A lane's large slots hold the largest chunk of any table known when it is opened. A lane opened
// before a table with larger chunks was created must be opened again for it: OpenLaneResponse
// carries the sizes, so a client knows that a chunk does not fit.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/control/control_channel.h"
#include "proto/protocol_version.h"
#include "rdma/base/clock.h"
#include "rdma/lane/lane_config.h"
#include "rdma/lane/write_watch.h"
#include "rdma/selection/transports.h"
#include "rdma/transport.h"
#include "server/checkpoint/shard_checkpoints.h"
#include "server/checkpoint/shard_restores.h"
#include "server/executor/fair_queue.h"
#include "server/executor/inbox.h"
#include "server/executor/job_memories.h"
#include "server/executor/memory_budget.h"
#include "server/replication/peer_links.h"
#include "server/replication/replication.h"
#include "shard/engine.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

// Powers of two of microseconds: bucket i counts latencies below 2^i us; the last one the rest.
struct LatencyHistogram {
  static constexpr int kBuckets = 24;
  std::array<uint64_t, kBuckets> counts = {};
  uint64_t sum_ns = 0;
  uint64_t count = 0;
  void Add(int64_t ns);
};

struct ShardCounters {
  shard::EngineCounters engine;
  shard::CheckpointCounters saves;
  shard::ColdCounters cold;
  LatencyHistogram push_latency;  // arrival to reply
  LatencyHistogram pull_latency;
  uint64_t lanes_open = 0, lanes_opened = 0, lanes_lost = 0;
  uint64_t credit_messages = 0;
  // Times a lane had all its operations, or all its slots of one size, in use here: its worker
  // had to wait for us before it could send more.
  uint64_t follower_pulls = 0;      // answered in place of the primary
  uint64_t follower_redirects = 0;  // refused, so that the primary answers
  uint64_t credit_stalls = 0;
  uint64_t queue_depth = 0;  // records arrived and unanswered
  uint64_t rejected_tokens = 0;
  uint64_t write_timeouts = 0;  // lanes closed because writes to the worker hung
  PeerLinkCounters links;       // to shards that keep replicas of this one's partitions
  ReplicationCounters replication;
  // For replicas of this shard's partitions: the largest number of records of one partition that
  // its follower lacks; bytes that learners still have to receive.
  uint64_t replica_lag = 0, learner_bytes = 0;
  // Requests that wait in their slots for room in the logs for these replicas, whose bounds these
  // are.
  uint64_t waiting_for_room = 0;
  shard::ReplicaLogLimits replica_log;
};

struct JobSnapshot {
  shard::JobStatistics engine;
  uint32_t lanes = 0;
  uint32_t lane_limit = 0;  // 0: none
};

struct ShardSnapshot {
  ShardCounters counters;
  std::vector<shard::TableStatistics> tables;  // by id
  std::vector<JobSnapshot> jobs;               // by name
  std::vector<v1::LaneStatistics> lanes;
  std::vector<rdma::MissingTransport> missing;      // transports
  std::vector<v1::ReplicaStatistics> replicas;      // by partition
  std::vector<v1::PartitionStatistics> partitions;  // where they were wanted
  // Described at v1::ShardStatistics.
  uint64_t memory_limit = 0, memory_reserved = 0;
  bool memory_full = false;
  std::string lanes_refused;   // v1::ShardStatistics::lanes_refused
  std::string cold_unwritten;  // v1::ShardStatistics::cold_unwritten
};

// Completions handled per transport in one RunOnce(): events and the inbox are looked at in
// between.
inline constexpr size_t kCompletionBudget = 256;

struct ShardExecutorOptions {
  uint32_t shard = 0;
  rdma::LaneConfig lane;
  // From a grant to the connection request, and from that to the lane: more than a worker's stages
  // (address, route, connection: 5 s each) together.
  absl::Duration lane_open_timeout = absl::Seconds(20);
  // A lane whose writes to the worker do not end is closed.
  absl::Duration write_timeout = absl::Nanoseconds(rdma::WriteWatch::kTimeoutNanos);
  uint64_t lane_memory_limit = uint64_t{4} << 30;
  uint32_t max_lanes = 4096;  // of one shard, as the immediate has bits for; 1 to 4,096
  Protocols protocols = SpokenProtocols();
  uint64_t seed = 0;  // of tokens: 0 means from the system's random source
  uint32_t spare_buffers = 16;
  shard::ReplicaLogLimits replica_log;
  AuditTunables audit;
  uint64_t slab_bytes = uint64_t{64} << 20;  // table memory is taken from the system in these
  // The budget of all shards of the server; null: no limit.
  std::shared_ptr<MemoryBudget> memory_budget;
  // Memory of jobs on all shards of the server; null: this shard is the only one.
  std::shared_ptr<JobMemories> job_memories;
  // Where checkpoints go; null: no checkpoints. `file_io` runs closures on one other thread, in
  // order, and is stopped before the executor is destroyed; null: they run at once.
  checkpoint::Disk* disk = nullptr;
  std::function<void(Inbox::Closure)> file_io;
  // Store of rows that are not in memory; outlives the executor, whose inbox gets a closure when an
  // operation is done. Null: tables with a cold tier cannot be served.
  shard::ColdStore* cold_store = nullptr;
  shard::CommitObserver commit_observer;  // tests
  // Since the same time on all servers, for rows that go by their age; empty: this machine's clock.
  std::function<uint32_t()> wall_seconds;
  PeerListener* peer_listener = nullptr;  // tests: of the links, instead of the shard itself
  // Called when a lane is lost or closed, on the owner thread; never on the hot path. May be empty.
  std::function<void(const std::string&)> log;
  // Transports that this server does not have, with the reason; reported to workers.
  std::vector<rdma::MissingTransport> missing;
  // A transport that cannot listen is reported as missing, as long as another one can listen.
  bool optional_transports = false;
};

struct ShardCore;

class ShardExecutor {
 public:
  // One endpoint per transport; the executor listens on each, and opens links over those of rail 0.
  // `host` is the host name that an offer of that transport must have. `control`, of this shard
  // alone, calls other servers; null: no links are opened.
  using Transport = rdma::MadeTransport;
  static absl::StatusOr<std::unique_ptr<ShardExecutor>> Create(
      const ShardExecutorOptions& options, const Clock* clock, std::vector<Transport> transports,
      std::unique_ptr<ControlChannel> control = nullptr);
  ~ShardExecutor();

  Inbox& inbox();
  // A call of `caller` (a token's id, or a host): one runs in each RunOnce(), in turn with the
  // calls of other callers (FairQueue::Post()). UNAVAILABLE: too many wait.
  absl::Status Post(const std::string& caller, Inbox::Closure& closure, FairQueue::Refuse refuse);
  // Runs all that has been posted; when no driver does.
  void Drain();

  // ---- by the owner thread (from other threads: post to the inbox) ----
  // The incarnation this server got when it joined; before it nothing is owned.
  void SetIncarnation(uint64_t incarnation);
  // host:port of the coordinator, which decides on changes of configurations. Before this call none
  // are requested.
  void SetCoordinator(const std::string& address);
  // A view older than the last one is ignored. `changes`: those that turned an earlier view into
  // this one, oldest first. If they begin at the last view given, only the entries that they name
  // are examined.
  void ApplyView(std::shared_ptr<const v1::ClusterView> view,
                 absl::Span<const v1::ViewChange> changes = {});
  absl::StatusOr<v1::OpenLaneResponse> OpenLane(const v1::OpenLaneRequest& request);
  absl::Status CloseLane(const v1::CloseLaneRequest& request);
  // Parts of checkpoints: shard.proto. WaitCheckpoint() may answer later, in RunOnce().
  absl::StatusOr<v1::BeginCheckpointResponse> BeginCheckpoint(
      const v1::BeginCheckpointRequest& request);
  void WaitCheckpoint(const v1::WaitCheckpointRequest& request, ShardCheckpoints::Reply reply);
  absl::Status EndCheckpoint(const v1::EndCheckpointRequest& request);
  absl::Status BeginRestore(const v1::BeginRestoreRequest& request);
  void WaitRestore(const v1::WaitRestoreRequest& request, ShardRestores::Reply reply);
  ShardSnapshot Snapshot() const;
  // v1::ShardStatistics::partitions. Passes over all tables for each partition.
  std::vector<v1::PartitionStatistics> PartitionContents() const;
  // Result of the last view in the engine: RESOURCE_EXHAUSTED names tables without memory.
  const absl::Status& view_status() const;
  PeerLinks& links();                                // for replication, and tests
  const shard::Engine* engine() const;               // tests. Null before the incarnation is known
  ReplicationCounters replication_counters() const;  // tests
  // Tests: the epoch in which it may answer reads of the partition now; 0: it may not.
  uint64_t ReadsInEpoch(uint32_t partition) const;

  bool RunOnce();
  int64_t NextTimerNanos() const;
  bool Arm();
  void Disarm();
  void AppendDescriptors(std::vector<int>* fds) const;

 private:
  explicit ShardExecutor(std::unique_ptr<ShardCore> core);
  std::unique_ptr<ShardCore> core_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_H_
