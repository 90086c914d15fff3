#include "tests/cluster/scenario.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "proto/spec/table_spec.h"
#include "server/coordinator/failpoints.h"
#include "tests/cluster/reference.h"
#include "tests/cluster/scenario_worker.h"

namespace verbena::test {
namespace {

constexpr int64_t kFaultsEnd = 8 * kSecond;
constexpr int64_t kLimit = 120 * kSecond;
constexpr uint32_t kFirstTable = 1;  // the id that the coordinator gives

class Scenario {
 public:
  explicit Scenario(const ScenarioOptions& options) : random_(options.seed * 31 + 7) {
    // The keys of a partition depend on the table's id, which is to be the first one: no older
    // state is put back here.
    server::failpoints().reuse_ids = true;
    state_.options = options;
    state_.result = &result_;
    const v1::TableSpec spec = Spec();
    state_.table = options.keys > 0 ? std::make_unique<ScenarioTable>(spec, kFirstTable,
                                                                      options.keys, kSimPartitions)
                                    : std::make_unique<ScenarioTable>(spec);
    state_.reference =
        std::make_unique<SyncReference>(state_.table.get(), options.replicas > 1, options.mean);
    ClusterOptions cluster;
    cluster.seed = options.seed;
    cluster.network.connection_loss = options.connection_loss;
    cluster.network.missed_loss = options.missed_loss;
    cluster.network.connect_failure = options.connect_failure;
    cluster.network.max_death_delay_ns = options.death_delay_ns;
    cluster.control.loss = options.control_loss;
    cluster.small_slots = std::uniform_int_distribution<uint32_t>(1, 8)(random_);
    cluster.large_slots = std::uniform_int_distribution<uint32_t>(1, 2)(random_);
    cluster.operations = std::uniform_int_distribution<uint32_t>(4, 16)(random_);
    cluster.rails = options.rails;
    cluster.drift_ppm = options.drift_ppm;
    cluster.replicas = options.replicas;
    cluster.min_replicas = options.min_replicas;
    // Two chunks of a partition, four of all: pushes wait for room.
    if (options.tight_log && options.seed % 2 == 1) {
      cluster.replica_log = {8 << 10, 16 << 10, 4 << 10};
    }
    cluster.servers = options.replicas > 1 ? 3 : cluster.servers;
    fault_time_ns_ = options.replicas > 1 ? 3 * kFaultsEnd : kFaultsEnd;
    cluster.commit_observer = [this](const shard::Commit& commit) { OnCommit(commit); };
    cluster_ = std::make_unique<SimCluster>(cluster);
    state_.cluster = cluster_.get();
    cluster_->network().set_write_observer(
        [this](const std::string& host, uint64_t block, const std::byte*, size_t bytes) {
          const auto settled = state_.settled.find(block);
          if (settled != state_.settled.end() && settled->second == ProcessOf(host)) {
            state_.Violation(
                absl::StrCat(bytes, " bytes were written into a settled buffer of ", host));
          }
        });
  }

  ~Scenario() { server::failpoints().reuse_ids = false; }
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  ScenarioResult Run() {
    for (int rank = 0; rank < state_.options.workers; ++rank) AddWorker(rank);
    // Some begin with a rail that is not there.
    while (state_.options.rails > 1 && std::bernoulli_distribution(0.3)(random_)) HurtRail();
    next_fault_ = cluster_->now() + NextFaultDelay();
    const bool ended = cluster_->RunUntil([this] { return Turn(); }, kLimit);
    if (!ended && result_.violations.empty()) {
      std::string who;
      for (const auto& worker : state_.workers) absl::StrAppend(&who, " ", worker->Describe(), ";");
      state_.Violation(absl::StrCat("the job did not go on after the faults stopped:", who));
    }
    for (const auto& worker : state_.workers) {
      result_.rail_moves += worker->process()->core().statistics().rail_moves;
    }
    if (result_.violations.empty()) CheckFinalState();
    if (const uint64_t count = cluster_->network().receiver_not_ready(); count > 0) {
      state_.Violation(absl::StrCat(count, " writes met no posted receive"));
    }
    state_.workers.clear();
    cluster_.reset();
    return result_;
  }

 private:
  v1::TableSpec Spec() const {
    v1::TableSpec spec;
    spec.set_name("weights");
    spec.set_job("job");
    if (state_.options.keys > 0) {
      spec.set_dim(2);
    } else {
      spec.add_shape(state_.options.elements);
    }
    if (state_.options.narrow) {
      const bool sync = state_.options.consistency == v1::CONSISTENCY_SYNC;
      spec.set_dtype(sync ? v1::DTYPE_BF16 : v1::DTYPE_F32);
      spec.set_gradient_dtype(v1::DTYPE_BF16);
    }
    spec.set_push_codec(state_.options.push_codec);
    spec.set_pull_codec(state_.options.pull_codec);
    spec.set_consistency(state_.options.consistency);
    spec.set_staleness(state_.options.staleness);
    spec.set_reduction(state_.options.mean ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM);
    spec.set_chunk_bytes(kSimChunkBytes);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    return *NormalizeTableSpec(spec);
  }

  void AddWorker(int rank) {
    SimWorker::Options worker;
    worker.rails = state_.options.rails;
    worker.expected_workers = state_.options.workers;
    if (state_.options.elastic) worker.max_workers = state_.options.workers + 1;
    // Ranks beyond the expected ones are not asked for by name.
    worker.rank = rank < state_.options.workers ? rank : -1;
    worker.seed = state_.options.seed * 17 + rank;
    SimWorker* process = cluster_->AddWorker(absl::StrCat("worker-", rank), worker);
    state_.workers.push_back(
        std::make_unique<ScenarioWorker>(&state_, process, rank, worker.seed * 3 + 1));
  }

  void OnCommit(const shard::Commit& commit) {
    ++result_.commits;
    const uint64_t primary =
        primaries_.try_emplace({commit.chunk, commit.epoch}, commit.server).first->second;
    if (commit.epoch == 0 || primary != commit.server) {
      state_.Violation(absl::StrCat("chunk ", commit.chunk, " was changed by server ",
                                    commit.server, " in epoch ", commit.epoch, " of server ",
                                    commit.epoch == 0 ? 0 : primary));
    }
    if (state_.options.consistency != v1::CONSISTENCY_SYNC) return;
    std::vector<int> ranks;
    for (uint64_t incarnation : commit.contributors) {
      const auto it = ranks_.find(incarnation);
      if (it != ranks_.end()) ranks.push_back(it->second);
    }
    const std::string wrong =
        state_.reference->Commit(commit.chunk, commit.step, ranks, commit.divisor);
    if (!wrong.empty()) state_.Violation(wrong);
    if (state_.options.elastic) CheckMembers(commit);
  }

  // A step waits for every member that counts in it, and for none before its first step.
  void CheckMembers(const shard::Commit& commit) {
    const v1::Job* job = FindJobNamed("job", cluster_->view());
    if (job == nullptr || job->generation() > 1) return;
    for (const auto& worker : state_.workers) {
      const SimWorker& process = *worker->process();
      const uint64_t incarnation = process.core().incarnation();
      const v1::Worker* member = incarnation == 0 ? nullptr : FindMember(incarnation, *job);
      if (member == nullptr || member->rank() < 0) continue;
      const v1::FirstStep* first = FirstStepOf(commit.table, *member, *job);
      const uint64_t step = first == nullptr ? 0 : first->step();
      const bool contributed = std::find(commit.contributors.begin(), commit.contributors.end(),
                                         incarnation) != commit.contributors.end();
      if (commit.step < step && contributed) {
        state_.Violation(absl::StrCat("chunk ", commit.chunk, " committed step ", commit.step,
                                      " with ", worker->Describe(), ", whose first step is ",
                                      step));
      }
      if (commit.step >= step && worker->first_open_step() <= commit.step) {
        state_.Violation(absl::StrCat("chunk ", commit.chunk, " committed step ", commit.step,
                                      " without ", worker->Describe(), ", whose first step is ",
                                      step));
      }
    }
  }

  int64_t Millis(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_) * kMilli;
  }
  int64_t NextFaultDelay() {
    return std::uniform_int_distribution<int64_t>(5 * kMilli, 600 * kMilli)(random_);
  }

  void InjectFault() {
    next_fault_ = cluster_->now() + NextFaultDelay();
    const int kind = std::uniform_int_distribution<int>(0, 9)(random_);
    ScenarioWorker* victim =
        state_.workers[std::uniform_int_distribution<size_t>(0, state_.workers.size() - 1)(random_)]
            .get();
    // Step 0 waits for every expected worker: one that is gone before all have joined would be
    // waited for for good.
    const bool formed =
        std::all_of(state_.workers.begin(), state_.workers.end(),
                    [](const auto& w) { return w->process()->core().incarnation() != 0; });
    if (state_.options.rails > 1 && std::bernoulli_distribution(0.5)(random_)) return HurtRail();
    if (state_.options.replicas > 1 && formed && Pick(2) == 0) return HurtServer();
    const int most_crashes = state_.options.elastic ? 3 : 1;
    if (kind == 0 && state_.options.crashes && formed && result_.crashed < most_crashes) {
      ++result_.crashed;
      cluster_->CrashWorker(victim->process());
      state_.workers.erase(std::find_if(state_.workers.begin(), state_.workers.end(),
                                        [victim](const auto& w) { return w.get() == victim; }));
    } else if (kind >= 1 && kind <= 3 && state_.options.stalls && formed) {
      ++result_.stalled;
      victim->process()->StallUntil(cluster_->now() + Millis(1, 1500));
    } else if (kind >= 5 && kind <= 6 && state_.options.joins && formed &&
               result_.joined < (state_.options.elastic ? 6 : 3)) {
      AddWorker(state_.options.workers + result_.joined++);
    } else if (kind == 4 && state_.options.coordinator_restarts) {
      cluster_->RestartCoordinator();
    } else if (kind == 7 && state_.options.hangs) {
      ++result_.hung;
      cluster_->network().Hang(AnyRail());
    } else if (kind == 8 && state_.options.partitions && formed && recovered_) {
      ++result_.partitioned;
      Partition();
    } else if (kind == 9 && state_.options.replicas > 1 && formed && recovered_) {
      ++result_.outlived;
      Outlive();
    }
  }

  // A rail of a worker or a server dies for a while, or nothing moves on it. If the other rail of
  // the process is hurt already, the process has none left.
  void HurtRail() {
    const std::string host = AnyRail();
    const int64_t until = cluster_->now() + Millis(1, 2000);
    if (std::bernoulli_distribution(0.5)(random_)) {
      ++result_.rails_stalled;
      cluster_->network().Stall(host, until);
    } else {
      ++result_.rails_cut;
      cut_[host] = until;
      cluster_->network().Cut(host, true);
    }
  }

  bool FullyReplicated() const {
    const v1::ClusterView& view = cluster_->view();
    return view.partitions_size() > 0 &&
           std::all_of(view.partitions().begin(), view.partitions().end(),
                       [](const v1::Partition& p) { return p.followers_size() > 0; });
  }

  // Whatever one server has, another has, too, and nothing keeps it from going on with it.
  bool MayLoseServer() const {
    const v1::ClusterView& view = cluster_->view();
    bool well = FullyReplicated() && partitions_.empty() && down_.empty() && later_.empty();
    for (int i = 0; well && i < cluster_->servers(); ++i) {
      const SimServer& server = *cluster_->server(i);
      well = !server.stalled(cluster_->now()) &&
             std::any_of(view.servers().begin(), view.servers().end(),
                         [&](const auto& s) { return s.incarnation() == server.incarnation(); });
    }
    return well && std::all_of(view.servers().begin(), view.servers().end(),
                               [](const auto& s) { return s.state() == v1::Server::ALIVE; });
  }

  void HurtServer() {
    const auto index = static_cast<int>(Pick(static_cast<size_t>(cluster_->servers())));
    if (!recovered_) return;
    if (Pick(2) == 0) {
      ++result_.servers_stalled;
      cluster_->server(index)->StallUntil(cluster_->now() + Millis(1, 5000));
    } else if (MayLoseServer()) {
      recovered_ = false;
      ++result_.servers_killed;
      cluster_->CrashServer(index);
      down_[index] = cluster_->now() + Millis(1, 4000);
    }
  }

  void RestartServers(int64_t now) {
    std::erase_if(down_, [&](const auto& server) {
      if (server.second > now) return false;
      cluster_->RestartServer(server.first);
      return true;
    });
  }

  size_t Pick(size_t count) { return std::uniform_int_distribution<size_t>(0, count - 1)(random_); }
  std::string AnyServer() {
    auto index = static_cast<int>(Pick(static_cast<size_t>(cluster_->servers())));
    while (cluster_->server(index) == nullptr) index = (index + 1) % cluster_->servers();
    return cluster_->server(index)->host();
  }
  std::string AnyWorker() { return state_.workers[Pick(state_.workers.size())]->process()->host(); }
  std::string AnyRail() {
    const size_t workers = state_.workers.size();
    const bool worker = Pick(workers + static_cast<size_t>(cluster_->servers())) < workers;
    return RailHost(worker ? AnyWorker() : AnyServer(),
                    static_cast<uint32_t>(Pick(state_.options.rails)));
  }

  // A worker or a server and the coordinator, or a worker and a server, do not hear one another's
  // calls for a while, at times longer than a lease: or one of them does, and the other does not.
  void Partition() {
    std::string one = Pick(2) == 0 ? AnyWorker() : AnyServer();
    std::string other = "coordinator";
    if (Pick(3) == 0) one = AnyWorker(), other = AnyServer();
    if (Pick(2) == 0) std::swap(one, other);
    const int64_t until = cluster_->now() + Millis(1, 3000);
    const bool both = Pick(2) == 0;
    CutOff(one, other, until);
    if (both) CutOff(other, one, until);
  }

  void CutOff(const std::string& from, const std::string& to, int64_t until) {
    partitions_[{from, to}] = until;
    cluster_->control().Cut(from, to, true);
  }

  // A server stalls for longer than its lease; it and a worker hear of its replacement only after
  // they have exchanged messages again.
  void Outlive() {
    SimServer* server =
        cluster_->server(static_cast<int>(Pick(static_cast<size_t>(cluster_->servers()))));
    if (server == nullptr) return;
    const int64_t wakes = cluster_->now() + Millis(2300, 3500);
    server->StallUntil(wakes);
    later_.emplace(cluster_->now() + 1800 * kMilli, [this, wakes, host = server->host()] {
      CutOff("coordinator", host, wakes + kSecond);
      CutOff(host, "coordinator", wakes + kSecond);
      CutOff("coordinator", AnyWorker(), cluster_->now() + 1700 * kMilli);
    });
  }

  void MendPartitions(int64_t now) {
    std::erase_if(partitions_, [&](const auto& partition) {
      if (partition.second > now) return false;
      cluster_->control().Cut(partition.first.first, partition.first.second, false);
      return true;
    });
  }

  void MendRails(int64_t now) {
    std::erase_if(cut_, [&](const auto& cut) {
      if (cut.second > now) return false;
      cluster_->network().Cut(cut.first, false);
      return true;
    });
  }

  void StopFaults() {
    faults_stopped_ = true;
    later_.clear();
    RestartServers(INT64_MAX);
    MendRails(INT64_MAX);
    MendPartitions(INT64_MAX);
    cluster_->network().set_faults(rdma::SimFaults());
    cluster_->control().set_faults(ControlFaults());
  }

  bool Turn() {
    if (!result_.violations.empty()) return true;
    if (cluster_->now() >= fault_time_ns_ && !faults_stopped_) StopFaults();
    MendRails(cluster_->now());
    MendPartitions(cluster_->now());
    RestartServers(cluster_->now());
    recovered_ = recovered_ || MayLoseServer();
    if (!faults_stopped_ && cluster_->now() >= next_fault_) InjectFault();
    while (!later_.empty() && later_.begin()->first <= cluster_->now()) {
      later_.extract(later_.begin()).mapped()();
    }
    bool ended = true;
    for (const auto& worker : state_.workers) {
      const uint64_t incarnation = worker->process()->core().incarnation();
      if (incarnation != 0) ranks_[incarnation] = worker->rank();
      worker->Run();
      ended &= worker->finished() || worker->expired();
    }
    return ended;
  }

  // async, ssp: every acknowledged push is there, and none twice.
  void CheckFinalState() {
    if (state_.options.consistency == v1::CONSISTENCY_SYNC) return;
    StopFaults();
    for (const auto& worker : state_.workers) {
      SimWorker* process = worker->process();
      cluster_->RunUntil([&] { return !process->core().Busy(); }, cluster_->now() + kSecond);
    }
    std::shared_ptr<rdma::MemoryBlock> block = FinalPull();
    if (block == nullptr) return;
    const ScenarioTable& layout = *state_.table;
    const std::vector<float> data = layout.Parameters(block->data());
    for (const auto& worker : state_.workers) {
      if (worker->late()) continue;
      for (uint32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
        if (layout.first(chunk) == layout.end(chunk)) continue;
        const uint32_t applied = AsyncCount(data[layout.first(chunk)], worker->rank());
        if (applied < worker->acknowledged() || applied > worker->attempted()) {
          state_.Violation(absl::StrCat("chunk ", chunk, " holds ", applied, " pushes of ",
                                        worker->Describe(), ": ", worker->acknowledged(),
                                        " acknowledged, ", worker->attempted(), " attempted"));
        }
      }
    }
  }

  // By an observer, after everything else.
  std::shared_ptr<rdma::MemoryBlock> FinalPull() {
    SimWorker::Options observer;
    observer.observer = true;
    observer.expected_workers = state_.options.workers;
    observer.seed = 99;
    SimWorker* process = cluster_->AddWorker("observer", observer);
    client::ClientCore& core = process->core();
    absl::Status status = absl::UnknownError("not done");
    uint32_t table = 0;
    bool done = false;
    const int64_t limit = cluster_->now() + 21 * kSecond;
    const int64_t deadline = process->At(cluster_->now() + 20 * kSecond);
    const auto wait = [&] { return cluster_->RunUntil([&] { return done; }, limit); };
    core.Join(deadline, [&](absl::Status s) { status = s, done = true; });
    wait();
    done = false;
    const ScenarioTable& layout = *state_.table;
    core.OpenTable(layout.spec().name(), deadline, [&](absl::StatusOr<v1::Table> t) {
      status = t.status(), done = true;
      if (t.ok()) table = t->id();
    });
    wait();
    // Nobody lived to make it.
    const bool pushed =
        result_.commits > 0 || std::any_of(state_.workers.begin(), state_.workers.end(),
                                           [](const auto& w) { return w->attempted() > 0; });
    if (absl::IsNotFound(status) && !pushed) return nullptr;
    auto block = *rdma::MemoryBlock::Allocate(layout.elements() * sizeof(float), "final");
    done = false;
    const auto ended = [&](absl::Status s) { status = s, done = true; };
    auto id = layout.embedding() ? core.Lookup(table, layout.keys(0, layout.elements()), {block, 0},
                                               std::nullopt, deadline, ended)
                                 : core.Pull(table, {block, 0, 0, layout.elements()}, std::nullopt,
                                             deadline, ended);
    if (!id.ok()) status = id.status();
    if (id.ok()) wait();
    if (!status.ok()) {
      state_.Violation(absl::StrCat("the final pull failed: ", status.ToString()));
      return nullptr;
    }
    return block;
  }

  ScenarioResult result_;
  ScenarioState state_;
  std::mt19937_64 random_;
  std::unique_ptr<SimCluster> cluster_;
  std::map<uint64_t, int> ranks_;  // by incarnation
  // The primary that changes a chunk, by chunk and epoch.
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> primaries_;
  int64_t next_fault_ = 0;
  std::map<std::string, int64_t> cut_;  // rails, until when
  std::map<std::pair<std::string, std::string>, int64_t>
      partitions_;                                       // of calls: from and to, until when
  std::map<int, int64_t> down_;                          // servers, until when
  std::multimap<int64_t, std::function<void()>> later_;  // the rest of faults, when it comes
  bool recovered_ = true;                                // from the last one that died
  int64_t fault_time_ns_ = 0;
  bool faults_stopped_ = false;
};

}  // namespace

ScenarioResult RunScenario(const ScenarioOptions& options) { return Scenario(options).Run(); }

}  // namespace verbena::test
