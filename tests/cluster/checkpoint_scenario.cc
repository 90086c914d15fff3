#include "tests/cluster/checkpoint_scenario.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cluster/checkpoint_operator.h"
#include "tests/cluster/checkpoint_worker.h"

namespace verbena::test {
namespace {

constexpr int64_t kFaultsEnd = 8 * kSecond;
constexpr int64_t kLimit = 90 * kSecond;

class CheckpointScenario {
 public:
  explicit CheckpointScenario(const CheckpointOptions& options)
      : disk_(options.seed * 7 + 1), operator_(&state_, &disk_) {
    state_.options = options;
    state_.model = CheckpointModel(options.seed % 3 == 0);
    state_.random.seed(options.seed * 131 + 11);
    if (!options.syncs) disk_.IgnoreSyncs();
    cluster_ = std::make_unique<SimCluster>(Cluster(options.servers, options.seed));
    state_.cluster = cluster_.get();
    back_at_.resize(static_cast<size_t>(options.servers));
  }

  CheckpointResult Run() {
    for (size_t rank = 0; rank < kCheckpointWorkers; ++rank) Join(rank);
    next_fault_ = NextFault();
    if (!cluster_->RunUntil([this] { return Turn(); }, kLimit) &&
        state_.result.violations.empty()) {
      std::string who;
      for (const auto& use : uses_) absl::StrAppend(&who, "; ", use->Describe());
      state_.Violation(
          absl::StrCat("did not go on after the faults stopped: ", operator_.Describe(), who));
    }
    if (state_.expired) {
      ++state_.result.expired;
    } else if (state_.result.violations.empty()) {
      RestoreElsewhere();
    }
    return state_.result;
  }

 private:
  ClusterOptions Cluster(int servers, uint64_t seed) {
    ClusterOptions cluster;
    cluster.seed = seed;
    cluster.servers = servers;
    cluster.replicas = state_.options.replicas;
    cluster.disk = &disk_;
    // Tables go on by themselves, and a pull that was given up is deferred until its step is there:
    // room for those of one table, or they would keep another's from being sent.
    cluster.small_slots = 32;
    cluster.operations = 128;
    if (!state_.options.faults) return cluster;
    cluster.drift_ppm = 10'000;
    cluster.network.connection_loss = 0.001;
    cluster.network.missed_loss = 0.2;
    cluster.network.connect_failure = 0.1;
    cluster.network.max_death_delay_ns = 20 * kMilli;
    return cluster;
  }

  void Join(size_t rank) {
    SimWorker::Options worker;
    worker.expected_workers = kCheckpointWorkers;
    worker.rank = static_cast<int>(rank);
    worker.seed = state_.options.seed * 17 + rank;
    Join(rank, cluster_->AddWorker(absl::StrCat("worker-", rank), worker));
  }
  void Join(size_t rank, SimWorker* process) {
    const auto joined = [this, rank, process](absl::Status status) {
      if (!status.ok()) return Join(rank, process);
      for (size_t table = 0; table < kCheckpointTables; ++table) {
        uses_.push_back(std::make_unique<TableUse>(&state_, process, rank, table));
      }
    };
    process->core().Join(process->At(cluster_->now() + 2 * kSecond), joined);
  }
  // Whether all workers have opened all tables. Control messages are lost only from then on: the
  // job does not count a worker that joins late, and the model would not know in which steps.
  bool Formed() {
    if (formed_ || uses_.size() < kCheckpointWorkers * kCheckpointTables) return formed_;
    formed_ = true;
    if (state_.options.faults) cluster_->control().set_faults({.loss = 0.003});
    return formed_;
  }

  int64_t NextFault() { return cluster_->now() + state_.Between(50, 900) * kMilli; }

  void InjectFault() {
    next_fault_ = NextFault();
    const int index = static_cast<int>(state_.Between(0, state_.options.servers - 1));
    SimServer* server = cluster_->server(index);
    const int64_t kind = state_.Between(0, 7);
    // Polls for views that were in progress end only by their deadline: once is enough.
    if (kind == 0 && !std::exchange(restarted_, true)) {
      cluster_->RestartCoordinator();
    } else if (kind == 1 && operator_.has_checkpoint()) {
      operator_.RestoreSoon();
    } else if (kind == 2 && cut_.empty()) {
      // The operator, which saves, and a server do not hear one another.
      cut_ = absl::StrCat("server-", index);
      cut_until_ = cluster_->now() + state_.Between(1, 3000) * kMilli;
      cluster_->control().Cut("operator", cut_, true);
    } else if (server == nullptr) {
      return;
    } else if (kind == 3) {
      cluster_->network().Hang(server->host());
    } else if (kind == 4) {
      server->StallUntil(cluster_->now() + state_.Between(1, 3000) * kMilli);
    } else if (operator_.has_checkpoint() && (kind == 5 || state_.options.replicas > 1)) {
      ++state_.result.servers_died;
      cluster_->CrashServer(index);
      // Sometimes its lease lasts, sometimes not.
      back_at_[static_cast<size_t>(index)] = cluster_->now() + state_.Between(1, 4000) * kMilli;
    }
  }

  void Mend(int64_t now) {
    for (int i = 0; i < state_.options.servers; ++i) {
      if (cluster_->server(i) == nullptr && back_at_[static_cast<size_t>(i)] <= now) {
        cluster_->RestartServer(i);
      }
    }
    if (!cut_.empty() && cut_until_ <= now) {
      cluster_->control().Cut("operator", cut_, false);
      cut_.clear();
    }
  }

  void StopFaults() {
    state_.faults_stopped = true;
    cluster_->network().set_faults(rdma::SimFaults());
    cluster_->control().set_faults(ControlFaults());
    operator_.StopFaults();
    Mend(INT64_MAX);
  }

  bool Turn() {
    if (!state_.result.violations.empty() || state_.expired) return true;
    const int64_t now = cluster_->now();
    if (now >= kFaultsEnd && !state_.faults_stopped) StopFaults();
    Mend(now);
    if (!Formed()) return false;
    state_.expired |=
        cluster_->view().jobs(0).members_size() < static_cast<int>(kCheckpointWorkers);
    if (state_.options.faults && !state_.faults_stopped && now >= next_fault_) InjectFault();
    operator_.Run();
    // By number: a call that ends at once may add some.
    for (size_t i = 0; i < uses_.size(); ++i) uses_[i]->Run();
    return state_.faults_stopped && operator_.proved() &&
           std::all_of(uses_.begin(), uses_.end(), [](const auto& u) { return u->proved() > 1; });
  }

  // ---- another cluster ----

  void RestoreElsewhere() {
    server::RestoreTaskOptions options;
    const CheckpointContent* content = operator_.Newest(&options.path);
    if (content == nullptr) return;
    state_.options.faults = false;
    const int servers = static_cast<int>(state_.Between(1, 5));
    SimCluster other(Cluster(servers, state_.options.seed + 1));
    other.RunUntil([&] { return other.view().servers_size() == servers; }, 10 * kSecond);
    const std::unique_ptr<ControlChannel> channel = other.control().NewChannel("operator");
    options.coordinator = kCoordinatorAddress;
    options.seed = state_.options.seed;
    auto restorer =
        server::RestoreTask::Make(options, &other.network().clock(), channel.get(), &disk_);
    absl::Status status = restorer.status();
    if (status.ok()) {
      const auto done = [&] {
        channel->RunOnce();
        (*restorer)->RunOnce();
        return (*restorer)->done();
      };
      status = absl::DeadlineExceededError("it does not end");
      if (other.RunUntil(done, 60 * kSecond)) status = (*restorer)->status();
    }
    if (!status.ok()) return state_.Violation("restored elsewhere: " + status.ToString());
    SimWorker* process = other.AddWorker("observer", {.observer = true});
    for (size_t table = 0; table < kCheckpointTables; ++table) {
      const std::string wrong = CompareElsewhere(&other, process, table, *content);
      if (!wrong.empty()) state_.Violation("restored elsewhere: " + wrong);
    }
  }

  std::string CompareElsewhere(SimCluster* other, SimWorker* process, size_t table,
                               const CheckpointContent& content) {
    const CheckpointModel& model = state_.model;
    client::ClientCore& core = process->core();
    const int64_t limit = other->now() + 20 * kSecond;
    std::optional<absl::Status> ended;
    const auto end = [&](absl::Status status) { ended = std::move(status); };
    const auto wait = [&] {
      other->RunUntil([&] { return ended.has_value(); }, limit + kSecond);
      return std::exchange(ended, std::nullopt).value_or(absl::UnknownError("it does not end"));
    };
    absl::Status status;
    if (core.incarnation() == 0) {
      core.Join(process->At(limit), end);
      status = wait();
    }
    uint32_t id = 0;
    if (status.ok()) {
      core.OpenTable(model.spec(table).name(), process->At(limit),
                     [&](absl::StatusOr<v1::Table> opened) {
                       if (opened.ok()) id = opened->id();
                       end(opened.status());
                     });
      status = wait();
    }
    auto block = *rdma::MemoryBlock::Allocate(model.numbers(table) * sizeof(float), "elsewhere");
    if (status.ok()) {
      const auto pulled = model.rows(table) ? core.Lookup(id, model.keys(), {block, 0},
                                                          std::nullopt, process->At(limit), end)
                                            : core.Pull(id, {block, 0, 0, model.numbers(table)},
                                                        std::nullopt, process->At(limit), end);
      status = pulled.ok() ? wait() : pulled.status();
    }
    if (!status.ok()) return absl::StrCat(model.spec(table).name(), ": ", status.ToString());
    const auto* values = reinterpret_cast<const float*>(block->data());
    if (std::equal(content.values[table].begin(), content.values[table].end(), values)) return "";
    return absl::StrCat(model.spec(table).name(), " is not what the checkpoint has");
  }

  CheckpointState state_;
  checkpoint::test::SimDisk disk_;
  std::unique_ptr<SimCluster> cluster_;
  CheckpointOperator operator_;
  std::vector<std::unique_ptr<TableUse>> uses_;
  std::vector<int64_t> back_at_;  // of servers that are gone
  std::string cut_;               // the server that the operator cannot reach
  bool formed_ = false, restarted_ = false;
  int64_t cut_until_ = 0, next_fault_ = 0;
};

}  // namespace

CheckpointResult RunCheckpointScenario(const CheckpointOptions& options) {
  return CheckpointScenario(options).Run();
}

}  // namespace verbena::test
