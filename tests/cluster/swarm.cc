#include "tests/cluster/swarm.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/cluster/swarm_aims.h"
#include "tests/cluster/swarm_checkpoints.h"
#include "tests/cluster/swarm_checks.h"
#include "tests/cluster/swarm_client.h"
#include "tests/cluster/swarm_disks.h"
#include "tests/cluster/swarm_faults.h"
#include "tests/cluster/swarm_moves.h"
#include "tests/cluster/swarm_operator.h"
#include "tests/cluster/swarm_standstill.h"
#include "tests/cluster/swarm_trace.h"
#include "tests/cluster/swarm_world.h"

namespace verbena::test {
namespace {

// From the end of the faults to full redundancy, with everything that is lost reset, and used.
constexpr int64_t kRecoveryLimit = 30 * kSecond;
// A lane whose writes hang is given up after 20 s, and another one may hang after that was opened.
constexpr int64_t kHangLimit = 30 * kSecond;
constexpr int64_t kFinishLimit = 20 * kSecond;
// A save that is given up may keep its tables for 5 s, and pauses between tries.
constexpr int64_t kCheckpointLimit = 20 * kSecond;
// Until a save takes a table as it is whose steps stay behind those of others (step_selection.cc),
// and a save that begins again because the job has.
constexpr int64_t kStepsLimit = 90 * kSecond;

class Swarm {
 public:
  // `traces` null: nothing is recorded.
  Swarm(uint64_t seed, SwarmTrace::Partitions* traces) {
    world_.plan = DrawPlan(seed);
    world_.result = &result_;
    world_.random.seed(seed * 104'729 + 7);
    result_.plan = world_.plan.Describe();
    if (world_.has(SwarmFeature::kHangs)) {
      // A client with one staging buffer finds the lanes that hang one after another.
      const bool one_by_one = world_.plan.staging_bytes == 4096;
      const int64_t lanes =
          one_by_one ? int64_t{world_.plan.cluster.servers} * world_.plan.cluster.shards : 1;
      recovery_limit_ += kHangLimit * lanes;
      finish_limit_ += kHangLimit * lanes;
    }
    // A step takes as many turns of a slow server as all workers make.
    if (world_.plan.has_steps() && world_.has(SwarmFeature::kSlowServer)) {
      recovery_limit_ += kRecoveryLimit;
    }
    // With few staging buffers a pull of a step waits until those of ended calls give theirs back.
    if (world_.plan.has_steps() && world_.plan.staging_bytes > 0) {
      recovery_limit_ += kStepsLimit;
    }
    if (world_.trace) {
      world_.plan.cluster.log = [this](const std::string& line) {
        if (cluster_ != nullptr) world_.Trace(absl::StrCat("server: ", line));
      };
    }
    if (world_.has(SwarmFeature::kCheckpoints)) {
      checkpoints_ = std::make_unique<SwarmCheckpoints>(&world_);
      recovery_limit_ += kCheckpointLimit;
      if (world_.plan.has_steps()) recovery_limit_ += kStepsLimit;
    }
    if (world_.has(SwarmFeature::kDiskFaults)) {
      disks_ = std::make_unique<SwarmDisks>(&world_, checkpoints_.get());
    }
    world_.plan.cluster.commit_observer = [this](const shard::Commit& commit) {
      checks_->Observe(commit);
      if (trace_ != nullptr) trace_->Observe(commit);
    };
    world_.plan.cluster.view_changed = [this] {
      if (checks_ != nullptr) checks_->ViewChanged();
      if (trace_ != nullptr) trace_->FollowView();
    };
    cluster_ = std::make_unique<SimCluster>(world_.plan.cluster);
    world_.cluster = cluster_.get();
    world_.lives.resize(static_cast<size_t>(cluster_->servers()));
    cluster_->network().set_write_observer([this](const std::string& host, uint64_t block,
                                                  const std::byte*, size_t bytes) {
      const auto settled = world_.settled.find(block);
      if (settled == world_.settled.end() || settled->second != ProcessOf(host)) return;
      world_.Violation(absl::StrCat(bytes, " bytes were written into a settled buffer of ", host));
    });
    for (const SwarmJobPlan& job : world_.plan.jobs) world_.jobs.push_back({job, false, false, {}});
    for (const SwarmJob& job : world_.jobs) {
      for (uint32_t w = 0; w < job.plan.places(); ++w) AddPlace(&job, w, false);
      if (world_.has(SwarmFeature::kReaders)) AddPlace(&job, 0, true);
      if (world_.has(SwarmFeature::kReadFollowers)) AddPlace(&job, 1, true);
    }
    faults_ = std::make_unique<SwarmFaults>(&world_, &clients_);
    aims_ = std::make_unique<SwarmAims>(&world_, faults_.get(), &clients_);
    operator_ = std::make_unique<SwarmOperator>(&world_);
    moves_ = std::make_unique<SwarmMoves>(&world_);
    checks_ = std::make_unique<SwarmChecks>(&world_);
    // The model has none (docs/model.md).
    if (world_.has(SwarmFeature::kOldStates)) traces = nullptr;
    if (traces != nullptr) trace_ = std::make_unique<SwarmTrace>(&world_, traces);
  }

  SwarmResult Run() {
    const int64_t limit = world_.plan.faults_end_ns + recovery_limit_ + finish_limit_ + kSecond;
    const uint64_t idle_before = sim_idle_check().did_something;
    cluster_->RunUntil([this] { return Turn(); }, limit);
    if (const uint64_t count = sim_idle_check().did_something; count > idle_before) {
      world_.Violation(
          absl::StrCat(count - idle_before, " times a process had work, and was not due"));
    }
    if (const uint64_t count = cluster_->network().receiver_not_ready(); count > 0) {
      world_.Violation(absl::StrCat(count, " writes met no posted receive"));
    }
    clients_.clear();
    final_readers_.clear();
    operator_.reset();
    moves_.reset();
    checks_.reset();
    trace_.reset();
    if (checkpoints_ != nullptr) {
      result_.checkpoints = checkpoints_->saved().checked();
      result_.restored_partitions = checkpoints_->saved().compared();
      checkpoints_->Stop();
    }
    cluster_.reset();
    disks_.reset();
    checkpoints_.reset();
    return std::move(result_);
  }

 private:
  // The job and the slot of a client process.
  struct Place {
    const SwarmJob* job;
    uint32_t slot;
    bool observer;
    int64_t start_at = 0;
    int starts = 0;
  };

  void AddPlace(const SwarmJob* job, uint32_t slot, bool observer) {
    places_.push_back({job, slot, observer, world_.Between(0, 2000) * kMilli});
    clients_.push_back(nullptr);
  }

  void RunClients() {
    const bool look = world_.now() >= next_standstill_look_;
    if (look) next_standstill_look_ = world_.now() + 50 * kMilli;
    for (size_t i = 0; i < places_.size(); ++i) {
      Place& place = places_[i];
      std::unique_ptr<SwarmClient>& client = clients_[i];
      if (client != nullptr && client->ended()) client.reset();
      if (client == nullptr) {
        StartClient(&place, &client);
        continue;
      }
      place.start_at = world_.now() + pause_;
      if (place.job->draining && !place.observer) client->Leave();
      client->Run();
      if (look) standstill_.Look(*client);
    }
    for (const auto& reader : final_readers_) reader->Run();
  }

  void StartClient(Place* place, std::unique_ptr<SwarmClient>* client) {
    const bool drained = place->job->draining && !place->observer;
    if (drained || world_.now() < place->start_at || world_.stage == SwarmStage::kFinish) return;
    pause_ = world_.stage == SwarmStage::kFaults ? world_.Between(0, 1000) * kMilli : 200 * kMilli;
    *client = std::make_unique<SwarmClient>(
        &world_, place->job, place->slot, place->observer,
        absl::StrCat(place->observer ? "reader" : "worker", "-", place->job->plan.host, "-",
                     place->slot, "-", ++place->starts));
  }

  void NotePast() {
    if (!world_.has(SwarmFeature::kReadFollowers)) return;
    const int64_t longest = (SwarmClient::kLongestStaleness + 1) * world_.plan.lease_ns();
    for (const auto& [id, table] : world_.tables) world_.past.Note(table, world_.now(), longest);
  }

  void Churn() {
    if (!world_.has(SwarmFeature::kChurn) || world_.stage != SwarmStage::kFaults ||
        world_.now() < next_churn_) {
      return;
    }
    next_churn_ = world_.now() + world_.Between(100, 2000) * kMilli;
    SwarmClient* client = clients_[world_.Pick(clients_.size())].get();
    if (client != nullptr) client->Leave();
  }

  bool Turn() {
    if (!result_.violations.empty()) return true;
    checks_->Run();
    NotePast();
    if (trace_ != nullptr) {
      trace_->FollowView();
      trace_->LookAtLeases();
    }
    if (checkpoints_ != nullptr) checkpoints_->Run(*checks_);
    if (disks_ != nullptr) disks_->Run();
    faults_->Run();
    aims_->Run();
    operator_->Run();
    moves_->Run();
    Churn();
    RunClients();
    switch (world_.stage) {
      case SwarmStage::kFaults:
        if (world_.now() >= world_.plan.faults_end_ns) Recover();
        return false;
      case SwarmStage::kRecovery:
        return EndOfRecovery();
      case SwarmStage::kFinish:
        return Finished();
    }
    return true;
  }

  void Recover() {
    faults_->Stop();
    if (disks_ != nullptr) disks_->Stop();
    // A step with a norm need not end if a server that had committed its part died with all workers
    // that had sent the total norms. A new run of the job repairs this.
    const bool norms = world_.has(SwarmFeature::kNorms);
    for (SwarmJob& job : world_.jobs) {
      job.restart |= job.plan.steps && (norms || world_.Chance(0.5));
    }
    world_.stage = SwarmStage::kRecovery;
    if (checkpoints_ != nullptr) checkpoints_->StopFaults();
    world_.Trace("the faults stop");
    world_.recovery_began_ns = world_.now();
  }

  // The run is over where it has not recovered.
  bool EndOfRecovery() {
    if (world_.now() < next_look_) return false;
    next_look_ = world_.now() + 10 * kMilli;
    std::string missing;
    bool recovered = checks_->Redundant(&missing);
    if (recovered && !operator_->idle()) {
      recovered = false;
      missing = operator_->Describe();
    }
    if (recovered && !moves_->idle()) {
      recovered = false;
      missing = "a server is still drained";
    }
    if (recovered && checkpoints_ != nullptr) recovered = checkpoints_->Proved(&missing);
    for (size_t i = 0; recovered && i < clients_.size(); ++i) {
      recovered = clients_[i] != nullptr && clients_[i]->Proved(&missing);
    }
    if (recovered) {
      result_.recovered_ns = world_.now() - world_.recovery_began_ns;
      world_.stage = SwarmStage::kFinish;
      return false;
    }
    if (world_.now() < world_.recovery_began_ns + recovery_limit_) return false;
    world_.Violation(absl::StrCat("not recovered ", recovery_limit_ / kSecond,
                                  " s after the faults stopped: ", missing));
    return true;
  }

  // An operation that waits for a step that others never end may still wait when its call is over.
  bool Quiet(const SwarmClient& client) const {
    const SimWorker& process = *client.process();
    const bool may_wait = world_.has(SwarmFeature::kSsp) || world_.plan.has_steps();
    return client.idle() && (may_wait || !process.core().Busy());
  }

  // Everything that was begun has ended; then every unit is read.
  bool Finished() {
    if (finish_by_ == 0) finish_by_ = world_.now() + finish_limit_;
    std::string missing;
    for (const auto& client : clients_) {
      if (client == nullptr || client->ended() || Quiet(*client)) continue;
      missing = absl::StrCat("unfinished: ", client->Describe());
    }
    if (missing.empty() && final_readers_.empty()) {
      for (const SwarmJob& job : world_.jobs) {
        final_readers_.push_back(std::make_unique<SwarmClient>(
            &world_, &job, 0, true, absl::StrCat("final-", job.plan.host)));
        final_readers_.back()->ReadAll();
      }
    }
    for (const auto& reader : final_readers_) {
      if (missing.empty() && !reader->Proved(&missing)) break;
    }
    if (missing.empty() && checks_->AllEqual(&missing)) return true;
    if (world_.now() < finish_by_) return false;
    world_.Violation(absl::StrCat("not finished ", finish_limit_ / kSecond,
                                  " s after the last call began: ", missing));
    return true;
  }

  SwarmResult result_;
  SwarmWorld world_;
  std::unique_ptr<SwarmCheckpoints> checkpoints_;  // null: the seed has none
  std::unique_ptr<SwarmDisks> disks_;              // the same
  std::unique_ptr<SimCluster> cluster_;
  std::vector<Place> places_;
  std::vector<std::unique_ptr<SwarmClient>> clients_;        // by place; null: none now
  std::vector<std::unique_ptr<SwarmClient>> final_readers_;  // by job
  SwarmStandstill standstill_{&world_};
  int64_t next_standstill_look_ = 0;
  std::unique_ptr<SwarmFaults> faults_;
  std::unique_ptr<SwarmAims> aims_;
  std::unique_ptr<SwarmOperator> operator_;
  std::unique_ptr<SwarmMoves> moves_;
  std::unique_ptr<SwarmChecks> checks_;
  std::unique_ptr<SwarmTrace> trace_;  // null: nothing is recorded
  int64_t recovery_limit_ = kRecoveryLimit, finish_limit_ = kFinishLimit;
  int64_t pause_ = 0;  // before the next process takes a place
  int64_t next_churn_ = 0, next_look_ = 0, finish_by_ = 0;
};

}  // namespace

SwarmResult RunSwarm(uint64_t seed) { return Swarm(seed, nullptr).Run(); }

SwarmResult RunSwarm(uint64_t seed, std::map<uint32_t, std::vector<TraceEvent>>* traces) {
  return Swarm(seed, traces).Run();
}

}  // namespace verbena::test
