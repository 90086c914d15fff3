// The members of a shard executor; private to server/executor/shard_*.cc.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_IMPL_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_IMPL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "proto/control/view_difference.h"
#include "proto/wire/operations.h"
#include "rdma/lane/shard_lane.h"
#include "server/executor/fair_queue.h"
#include "server/executor/largest_chunk.h"
#include "server/executor/shard_executor.h"
#include "server/executor/slab_allocator.h"
#include "server/nanoseconds.h"
#include "server/replication/replication.h"
#include "shard/operations/operations.h"

namespace verbena::server {

// RequestImm carries twelve bits of lane id. After this time a waiting request is returned if its
// lane can defer no more (RelieveDeferred()).
inline constexpr int64_t kLongDeferredNanos = 1'000'000'000;
// How long a request waits in its slot for room in the log for a replica. Longer than a replica
// that runs takes to answer; short enough for other requests of the lane to get their turn.
inline constexpr int64_t kLongestWaitForRoomNanos = 1'000'000'000;
inline constexpr int64_t kStarvedCheckNanos = 100'000'000;
// ConnectionLimits::domain of lanes between servers. No job has it (DomainOf()). It is also the
// default of a transport's own connections.
inline constexpr uint64_t kServersDomain = 0;

struct ShardExecutor::Impl final {
  // A record that arrived and is not answered yet; by operation.
  struct Operation {
    int64_t arrived_ns = 0;
    bool in_use = false;
    wire::Latency latency = wire::Latency::kOther;
    bool deferred = false;
    uint16_t group_count = 1;
  };
  // The peer that opens a lane.
  struct Peer {
    uint64_t incarnation = 0;
    bool server = false;
    uint32_t shard = 0;  // of that server
    bool operator==(const Peer&) const = default;
  };
  struct Lane {
    uint32_t id = 0;
    uint32_t generation = 0;
    Peer peer;
    uint64_t domain = 0;  // its worker's job, as in `workers`, or kServersDomain
    size_t transport = 0;
    std::string reason;
    size_t ring_bytes = 0;
    int64_t accept_deadline_ns = 0;
    bool closing = false;           // forgotten by the engine; waits for the transport
    uint64_t registered_block = 0;  // the last one that WriteOut() registered for this lane
    uint32_t deferred = 0;
    std::array<uint32_t, 2> slots_held = {0, 0};  // small, large
    std::vector<Operation> operations;
    // Pins are given back to the engine they were taken from, also after this server has joined
    // again under another incarnation and has a new one.
    std::shared_ptr<shard::Engine> engine;
    std::unique_ptr<rdma::ShardLane> lane;
  };
  // A lane granted and not connected yet.
  struct Pending {
    uint32_t id = 0;
    uint32_t generation = 0;
    Peer peer;
    uint64_t domain = 0;
    size_t transport = 0;
    std::string reason;
    rdma::LaneConfig config;
    int64_t expires_ns = 0;
  };
  struct Link {
    std::unique_ptr<rdma::Endpoint> endpoint;
    std::string host;
    std::string address;
    uint32_t rail = 0;
    absl::flat_hash_map<uint32_t, Lane*> by_connection;
    // Completions come in runs of one connection.
    rdma::ConnectionId last_connection = rdma::ConnectionId::kNone;
    Lane* last_lane = nullptr;
  };
  struct Job {
    std::string name;
    uint32_t lane_limit = 0;  // 0: none
    std::vector<uint64_t> members;
  };
  struct Sample {
    int64_t arrived_ns;
    wire::Latency latency;
  };

  Impl(const ShardExecutorOptions& o, const Clock* c);
  ~Impl();
  // Call when `links` is final.
  void MakePeerLinks(std::unique_ptr<ControlChannel> channel);

  // ---- shard_lanes.cc: granting, connecting, closing ----
  absl::StatusOr<v1::OpenLaneResponse> OpenLane(const v1::OpenLaneRequest& request);
  // The peer that asks; an error if it may not open a lane.
  absl::StatusOr<Peer> CheckOpen(const v1::OpenLaneRequest& request) const;
  absl::StatusOr<Peer> CheckOpener(const v1::OpenLaneRequest& request) const;
  // Index into `links`. shard_selection.cc.
  absl::StatusOr<size_t> ChooseTransport(const v1::OpenLaneRequest& request,
                                         std::string* reason) const;
  absl::StatusOr<size_t> ChooseRail(size_t link, uint32_t rail) const;
  // How many there are of the link's transport.
  uint32_t RailsOf(size_t link) const;
  // Whether a lane on this rail can be granted: rails beyond 0 leave one for rail 0 of each member.
  absl::Status CheckFreeLanes(uint32_t rail) const;
  absl::StatusOr<rdma::LaneConfig> FitLane() const;
  // Whether there is room for a lane on rail 0, after one was refused.
  absl::Status LaneShortage() const;
  absl::Status CloseLane(const v1::CloseLaneRequest& request);
  bool PollEvents(size_t transport);
  // Whether a new lane of `peer` over that link ends `lane`.
  bool TakesPlace(const Peer& peer, size_t link, const Lane& lane) const;
  void CloseOlder(const Pending& grant);
  void OnRequest(size_t transport, const rdma::ConnectionEvent& event);
  absl::StatusOr<Pending> TakeToken(size_t transport, const std::string& private_data,
                                    LaneHello* hello);
  // From the system's random source, or from options.seed. False: there is none yet.
  bool NewToken(std::string* token);
  void DropPending(const std::string& token);
  // Closes a lane; the engine forgets it at once.
  void Close(Lane* lane, absl::Status reason);
  // Notices that a lane has left kOpen by itself. Returns whether it may still be used.
  bool Usable(Lane* lane);
  void StartClosing(Lane* lane);
  bool ReapClosing();
  void CloseAll(const absl::Status& reason);
  void RetirePeers();
  // Whether the view allows this peer lanes here.
  bool MayHaveLanes(const Peer& peer) const {
    return peer.server ? servers.contains(peer.incarnation) : workers.contains(peer.incarnation);
  }
  // "worker 12"; "shard 0 of server 'b' (incarnation 3)".
  std::string NameOf(const Peer& peer) const;
  bool RunTimers(int64_t now);
  // Grants that nobody took up, connections that were not established in time.
  void CheckPending(int64_t now);
  // Lanes whose writes hang.
  void CheckWrites(int64_t now);

  // ---- shard_jobs.cc: lanes and limits of jobs ----
  // Updates the jobs' members from the view. `what`: its difference to the previous view.
  void UpdateJobs(const ViewDifference& what);
  void UpdateServers();
  // Null: the view has no such job (any more).
  void UpdateJob(const std::string& name, const v1::Job* job);
  // Whether this shard is a follower or learner of a partition whose primary that is.
  bool KeepsCopiesOf(uint64_t server) const;
  // A job's lanes: granted, accepting, open and closing, without those in use that a new lane of
  // `peer` over `link` takes the place of.
  uint32_t LanesOf(uint64_t domain, const Peer& peer, size_t link) const;
  absl::Status CheckLaneLimit(const Peer& peer, size_t link) const;
  std::vector<JobSnapshot> JobSnapshots() const;

  // ---- shard_dispatch.cc: records, events, answers ----
  bool PollCompletions(size_t transport);
  Lane* FindLane(Link* link, rdma::ConnectionId connection);
  // Answers from here on go to this lane, until the next call; null: none.
  void Answering(Lane* lane);
  void Unpin(Lane* lane, const std::vector<uint64_t>& cookies);
  void Dispatch(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Answers the request, or has it wait.
  void Handle(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Performs the outcome that the handler of the request's operation has returned.
  void Act(Lane* lane, const rdma::ShardLane::Arrival& arrival, const shard::Outcome& outcome);
  // At most half of a lane's operations may wait, so that pushes always get through. Beyond that, a
  // request is answered if it can be at once, and otherwise the worker has to ask again.
  bool MayDefer(const Lane& lane) const {
    return lane.deferred < std::max(lane.lane->params().config.operations / 2, 1u);
  }
  void Defer(Lane* lane, uint32_t operation, uint32_t slot);
  // When a lane's share of waiting requests is used up, pulls that have waited for long are
  // returned: the worker may not wait for them any more, and may need the lane for something else.
  void RelieveDeferred(Lane* lane, int64_t now);
  void Reply(Lane* lane, const rdma::ShardLane::Answer& answer);
  void WriteOut(Lane* lane, const shard::ChunkView& view, const rdma::RemoteMemory& destination,
                rdma::ShardLane::Answer answer);
  // Makes the chunk's memory ready to be written from. False: the pull was answered with an error.
  bool Registered(Lane* lane, const shard::ChunkView& chunk, rdma::ShardLane::Answer* answer);
  void ReturnSlot(Lane* lane, uint32_t slot);
  void SlotFreed(Lane* lane, uint32_t slot);
  // The operation ends: its latency is counted with the next clock reading.
  void Answered(Lane* lane, uint32_t operation);
  bool DrainEngine();
  void OnEngineEvent(const shard::Event& event);
  void FlushSamples();

  // ---- shard_waiting.cc: requests that wait for room in the replication log ----
  // Whether an older request for one of its partitions waits, of any table: one that names many
  // partitions would not find room in all of them at once, if others took it in between.
  bool IsBehindWaiting(const Record& record) const;
  void WaitForRoom(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Handles them again, in order, if there may be room.
  bool RetryWaiting();
  // Refuses requests that have waited for too long.
  bool RefuseWaiting(int64_t now);
  int64_t NextWaitingNanos() const;
  // Tables that lack memory are tried again, after that time at the earliest.
  void AwaitMemory(int64_t check_after_ns = kStarvedCheckNanos);
  bool RetryStarved(int64_t now);
  void ForgetWaiting(const Lane* lane);
  void CountWaiting(const Record& record, int change);

  // ---- shard_replication.cc: replicas of this shard's partitions, and replicas here ----
  // Takes the servers with replicas of this shard's partitions from the view.
  void FollowPeers();
  void Replicate(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  void Beacon(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Adds this server's free memory to an answer to a primary.
  void ReportRoom(rdma::ShardLane::Answer* answer) const;
  // Whether this shard's promises to replicas allow an answer to a worker's record. Otherwise the
  // answer is kNotReady.
  bool MayAnswer(const Record& record) const;
  // To every group. Returns the slot.
  void Refuse(Lane* lane, const rdma::ShardLane::Arrival& arrival, ReplyStatus status);
  std::vector<v1::ReplicaStatistics> ReplicaStatistics() const;

  // Whether every partition that the view gives to this shard is its own to answer for now.
  template <typename Request>
  absl::Status MayCheckpoint(const Request& request) const;

  void ReadClock() {
    now_ns = clock->NowNanos();
    if (now_ns >= next_seconds_ns && engine != nullptr) ReadSeconds();
  }
  void ReadSeconds();
  int64_t NextTimer() const;
  void Log(const std::string& text) const {
    if (options.log) options.log(text);
  }

  const ShardExecutorOptions options;
  const Clock* const clock;
  Inbox inbox;
  FairQueue calls{clock};
  SlabAllocator allocator;
  std::unique_ptr<ControlChannel> control;  // null: none
  std::vector<Link> links;
  std::vector<rdma::MissingTransport> missing;

  uint64_t incarnation = 0;
  std::shared_ptr<const v1::ClusterView> view;
  // Members of any job of the view, with the domain that separates their job's memory from other
  // jobs'.
  absl::flat_hash_map<uint64_t, uint64_t> workers;
  absl::flat_hash_map<uint64_t, Job> jobs;  // of the view, by the same
  // Other servers of the view that may have lanes here. A silent server keeps its lanes while this
  // shard has replicas of its partitions: perhaps only the coordinator cannot reach it.
  absl::flat_hash_set<uint64_t> servers;
  LargestChunk largest_chunk;  // of the view
  absl::Status view_status;
  std::shared_ptr<shard::Engine> engine;  // null before the incarnation is known

  std::vector<std::unique_ptr<Lane>> lanes;  // by id; null: none connected
  std::vector<uint32_t> free_ids;
  std::vector<Lane*> closing;
  absl::flat_hash_map<std::string, Pending> pending;  // by token
  uint32_t next_generation = 1;
  uint64_t lane_memory = 0;   // rings of lanes connected and pending
  bool lane_refused = false;  // the last request for a lane found no room
  uint64_t token_state;

  int64_t now_ns = 0;  // read once per batch
  int64_t next_seconds_ns = 0;
  int64_t next_write_check_ns = kNever;
  int64_t next_pending_check_ns = kNever;
  int64_t next_starved_check_ns = kNever;
  int64_t starved_check_ns = 0;
  ShardCounters counters;
  uint64_t retired_credit_messages = 0;
  uint64_t unregistered_block = 0;  // the last one whose registration failed: logged once

  struct Waiting {
    Lane* lane = nullptr;
    rdma::ShardLane::Arrival request;
    int64_t until_ns = 0;
  };
  std::deque<Waiting> waiting;  // by time of arrival; at most the slots of all lanes
  bool waiting_left = false;    // one of several partitions is gone: others may find room
  absl::flat_hash_map<uint32_t, uint32_t> waiting_by_partition;  // how many

  // Reused, so that the hot path does not allocate.
  std::vector<rdma::Completion> completions;
  Lane* answering = nullptr;  // within PollCompletions() and DrainEngine()
  std::vector<rdma::ConnectionEvent> events;
  std::vector<shard::Event> engine_events;
  std::vector<uint64_t> written;
  std::vector<Sample> samples;
  shard::Scratch scratch;
  rdma::ShardLane::Arrival arrival;
  ShardCheckpoints saves;
  ShardRestores restores;
  std::unique_ptr<Replication> replication;
  // Over the endpoints of `links`: goes first.
  std::unique_ptr<PeerLinks> peer_links;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_IMPL_H_
