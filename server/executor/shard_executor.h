// One shard: its engine, its lanes on every transport, and what connects the two.
//
// **Thread safety**: one owner thread; inbox().Post() from any thread.
//
// Invariants:
//  1. A lane token is good once, for one worker, until lane_open_timeout.
//  2. A retired worker incarnation's lanes are closed as soon as a view without it arrives.
//  3. Bounded work per RunOnce(): at most kCompletionBudget completions per transport.
//  4. A lane id is given out again only after its old lane is dead and the engine has forgotten it.
//  5. A job has at most JobLimits::lanes here, counted from the grant to the end of the connection.
//     A lane that takes its worker's last one's place may be one more until that is closed.
//  6. A chunk being written out stays pinned until the transport no longer reads it.
//  7. A worker has at most one lane on each rail, and lanes on one transport only. Its next lane on
//     a rail ends the one before, which is dead on the worker's side whatever this side knows.
//     Between rails no such order is known: engine.h, invariant 9, is why none is needed.
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
#include "proto/verbena/v1/cluster.pb.h"
#include "proto/verbena/v1/shard.pb.h"
#include "rdma/base/clock.h"
#include "rdma/choice/transports.h"
#include "rdma/lane/lane_config.h"
#include "rdma/lane/write_watch.h"
#include "rdma/transport.h"
#include "server/executor/inbox.h"
#include "server/executor/job_memories.h"
#include "server/executor/memory_budget.h"
#include "shard/engine.h"

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
  LatencyHistogram push_latency;  // arrival to reply
  LatencyHistogram pull_latency;
  uint64_t lanes_open = 0, lanes_opened = 0, lanes_lost = 0;
  uint64_t credit_messages = 0;
  // Times a lane had all its operations, or all its slots of one size, in use here: its worker
  // had to wait for us before it could send more.
  uint64_t credit_stalls = 0;
  uint64_t queue_depth = 0;  // records arrived and unanswered
  uint64_t rejected_tokens = 0;
  uint64_t write_timeouts = 0;  // lanes closed because writes to the worker hung
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
  std::vector<rdma::MissingTransport> missing;  // transports
};

// Completions handled per transport in one RunOnce(): events and the inbox are looked at in
// between.
inline constexpr size_t kCompletionBudget = 256;

struct ShardExecutorOptions {
  uint32_t shard = 0;
  rdma::LaneConfig lane;
  absl::Duration lane_open_timeout = absl::Seconds(10);
  // A lane whose writes to the worker do not end is closed.
  absl::Duration write_timeout = absl::Nanoseconds(rdma::WriteWatch::kTimeoutNanos);
  uint64_t lane_memory_limit = uint64_t{4} << 30;
  uint64_t seed = 0;  // of tokens: 0 means from the system's random source
  uint32_t spare_buffers = 16;
  uint64_t slab_bytes = uint64_t{64} << 20;  // table memory is taken from the system in these
  // Of all shards of the server; null: no limit.
  std::shared_ptr<MemoryBudget> memory_budget;
  // Of all shards of the server; null: this shard is the only one.
  std::shared_ptr<JobMemories> job_memories;
  shard::CommitObserver commit_observer;  // tests
  // Told of lanes lost and closed, on the owner thread; never on the hot path. May be empty.
  std::function<void(const std::string&)> log;
  // Transports this server does not have, and why: workers are told.
  std::vector<rdma::MissingTransport> missing;
  // One that cannot listen becomes a missing one, as long as another can.
  bool optional_transports = false;
};

class ShardExecutor {
 public:
  // One endpoint per transport; the executor listens on each. `host` is what an offer of that
  // transport must say.
  using Transport = rdma::MadeTransport;
  static absl::StatusOr<std::unique_ptr<ShardExecutor>> Create(const ShardExecutorOptions& options,
                                                               const Clock* clock,
                                                               std::vector<Transport> transports);
  ~ShardExecutor();

  Inbox& inbox();

  // ---- by the owner thread (from other threads: post to the inbox) ----
  // The incarnation this server got when it joined; before it nothing is owned.
  void SetIncarnation(uint64_t incarnation);
  // A view older than the last one is ignored.
  void ApplyView(std::shared_ptr<const v1::ClusterView> view);
  absl::StatusOr<v1::OpenLaneResponse> OpenLane(const v1::OpenLaneRequest& request);
  absl::Status CloseLane(const v1::CloseLaneRequest& request);
  ShardSnapshot Snapshot() const;
  // What the engine said of the last view: RESOURCE_EXHAUSTED names tables without memory.
  const absl::Status& view_status() const;

  bool RunOnce();
  int64_t NextTimerNanos() const;
  bool Arm();
  void Disarm();
  void AppendDescriptors(std::vector<int>* fds) const;

 private:
  struct Impl;
  explicit ShardExecutor(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_EXECUTOR_H_
