#include "tests/cluster/loss_scenario.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/routing.h"
#include "tests/cluster/heap_block.h"
#include "tests/cluster/sim_cluster.h"

namespace verbena::test {
namespace {

constexpr int64_t kLossFaultsEnd = 8 * kSecond;
constexpr int64_t kLossLimit = 60 * kSecond;
constexpr uint64_t kElements = 100;

// State that all workers share.
struct SharedByLossWorkers {
  LossResult result;
  std::mt19937_64 random;
  SimCluster* cluster = nullptr;
  // By partition: when it was last taken from a server that was gone for good.
  std::vector<int64_t> lost_at = std::vector<int64_t>(kSimPartitions, -1);
  bool faults_stopped = false;

  void Violation(const std::string& what) { result.violations.push_back(what); }
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random); }
};

// A table and its worker's use of it: one call at a time.
class LossTable {
 public:
  LossTable(SharedByLossWorkers* shared, SimWorker* process, std::string name)
      : shared_(shared), process_(process), prefix_(std::move(name)) {}

  void Run() {
    const int64_t now = shared_->cluster->now();
    if (busy_ || expired_ || now < next_at_) return;
    next_at_ = now + shared_->Between(0, 20 * kMilli);
    if (id_ == 0) return Create();
    if (lost_ && shared_->Chance(0.5)) return Drop();
    shared_->Chance(0.7) ? Push() : Pull();
  }
  bool expired() const { return expired_; }
  // It has been read since the faults stopped.
  bool proved() const { return proved_; }
  std::string Describe() const {
    return absl::StrCat(name_, " (id ", id_, lost_ ? ", lost" : "", busy_ ? ", busy" : "",
                        "): ", acknowledged_, " of ", attempted_,
                        " pushes acknowledged, last: ", last_.ToString());
  }

 private:
  client::ClientCore& core() { return process_->core(); }

  // Begins a call of any kind: it is the only one.
  int64_t Begin(int64_t longest) {
    busy_ = true;
    deadline_ = shared_->cluster->now() + shared_->Between(1 * kMilli, longest);
    return process_->At(deadline_);
  }
  // Ends a call of any kind. Returns whether its result shows the state of the table.
  bool End(const absl::Status& status) {
    busy_ = false;
    last_ = status;
    const int64_t now = shared_->cluster->now();
    if (now > deadline_ + 10 * kMilli) {
      shared_->Violation(absl::StrCat(name_, ": a call ended ", (now - deadline_) / kMilli,
                                      " ms after its deadline: ", status.ToString()));
    }
    switch (status.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kDataLoss:
        return true;
      case absl::StatusCode::kUnavailable:
      case absl::StatusCode::kDeadlineExceeded:
      case absl::StatusCode::kResourceExhausted:
        ++shared_->result.unavailable;
        return false;
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kFailedPrecondition:
        expired_ = true;  // its lease has ended
        return false;
      case absl::StatusCode::kNotFound:
        if (dropping_) {  // by an attempt that was given up
          id_ = 0;
          return false;
        }
        [[fallthrough]];
      default:
        shared_->Violation(absl::StrCat(name_, ": ", status.ToString()));
        return false;
    }
  }

  void Create() {
    // An attempt that was given up may have made one: a name is used once.
    name_ = absl::StrCat(prefix_, ".", ++attempts_);
    created_at_ = shared_->cluster->now();
    v1::TableSpec spec;
    spec.set_name(name_);
    spec.set_job(prefix_.substr(0, prefix_.find('.')));
    spec.add_shape(kElements);
    spec.set_consistency(v1::CONSISTENCY_ASYNC);
    spec.mutable_optimizer()->set_name("sgd");
    spec.mutable_optimizer()->set_rate(1);
    core().CreateTable(spec, Begin(kSecond), [this](absl::StatusOr<v1::Table> table) {
      if (!End(table.status()) || !table.ok()) return;
      id_ = table->id();
      partition_ = PartitionOfChunk(id_, 0, kSimPartitions);
      attempted_ = acknowledged_ = seen_ = 0;
      lost_ = dropping_ = false;
    });
  }

  void Drop() {
    core().DropTable(name_, Begin(kSecond), [this](absl::Status status) {
      if (End(status)) id_ = 0;
    });
    dropping_ = true;
  }

  std::shared_ptr<rdma::MemoryBlock> Block() {
    auto block = HeapBlock(kElements * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(block->data()), kElements, 1.0f);
    return block;
  }

  void Push() {
    ++attempted_;
    auto id = core().Push(id_, {Block(), 0, 0, kElements}, Begin(1500 * kMilli),
                          [this](absl::Status status) { PushEnded(status); });
    if (!id.ok()) PushEnded(id.status());
  }
  void PushEnded(const absl::Status& status) {
    if (!End(status)) return;
    if (!status.ok()) return Lost();
    if (lost_) return AnsweredThoughLost("a push");
    ++acknowledged_;
  }

  void Pull() {
    auto block = Block();
    const uint32_t least = acknowledged_;
    const auto ended = [this, block, least](absl::Status status) {
      if (!End(status)) return;
      if (!status.ok()) return Lost();
      if (lost_) return AnsweredThoughLost("a pull");
      Check(reinterpret_cast<const float*>(block->data()), least);
    };
    auto id = core().Pull(id_, {block, 0, 0, kElements}, std::nullopt, Begin(1500 * kMilli), ended);
    if (!id.ok()) ended(id.status());
  }

  void Check(const float* values, uint32_t least) {
    ++shared_->result.checked;
    proved_ |= shared_->faults_stopped;
    least = std::max(least, seen_);
    const bool whole =
        std::all_of(values, values + kElements, [&](float value) { return value == values[0]; });
    const float count = -values[0];
    if (!whole || count < static_cast<float>(least) || count > static_cast<float>(attempted_)) {
      shared_->Violation(absl::StrCat(Describe(), ": pulled ", whole ? "" : "half of ", count,
                                      " pushes; it had at least ", least));
      return;
    }
    seen_ = static_cast<uint32_t>(count);
  }

  void Lost() {
    if (shared_->lost_at[partition_] < created_at_) {
      shared_->Violation(absl::StrCat(Describe(), ": nobody lost partition ", partition_));
    }
    if (!std::exchange(lost_, true)) ++shared_->result.lost;
  }

  void AnsweredThoughLost(const char* what) {
    shared_->Violation(absl::StrCat(Describe(), ": ", what, " was answered after DATA_LOSS"));
  }

  SharedByLossWorkers* const shared_;
  SimWorker* const process_;
  const std::string prefix_;
  std::string name_;
  int attempts_ = 0;
  uint32_t id_ = 0;  // 0: there is none
  uint32_t partition_ = 0;
  int64_t created_at_ = 0;
  uint32_t attempted_ = 0, acknowledged_ = 0, seen_ = 0;  // pushes
  bool lost_ = false, dropping_ = false, busy_ = false, expired_ = false, proved_ = false;
  int64_t next_at_ = 0, deadline_ = 0;
  absl::Status last_;
};

class LossScenario {
 public:
  explicit LossScenario(const LossOptions& options) : options_(options) {
    shared_.random.seed(options.seed * 131 + 5);
    ClusterOptions cluster;
    cluster.seed = options.seed;
    cluster.servers = options.servers;
    cluster.drift_ppm = 10'000;
    cluster.network.connection_loss = 0.002;
    cluster.network.missed_loss = 0.2;
    cluster.network.connect_failure = 0.1;
    cluster.network.max_death_delay_ns = 20 * kMilli;
    cluster.control.loss = 0.02;
    cluster_ = std::make_unique<SimCluster>(cluster);
    shared_.cluster = cluster_.get();
    primaries_.resize(kSimPartitions);
    back_at_.resize(static_cast<size_t>(options.servers));
  }

  LossResult Run() {
    for (int w = 0; w < options_.workers; ++w) Join(w);
    next_fault_ = NextFault();
    if (!cluster_->RunUntil([this] { return Turn(); }, kLossLimit) &&
        shared_.result.violations.empty()) {
      for (const auto& table : tables_) {
        if (table->proved() || table->expired()) continue;
        shared_.Violation(absl::StrCat("did not go on after the faults: ", table->Describe()));
      }
      if (tables_.empty()) shared_.Violation("no worker joined");
    }
    cluster_.reset();  // whose workers know the tables
    return std::move(shared_.result);
  }

 private:
  void Join(int index) {
    SimWorker::Options worker;
    worker.job = absl::StrCat("job-", index);
    worker.seed = options_.seed * 17 + static_cast<uint64_t>(index);
    Join(cluster_->AddWorker(absl::StrCat("worker-", index), worker), worker.job);
  }
  void Join(SimWorker* process, const std::string& job) {
    process->core().Join(
        process->At(cluster_->now() + 2 * kSecond), [this, process, job](absl::Status status) {
          if (!status.ok()) {
            if (!absl::IsAborted(status) && !absl::IsFailedPrecondition(status)) Join(process, job);
            return;
          }
          for (int t = 0; t < options_.tables; ++t) {
            tables_.push_back(
                std::make_unique<LossTable>(&shared_, process, absl::StrCat(job, ".", t)));
          }
        });
  }

  int64_t NextFault() { return cluster_->now() + shared_.Between(50 * kMilli, 800 * kMilli); }

  void InjectFault() {
    next_fault_ = NextFault();
    const int index = static_cast<int>(shared_.Between(0, options_.servers - 1));
    SimServer* server = cluster_->server(index);
    const int64_t kind = shared_.Between(0, 5);
    if (kind <= 2) {
      if (server == nullptr) return;
      ++shared_.result.crashed;
      cluster_->CrashServer(index);
      // Sometimes its lease lasts, sometimes not.
      back_at_[static_cast<size_t>(index)] = cluster_->now() + shared_.Between(1, 4000) * kMilli;
    } else if (kind == 3) {
      cluster_->RestartCoordinator();
    } else if (kind == 4 && server != nullptr) {
      cluster_->network().Hang(server->host());
    } else if (server != nullptr) {
      cluster_->network().Stall(server->host(), cluster_->now() + shared_.Between(1, 800) * kMilli);
    }
  }

  void RestartServers(int64_t now) {
    for (int i = 0; i < options_.servers; ++i) {
      if (cluster_->server(i) == nullptr && back_at_[static_cast<size_t>(i)] <= now) {
        cluster_->RestartServer(i);
      }
    }
  }

  // Checks the placement: a partition is taken only from a server that is gone, as long as there
  // are tables.
  void Watch() {
    const v1::ClusterView& view = cluster_->view();
    if (view.revision() == revision_) return;
    revision_ = view.revision();
    for (const v1::Partition& partition : view.partitions()) {
      uint64_t& primary = primaries_[partition.id()];
      if (primary == partition.primary()) continue;
      if (primary != 0 && had_tables_) {
        shared_.lost_at[partition.id()] = cluster_->now();
        if (Lives(primary)) {
          shared_.Violation(absl::StrCat("partition ", partition.id(), " was taken from server ",
                                         primary, ", which lives"));
        }
      }
      primary = partition.primary();
    }
    had_tables_ = view.tables_size() > 0;
  }

  bool Lives(uint64_t incarnation) {
    for (int i = 0; i < options_.servers; ++i) {
      const SimServer* server = cluster_->server(i);
      if (server != nullptr && server->incarnation() == incarnation) return true;
    }
    return false;
  }

  bool Turn() {
    if (!shared_.result.violations.empty()) return true;
    const int64_t now = cluster_->now();
    Watch();
    if (now >= kLossFaultsEnd && !shared_.faults_stopped) {
      shared_.faults_stopped = true;
      cluster_->network().set_faults(rdma::SimFaults());
      cluster_->control().set_faults(ControlFaults());
      std::fill(back_at_.begin(), back_at_.end(), now);
    }
    RestartServers(now);
    if (!shared_.faults_stopped && now >= next_fault_) InjectFault();
    // By number: a call that ends at once may add some.
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i]->Run();
    return shared_.faults_stopped && !tables_.empty() &&
           std::all_of(tables_.begin(), tables_.end(),
                       [](const auto& t) { return t->proved() || t->expired(); });
  }

  const LossOptions options_;
  SharedByLossWorkers shared_;
  std::unique_ptr<SimCluster> cluster_;
  std::vector<std::unique_ptr<LossTable>> tables_;
  std::vector<int64_t> back_at_;     // of servers that are gone
  std::vector<uint64_t> primaries_;  // by partition
  uint64_t revision_ = 0;
  bool had_tables_ = false;
  int64_t next_fault_ = 0;
};

}  // namespace

LossResult RunLossScenario(const LossOptions& options) { return LossScenario(options).Run(); }

}  // namespace verbena::test
