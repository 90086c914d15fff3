// A whole cluster in one thread on virtual time: coordinator, servers, workers, over sim lanes and
// an in-process control plane. Everything follows from one seed.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SIM_CLUSTER_H_
#define VERBENA_TESTS_CLUSTER_SIM_CLUSTER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "client/core/client_core.h"
#include "proto/control/control_channel.h"
#include "rdma/sim/sim_network.h"
#include "server/checkpoint/files/disk.h"
#include "server/coordinator/coordinator.h"
#include "server/executor/shard_executor.h"
#include "server/membership.h"
#include "tests/cluster/sim_clock.h"
#include "tests/cluster/sim_control.h"
#include "tests/cluster/sim_inputs.h"
#include "tests/cluster/sim_store.h"
#include "tests/shard/fake_cold_store.h"

namespace verbena::test {

inline constexpr int64_t kMilli = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
// Chunks of a page: a record with one does not fit a small slot.
inline constexpr uint32_t kSimChunkBytes = 4096;
inline constexpr uint32_t kSimPartitions = 16;
inline constexpr char kCoordinatorAddress[] = "coordinator:1";

// The network's name of a rail of a process: each is cut and stalled by itself.
std::string RailHost(const std::string& host, uint32_t rail);
// The process that a rail is of.
std::string ProcessOf(const std::string& rail_host);

struct ClusterOptions {
  uint64_t seed = 1;
  int servers = 2;
  int shards = 2;
  uint32_t rails = 1;  // of each process
  uint32_t lease_ms = 2000;
  uint32_t replicas = 1, min_replicas = 1;
  // How far the clocks of two machines run apart: parts in a million either way.
  int drift_ppm = 0;
  // Lanes with few slots run out of them often.
  uint32_t small_slots = 8;
  uint32_t large_slots = 2;
  uint32_t operations = 16;
  uint32_t spare_buffers = 16;  // of a shard, for chunks that are changed while they are pulled
  shard::ReplicaLogLimits replica_log;
  uint64_t memory_limit = 0;  // of each server, for tables; 0: none
  server::AuditTunables audit;
  int terms_listed = kTermsListed;  // by the coordinator's view
  // The most calls that the coordinator takes up together, and saves in one write. 0: it takes up
  // each at once.
  int group_calls = 0;
  checkpoint::Disk* disk = nullptr;  // where checkpoints go
  // How long the next thing takes that a shard's thread for files does; empty: no time.
  std::function<int64_t()> file_io_ns;
  // Called when a shard has begun a save, and when it is asked to begin a restore; may be empty.
  std::function<void(const v1::BeginCheckpointRequest&, const shard::Engine&)> checkpoint_begun;
  std::function<void(const v1::BeginRestoreRequest&)> restore_begun;
  // Called when the coordinator's view has changed, at times several times in a turn; may be empty.
  std::function<void()> view_changed;
  // Each shard has a cold store, which completes some requests that often; 0: none has one.
  int64_t cold_io_ns = 0;
  rdma::SimFaults network;
  ControlFaults control;
  shard::CommitObserver commit_observer;
  std::function<void(const std::string&)> log;  // of servers; may be empty
};

// A server process.
class SimServer {
 public:
  SimServer(const ClusterOptions& options, int index, rdma::SimNetwork* network,
            SimControl* control);
  ~SimServer();
  bool RunOnce();
  int64_t NextTimerNanos() const;
  // When a turn changes anything again that no timer announces; by the network's clock.
  int64_t NextColdIo() const;
  uint64_t incarnation() const { return membership_->incarnation(); }
  const std::string& host() const { return host_; }
  const std::string& address() const { return address_; }
  uint32_t rails() const { return rails_; }
  // A stalled process does nothing until then: calls to it wait.
  void StallUntil(int64_t ns) {
    stalled_until_ = ns;
    SimInputs::CountCall();
  }
  bool stalled(int64_t now) const { return now < stalled_until_; }
  int64_t stalled_until() const { return stalled_until_; }
  // The machine of the process was suspended until now, for `ns`.
  void Resume(int64_t ns);
  // As at SIGTERM: it leaves the cluster, and has ended when it has, or after `timeout_ns`.
  void Leave(int64_t timeout_ns);
  // The process goes by itself: it has left, or its cluster goes on without it.
  bool ended() const { return membership_->ended(); }
  // A slow process: after each turn in which it did something it pauses that long.
  void SetPace(int64_t ns) { pace_ns_ = ns; }
  int64_t pace() const { return pace_ns_; }
  // The disk of its cold stores is full, so that nothing is written; the pause between its I/O.
  void SetColdFull(bool full);
  void SetColdIo(int64_t ns) {
    cold_io_ns_ = ns;
    SimInputs::CountCall();
  }
  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  const server::ShardExecutor& shard(uint32_t index) const { return *shards_[index]; }
  // The epoch in which that shard may answer reads of the partition; 0: it may not.
  uint64_t ReadsInEpoch(uint32_t shard, uint32_t partition) const {
    return shards_[shard]->ReadsInEpoch(partition);
  }

 private:
  server::ShardExecutor* FindShard(uint32_t shard);  // null: none
  void AddShard(const ClusterOptions& options, int index, int shard, rdma::SimNetwork* network);
  bool RunShard(size_t index, int64_t now);
  void Handle(const std::string& method, const std::string& request, SimControl::Respond respond);
  bool RunFiles(int64_t now);

  struct FileWork {
    int64_t at;
    server::Inbox::Closure what;
  };
  std::string host_, address_;
  const Clock* const network_clock_;
  SimClock clock_;
  SimControl* control_;
  std::unique_ptr<SimChannel> channel_;
  std::vector<absl::AnyInvocable<void()>> waiting_;  // calls that came while it was stalled
  SimInputs inputs_;                                 // of the membership
  std::vector<SimInputs> shard_inputs_;              // by shard
  const uint32_t rails_;
  std::shared_ptr<server::MemoryBudget> memory_;  // null: no limit
  int64_t cold_io_ns_;
  const std::function<int64_t()> file_io_ns_;
  const std::function<void(const v1::BeginCheckpointRequest&, const shard::Engine&)>
      checkpoint_begun_;
  const std::function<void(const v1::BeginRestoreRequest&)> restore_begun_;
  int64_t stalled_until_ = 0;
  int64_t pace_ns_ = 0;
  int64_t cold_at_ = 0;                      // when the cold stores do something next
  std::vector<std::deque<FileWork>> files_;  // by shard: the work of its file thread
  std::vector<std::unique_ptr<shard::FakeColdStore>> cold_;  // by shard, which they outlive
  std::vector<std::unique_ptr<server::ShardExecutor>> shards_;
  std::unique_ptr<server::Membership> membership_;
};

// A worker process: a ClientCore and its environment.
class SimWorker {
 public:
  struct Options {
    std::string job = "job";
    uint32_t expected_workers = 1;
    uint32_t max_workers = 0;
    int rank = -1;
    bool observer = false;
    uint64_t seed = 1;
    uint32_t rails = 1;
    size_t staging_bytes = 0;  // 0: as a client has by default
  };
  SimWorker(const std::string& host, const Options& options, int drift_ppm,
            rdma::SimNetwork* network, SimControl* control);
  // Not to be kept over turns of the cluster.
  client::ClientCore& core() {
    inputs_.Touch();
    ++turns_;
    return *core_;
  }
  // Turns of the core, and calls to it.
  uint64_t turns() const { return turns_; }
  const client::ClientCore& core() const { return *core_; }
  bool RunOnce();
  const std::string& host() const { return host_; }
  // The time of its own clock when the network's shows `ns`: deadlines use that clock.
  int64_t At(int64_t ns) const { return clock_.FromNetwork(ns); }
  int64_t NextTimerNanos() const;
  uint32_t rails() const { return static_cast<uint32_t>(endpoints_.size()); }
  // The thread that runs the core is in one call until then, as when memory is registered; the one
  // that keeps the lease runs.
  void HoldUntil(int64_t ns) {
    held_until_ = ns, keeper_at_ = 0;
    SimInputs::CountCall();
  }
  bool held(int64_t now) const { return now < held_until_; }
  int64_t held_until() const { return held_until_; }
  // The thread that runs the core sleeps where there is nothing to do, and runs it again when it is
  // woken or at the next timer.
  void set_sleeps(bool sleeps) { sleeps_ = sleeps; }
  // It is asleep, and an answer came that did not wake it.
  bool slept_through() const;
  // A stalled process does nothing until then.
  void StallUntil(int64_t ns) {
    stalled_until_ = ns;
    SimInputs::CountCall();
  }
  bool stalled(int64_t now) const { return now < stalled_until_; }
  int64_t stalled_until() const { return stalled_until_; }

 private:
  bool Woken();
  bool RunCore();

  std::string host_;
  const Clock* const network_clock_;
  const SimClock clock_;
  int64_t stalled_until_ = 0;
  int64_t held_until_ = 0, keeper_at_ = 0;  // the latter by its own clock
  bool sleeps_ = false, asleep_ = false;
  int64_t sleeps_until_ = 0;  // by its own clock
  uint64_t turns_ = 1;
  std::unique_ptr<SimChannel> channel_;
  std::vector<std::unique_ptr<rdma::Endpoint>> endpoints_;  // a rail each
  SimInputs inputs_;
  std::unique_ptr<client::ClientCore> core_;
};

class SimCluster {
 public:
  explicit SimCluster(const ClusterOptions& options);
  ~SimCluster();

  // A worker with a rail more or less than the servers have uses the common rails.
  SimWorker* AddWorker(const std::string& host, const SimWorker::Options& options);
  void CrashWorker(SimWorker* worker);
  void CrashServer(int index);
  // A new process under the same name, empty.
  void RestartServer(int index);
  // Stops and starts the coordinator on its store, whose faults end.
  void RestartCoordinator();
  // The coordinator does nothing until then: requests to it wait, its answers leave afterwards. Its
  // timers run before waiting requests, as after SIGCONT.
  void StallCoordinatorUntil(int64_t ns);
  bool coordinator_stalled() const { return now() < coordinator_stalled_until_; }
  SimStore& store() { return store_; }
  // How often the coordinator crashes, and starts again, at a group with changes: half of the times
  // before it is saved, else before it is answered.
  void set_group_crashes(double chance) { group_crashes_ = chance; }

  // Runs until `done` or the virtual time limit. Returns done().
  bool RunUntil(const std::function<bool()>& done, int64_t limit_ns);

  int64_t now() const { return clock_->NowNanos(); }
  rdma::SimNetwork& network() { return network_; }
  SimControl& control() { return control_; }
  const v1::ClusterView& view() const { return coordinator_->view(); }
  int servers() const { return static_cast<int>(servers_.size()); }
  SimServer* server(int index) { return servers_[index].get(); }
  const std::vector<std::unique_ptr<SimWorker>>& workers() const { return workers_; }

 private:
  void ServeCoordinator();
  void HandleCoordinator(const std::string& method, const std::string& bytes,
                         SimControl::Respond respond);
  bool RunCoordinator();
  bool RunGroup();
  void Wait(absl::AnyInvocable<void()> what);
  void ObserveView();
  bool RunProcesses();
  bool RunMembers();
  int64_t NextTimerOfMembers() const;  // of servers and workers
  int64_t NextTimerNanos() const;

  ClusterOptions options_;
  rdma::SimNetwork network_;
  const Clock* const clock_;  // the network's
  SimControl control_;
  const SimClock coordinator_machine_clock_;
  BlockedClock coordinator_clock_;
  int64_t coordinator_stalled_until_ = 0;
  std::deque<absl::AnyInvocable<void()>> coordinator_waiting_;  // requests to it and its answers
  std::mt19937_64 group_random_;
  double group_crashes_ = 0;
  int64_t group_at_ = 0;       // when waiting calls are taken up
  bool answers_lost_ = false;  // answers of the coordinator reach nobody now
  std::mt19937_64 coordinator_random_;
  SimStore store_;
  std::unique_ptr<server::Coordinator> coordinator_;
  uint64_t observed_revision_ = 0;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::vector<int> server_starts_;
  // Servers and workers have nothing to do until then, while these counts stay; 0: not known.
  int64_t idle_until_ = 0;
  uint64_t idle_calls_ = 0, idle_news_ = 0;
  int64_t members_timer_ = 0;  // their next one, where idle_until_ is known
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_CLUSTER_H_
