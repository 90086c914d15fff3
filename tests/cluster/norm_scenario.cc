#include "tests/cluster/norm_scenario.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "tests/cluster/heap_block.h"
#include "tests/cluster/norm_reference.h"

namespace verbena::test {
namespace {

constexpr int64_t kNormFaultsEnd = 8 * kSecond;
constexpr int64_t kNormLimit = 120 * kSecond;

v1::TableSpec Spec(const std::string& name, uint64_t elements, uint32_t chunk_bytes,
                   const std::string& optimizer, double rate, double clip) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.set_job("job");
  spec.add_shape(elements);
  spec.set_reduction(name < "c" ? v1::REDUCTION_SUM : v1::REDUCTION_MEAN);
  spec.set_chunk_bytes(chunk_bytes);
  spec.mutable_initializer()->set_kind(v1::Initializer::CONSTANT);
  spec.mutable_initializer()->set_a(0.5);
  spec.mutable_optimizer()->set_name(optimizer);
  spec.mutable_optimizer()->set_rate(rate);
  spec.mutable_optimizer()->set_clip_global_norm(clip);
  return *NormalizeTableSpec(spec);
}

// One norm over three of them, two trust ratios, one with neither; slices of one and more chunks.
// Without norms the same in one phase.
std::vector<v1::TableSpec> Specs(bool norms) {
  if (!norms) {
    return {Spec("a", 2 * kSimChunkBytes / 4 + 40, kSimChunkBytes, "sgd", 1, 0),
            Spec("b", 20 * 64 + 7, 256, "momentum", 0.1, 0), Spec("c", 5 * 64, 256, "sgd", 1, 0),
            Spec("d", 3 * 64 + 1, 256, "sgd", 1, 0), Spec("e", 64, 256, "sgd", 1, 0)};
  }
  return {Spec("a", 2 * kSimChunkBytes / 4 + 40, kSimChunkBytes, "sgd", 1, 50),
          Spec("b", 20 * 64 + 7, 256, "momentum", 0.1, 50),
          Spec("c", 5 * 64, 256, "lamb", 0.01, 50), Spec("d", 3 * 64 + 1, 256, "lamb", 0.02, 0),
          Spec("e", 64, 256, "sgd", 1, 0)};
}

struct Pulled {
  size_t table;
  uint64_t version;
  std::string host;
  std::vector<float> data;
};

struct Shared {
  NormOptions options;
  NormResult result;
  SimCluster* cluster = nullptr;
  std::vector<v1::TableSpec> specs;
  std::map<uint32_t, size_t> tables;  // by id
  std::deque<Pulled> pulled;
  void Violation(const std::string& what) { result.violations.push_back(what); }
};

// Joins, creates the tables, then step after step: pushes, ends and pulls all of them.
class NormWorker {
 public:
  NormWorker(Shared* shared, SimWorker* process, int rank, uint64_t seed)
      : shared_(shared),
        process_(process),
        rank_(rank),
        random_(seed),
        ids_(shared->specs.size()) {}

  bool ended() const { return phase_ == Phase::kEnded; }
  bool finished() const { return step_ >= static_cast<uint64_t>(shared_->options.steps); }
  SimWorker* process() const { return process_; }
  int rank() const { return rank_; }
  void LeaveSoon() { leaving_ = true; }
  std::string Describe() const {
    return absl::StrCat(process_->host(), " at step ", step_, ", phase ", static_cast<int>(phase_));
  }

  void Run() {
    if (process_->stalled(shared_->cluster->now())) return;
    std::erase_if(uses_, [&](const Use& use) {
      return *use.done && process_->core().BufferReleased(use.id);
    });
    switch (phase_) {
      case Phase::kStart:
        return Join();
      case Phase::kCreate:
        return Create();
      case Phase::kStep:
        return Step();
      case Phase::kPull:
        return PullMissing();
      case Phase::kWait:
      case Phase::kEnded:
        return;
    }
  }

 private:
  enum class Phase { kStart, kCreate, kStep, kPull, kWait, kEnded };
  struct Use {
    client::OperationId id;
    std::shared_ptr<bool> done;
    std::shared_ptr<rdma::MemoryBlock> block;
  };

  int64_t Deadline() {
    return shared_->cluster->now() +
           std::uniform_int_distribution<int64_t>(1 * kMilli, 1500 * kMilli)(random_);
  }
  bool Fatal(const absl::Status& status) {
    // Joining may be too late; ending a step, as this worker does, is never refused.
    if (absl::StrContains(status.message(), "clip_global_norm")) {
      shared_->Violation(absl::StrCat(Describe(), ": ", status.ToString()));
    }
    if (status.code() != absl::StatusCode::kAborted &&
        status.code() != absl::StatusCode::kFailedPrecondition) {
      return false;
    }
    phase_ = Phase::kEnded;
    return true;
  }

  void Join() {
    phase_ = Phase::kWait;
    process_->core().Join(shared_->cluster->now() + 2 * kSecond, [this](absl::Status status) {
      if (status.ok() && process_->core().view().jobs(0).generation() > 1) {
        Leave();  // the run that it was to join is over
      } else if (status.ok()) {
        phase_ = Phase::kCreate;
      } else if (!Fatal(status)) {
        phase_ = Phase::kStart;
      }
    });
  }

  void Create() {
    phase_ = Phase::kWait;
    process_->core().CreateTable(shared_->specs[created_], shared_->cluster->now() + 2 * kSecond,
                                 [this](absl::StatusOr<v1::Table> table) {
                                   if (!table.ok()) {
                                     if (!Fatal(table.status())) phase_ = Phase::kCreate;
                                     return;
                                   }
                                   shared_->tables[table->id()] = created_;
                                   ids_[created_++] = table->id();
                                   phase_ = created_ == ids_.size() ? Phase::kStep : Phase::kCreate;
                                   if (phase_ == Phase::kStep) Begin();
                                 });
  }

  // With the same step of all tables.
  void Begin() {
    for (const uint32_t id : ids_) {
      const uint64_t first = client::OwnFirstStep(process_->core(), id);
      if (id != ids_[0] && first != step_) {
        shared_->Violation(
            absl::StrCat(process_->host(), " begins with steps ", step_, " and ", first));
      }
      step_ = first;
    }
    if (step_ > 0) ++shared_->result.admitted;
  }

  void Leave() {
    phase_ = Phase::kWait;
    process_->core().Leave(shared_->cluster->now() + 2 * kSecond,
                           [this](absl::Status) { phase_ = Phase::kEnded; });
  }

  std::shared_ptr<rdma::MemoryBlock> NewBlock(size_t table) {
    return HeapBlock(shared_->specs[table].shape(0) * sizeof(float));
  }

  // A push of some chunks, or none, and the end of the step; or all of it in one call.
  void Push(size_t table) {
    const DenseLayout layout = LayoutOf(shared_->specs[table]);
    auto block = NewBlock(table);
    auto* values = reinterpret_cast<float*>(block->data());
    for (uint64_t i = 0; i < layout.elements; ++i) values[i] = SyncGradient(rank_, step_, i);
    client::ClientCore& core = process_->core();
    auto done = std::make_shared<bool>(false);
    const auto ended = [this, done](absl::Status status) {
      *done = true;
      Fatal(status);
    };
    if (std::bernoulli_distribution(0.3)(random_)) {
      auto to = NewBlock(table);
      auto id = core.PushPull(ids_[table], {block, 0, 0, layout.elements},
                              {to, 0, 0, layout.elements}, Deadline(), ended);
      if (!id.ok()) return void(Fatal(id.status()));
      uses_.push_back({*id, done, block});
      uses_.push_back({*id, done, to});
      return;
    }
    uint32_t first = 0, chunks = layout.chunks();
    if (std::bernoulli_distribution(0.3)(random_)) {
      first = std::uniform_int_distribution<uint32_t>(0, chunks)(random_);
      chunks = std::uniform_int_distribution<uint32_t>(0, chunks - first)(random_);
    }
    if (chunks > 0) {
      const uint64_t begin = layout.first_element(first);
      const uint64_t end =
          std::min<uint64_t>(layout.elements, layout.first_element(first + chunks));
      auto id = core.Push(ids_[table], {block, begin * sizeof(float), begin, end - begin},
                          Deadline(), ended);
      if (!id.ok()) return void(Fatal(id.status()));
      uses_.push_back({*id, done, block});
    }
    auto id = core.EndStep(ids_[table], Deadline(), [this](absl::Status s) { Fatal(s); });
    if (!id.ok()) Fatal(id.status());
  }

  void Step() {
    if (finished()) {
      if (shared_->options.elastic) return Leave();  // others may go on
      phase_ = Phase::kEnded;
      return;
    }
    phase_ = Phase::kPull;
    missing_.clear();
    std::vector<size_t> order(ids_.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    for (const size_t table : order) {
      if (phase_ == Phase::kEnded) return;
      Push(table);
      missing_[table] = false;
    }
    // Some go with a step that they have ended.
    if (leaving_ && phase_ != Phase::kEnded) return Leave();
    const bool last = step_ + 1 == static_cast<uint64_t>(shared_->options.steps);
    const bool ahead = shared_->options.run_ahead && std::bernoulli_distribution(0.4)(random_);
    if (!ahead || last || phase_ != Phase::kPull) return;
    missing_.clear();
    ++step_;
    phase_ = Phase::kStep;
  }

  // Pulls the tables whose values have not arrived and whose pull is not in flight.
  void PullMissing() {
    if (missing_.empty()) {
      ++step_;
      phase_ = Phase::kStep;
      return;
    }
    for (auto& [table, under_way] : missing_) {
      if (under_way || phase_ == Phase::kEnded) continue;
      under_way = true;
      auto block = NewBlock(table);
      auto done = std::make_shared<bool>(false);
      auto id = process_->core().Pull(
          ids_[table], {block, 0, 0, static_cast<uint64_t>(shared_->specs[table].shape(0))},
          step_ + 1, Deadline(), [this, done, block, t = table](absl::Status status) {
            *done = true;
            if (!status.ok()) {
              ++shared_->result.resumed;
              if (!Fatal(status) && missing_.count(t) > 0) missing_[t] = false;
              return;
            }
            const auto* data = reinterpret_cast<const float*>(block->data());
            shared_->pulled.push_back(
                {t, step_ + 1, process_->host(), {data, data + shared_->specs[t].shape(0)}});
            missing_.erase(t);
          });
      if (!id.ok()) return void(Fatal(id.status()));
      uses_.push_back({*id, done, block});
    }
  }

  Shared* shared_;
  SimWorker* process_;
  int rank_;
  std::mt19937_64 random_;
  std::vector<uint32_t> ids_;
  size_t created_ = 0;
  Phase phase_ = Phase::kStart;
  uint64_t step_ = 0;
  bool leaving_ = false;
  std::map<size_t, bool> missing_;
  std::vector<Use> uses_;
};

class NormScenario {
 public:
  explicit NormScenario(const NormOptions& options)
      : random_(options.seed * 131 + 3), reference_(Specs(options.norms)) {
    shared_.options = options;
    shared_.specs = Specs(options.norms);
    ClusterOptions cluster;
    cluster.seed = options.seed;
    cluster.servers = options.servers;
    if (options.faults) {
      cluster.network.connection_loss = 0.002;
      cluster.network.missed_loss = 0.2;
      cluster.network.connect_failure = 0.1;
      cluster.network.max_death_delay_ns = 20 * kMilli;
      cluster.control.loss = 0.02;
    }
    // A worker that runs ahead needs room for the operations that others hold or wait for.
    const bool ahead = options.run_ahead;
    cluster.small_slots = std::uniform_int_distribution<uint32_t>(ahead ? 4 : 1, 8)(random_);
    cluster.large_slots = std::uniform_int_distribution<uint32_t>(1, 2)(random_);
    cluster.operations = std::uniform_int_distribution<uint32_t>(ahead ? 8 : 2, 32)(random_);
    cluster.commit_observer = [this](const shard::Commit& commit) { OnCommit(commit); };
    cluster_ = std::make_unique<SimCluster>(cluster);
    shared_.cluster = cluster_.get();
  }

  NormResult Run() {
    for (int rank = 0; rank < shared_.options.workers; ++rank) AddWorker(rank);
    next_fault_ = cluster_->now() + Delay();
    const bool ended = cluster_->RunUntil([this] { return Turn(); }, kNormLimit);
    if (!ended && shared_.result.violations.empty()) {
      std::string who;
      for (const auto& worker : workers_) absl::StrAppend(&who, " ", worker->Describe(), ";");
      shared_.Violation(absl::StrCat("the job did not go on after the faults stopped:", who));
    }
    const bool finished = std::any_of(workers_.begin(), workers_.end(),
                                      [](const auto& worker) { return worker->finished(); });
    for (const Pulled& pulled : shared_.pulled) {
      if (!shared_.result.violations.empty()) break;
      const std::string wrong = reference_.Check(pulled.table, pulled.data, pulled.version);
      // When every worker has gone or lost its lease, their last step may stay open somewhere.
      if (!finished && absl::StrContains(wrong, NormReference::kOpen)) continue;
      if (!wrong.empty()) shared_.Violation(absl::StrCat(pulled.host, " pulled: ", wrong));
      ++shared_.result.checked;
    }
    workers_.clear();
    cluster_.reset();
    return shared_.result;
  }

 private:
  int64_t Delay() {
    return std::uniform_int_distribution<int64_t>(5 * kMilli, 600 * kMilli)(random_);
  }

  void AddWorker(int number) {
    SimWorker::Options worker;
    worker.expected_workers = shared_.options.workers;
    if (shared_.options.elastic) worker.max_workers = shared_.options.workers + 1;
    worker.rank = number < shared_.options.workers ? number : -1;
    worker.seed = shared_.options.seed * 19 + number;
    SimWorker* process = cluster_->AddWorker(absl::StrCat("worker-", number), worker);
    workers_.push_back(
        std::make_unique<NormWorker>(&shared_, process, number, worker.seed * 5 + 2));
  }

  void OnCommit(const shard::Commit& commit) {
    ++shared_.result.commits;
    std::vector<int> ranks;
    for (const uint64_t incarnation : commit.contributors) ranks.push_back(ranks_[incarnation]);
    const std::string wrong = reference_.Commit(shared_.tables[commit.table], commit.chunk,
                                                commit.step, ranks, commit.divisor);
    if (!wrong.empty()) shared_.Violation(wrong);
  }

  void InjectFault() {
    next_fault_ = cluster_->now() + Delay();
    const bool formed = std::all_of(workers_.begin(), workers_.end(), [](const auto& w) {
      return w->process()->core().incarnation() != 0;
    });
    if (workers_.empty()) return;
    const size_t victim = std::uniform_int_distribution<size_t>(0, workers_.size() - 1)(random_);
    NormWorker* worker = workers_[victim].get();
    NormResult& result = shared_.result;
    const int most = shared_.options.elastic ? 4 : 1;  // that are gone
    switch (std::uniform_int_distribution<int>(0, 7)(random_)) {
      case 0:
        if (!formed || result.crashed + result.left >= most) return;
        ++result.crashed;
        cluster_->CrashWorker(worker->process());
        workers_.erase(workers_.begin() + static_cast<std::ptrdiff_t>(victim));
        return;
      case 1:
        if (!formed || result.crashed + result.left >= most) return;
        ++result.left;
        return worker->LeaveSoon();
      case 2:
      case 3:
      case 4:
        if (!formed) return;
        ++result.stalled;
        return worker->process()->StallUntil(
            cluster_->now() + std::uniform_int_distribution<int64_t>(1, 1500)(random_) * kMilli);
      case 5:
        return cluster_->RestartCoordinator();
      case 6:
        // Once there are all tables.
        if (!shared_.options.elastic || result.commits == 0 || result.joined == 4) return;
        return AddWorker(shared_.options.workers + result.joined++);
      default:
        return;
    }
  }

  bool Turn() {
    if (!shared_.result.violations.empty()) return true;
    if (shared_.options.faults && !stopped_ && cluster_->now() >= kNormFaultsEnd) {
      stopped_ = true;
      cluster_->network().set_faults(rdma::SimFaults());
      cluster_->control().set_faults(ControlFaults());
    }
    if (shared_.options.faults && !stopped_ && cluster_->now() >= next_fault_) InjectFault();
    bool ended = true;
    for (const auto& worker : workers_) {
      const uint64_t incarnation = worker->process()->core().incarnation();
      if (incarnation != 0) ranks_[incarnation] = worker->rank();
      worker->Run();
      ended &= worker->ended();
    }
    return ended;
  }

  Shared shared_;
  std::mt19937_64 random_;
  NormReference reference_;
  std::unique_ptr<SimCluster> cluster_;
  std::vector<std::unique_ptr<NormWorker>> workers_;
  std::map<uint64_t, int> ranks_;  // by incarnation
  int64_t next_fault_ = 0;
  bool stopped_ = false;
};

}  // namespace

NormResult RunNormScenario(const NormOptions& options) { return NormScenario(options).Run(); }

}  // namespace verbena::test
