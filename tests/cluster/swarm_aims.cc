#include "tests/cluster/swarm_aims.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cluster/replica_compare.h"

namespace verbena::test {

SwarmAims::SwarmAims(SwarmWorld* world, SwarmFaults* faults,
                     std::vector<std::unique_ptr<SwarmClient>>* clients)
    : world_(world),
      faults_(faults),
      clients_(clients),
      answers_(world, faults, clients),
      random_(world->plan.seed * 15'485'863 + 3) {
  world_->cluster->control().set_observer(
      [this](const std::string&, const std::string& method,
             const google::protobuf::Message& request) { OnRequest(method, request); });
}

void SwarmAims::OnRequest(const std::string& method, const google::protobuf::Message& request) {
  answers_.OnRequest(method);
  if (method == "/verbena.v1.Cluster/GetView" && world_->has(SwarmFeature::kOldRequests)) {
    const auto& asks = static_cast<const v1::GetViewRequest&>(request);
    view_asked_ |= asks.server() && asks.wait_ms() == 0;
  }
  if (method == "/verbena.v1.Cluster/Reconfigure" && world_->has(SwarmFeature::kLateRequests)) {
    return OnReconfigure(static_cast<const v1::ReconfigureRequest&>(request));
  }
  if (world_->has(SwarmFeature::kRestoredLosses)) {
    if (method == "/verbena.v1.Cluster/FinishRestore") LoseRestored();
  }
  if (!world_->has(SwarmFeature::kRestoreCuts)) return;
  if (method == "/verbena.v1.Cluster/FinishRestore") return HoldRestore();
  if (method != "/verbena.v1.Cluster/CreateTable") return;
  if (static_cast<const v1::CreateTableRequest&>(request).restoring()) SlowRestore();
}

void SwarmAims::Run() {
  answers_.Run();
  if (world_->stage != SwarmStage::kFaults) {
    if (cut_.until_ns != 0) Cut(std::exchange(cut_, {}).primary, false);
    EndMissedRun();
    EndLostFollower();
    EndSlowFollower();
    return;
  }
  if (world_->old_state) return;
  if (world_->has(SwarmFeature::kJoinStalls)) StallJoining();
  if (world_->has(SwarmFeature::kCutLearners)) FollowLearner();
  if (world_->has(SwarmFeature::kLateLeaves)) LeaveLate();
  if (world_->has(SwarmFeature::kMissedRuns)) MissRun();
  if (world_->has(SwarmFeature::kLostFollowers)) LoseFollower();
  if (world_->has(SwarmFeature::kLateRequests)) PartFollower();
  if (world_->has(SwarmFeature::kLateFollowers)) {
    SlowFollower();
    CrashHolder();
  }
  if (std::exchange(view_asked_, false)) AnswerByOldState();
}

// The answer of the coordinator comes when the lease that it grants may be over. The client is not
// excused: one that has joined has a lease.
void SwarmAims::StallJoining() {
  for (const auto& client : *clients_) {
    if (client == nullptr || !client->joining()) continue;
    if (!joining_.insert(client->process()->host()).second || !Chance(0.5)) continue;
    // Less than the call's deadline.
    const int64_t time = std::min<int64_t>(Leases(20, 180), 1900 * kMilli);
    client->process()->StallUntil(world_->now() + time);
    world_->Trace(absl::StrCat(client->process()->host(), " stalls while it joins, for ",
                               time / kMilli, " ms"));
  }
}

void SwarmAims::FollowLearner() {
  if (cut_.until_ns != 0) return ContinueCut();
  if (world_->now() < next_learner_at_) return;
  const v1::ClusterView& view = world_->cluster->view();
  for (const v1::Partition& p : view.partitions()) {
    if (p.learners_size() == 0 || p.followers_size() > 0) continue;
    const int primary = faults_->ServerOf(p.primary());
    if (primary < 0 || faults_->ServerOf(p.learners(0).server()) < 0) continue;
    cut_ = {.partition = static_cast<int>(p.id()),
            .primary = primary,
            .learner = p.learners(0),
            .revision = view.revision(),
            .dies = Chance(0.5),
            .until_ns = world_->now() + Leases(20, 80)};
    world_->Trace(absl::StrCat("cut: server-", primary, " -> coordinator"));
    Cut(primary, true);
    return;
  }
}

// The learner has all data of its primary, and the coordinator does not hear so. Then the primary
// dies, and its partition is lost and reset before the learner hears anything; or the primary has
// the learner admitted, which does not hear that, and leaves.
void SwarmAims::ContinueCut() {
  const int index = faults_->ServerOf(cut_.learner.server());
  const shard::Engine* engine =
      index < 0 ? nullptr : world_->cluster->server(index)->shard(cut_.learner.shard()).engine();
  if (!cut_.deaf && engine != nullptr && RevisionOf(*engine) >= cut_.revision) {
    cut_.deaf = true;
    faults_->Deafen(
        absl::StrCat("server-", index),
        cut_.until_ns - world_->now() + (cut_.dies ? Leases(400, 800) : Leases(50, 400)));
  }
  if (world_->now() < cut_.until_ns) return;
  Cut(cut_.primary, false);
  const LearnerCut cut = std::exchange(cut_, {});
  next_learner_at_ = world_->now() + Between(1, 2000) * kMilli;
  if (!cut.deaf) return;
  if (cut.dies) return faults_->Crash(cut.primary, Leases(300, 500));
  const v1::Partition& p = world_->cluster->view().partitions(cut.partition);
  if (p.learners_size() > 0 && p.learners(0).server() == cut.learner.server()) {
    faults_->HandOver(p);
  }
}

void SwarmAims::Cut(int server, bool cut) {
  world_->cluster->control().Cut(absl::StrCat("server-", server), "coordinator", cut);
}

// A table was loaded everywhere: the report of the restore is lost for a while, and a primary
// leaves or dies meanwhile.
void SwarmAims::HoldRestore() {
  if (world_->stage != SwarmStage::kFaults || world_->old_state || Chance(0.4)) return;
  const int64_t time = Leases(20, 200);
  CutOperator(time);
  const bool leaves = Chance(0.7);
  const auto index = static_cast<int>(Between(0, world_->cluster->servers() - 1));
  faults_->Later(Between(0, time / kMilli / 2) * kMilli, [this, leaves, index] {
    if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
    if (leaves) return faults_->LeaveServer(index);
    faults_->Crash(index);
  });
}

// Slow rails of all servers: logs for replicas stay full of pushes while a restore makes a table.
void SwarmAims::SlowRestore() {
  if (world_->stage != SwarmStage::kFaults || Chance(0.4)) return;
  const int64_t delay = Between(5, 30) * kMilli, time = Leases(10, 100);
  world_->Trace(absl::StrCat("slow: all servers, ", delay / kMilli, " ms for ", time / kMilli));
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const std::string rail = RailHost(absl::StrCat("server-", i), 0);
    world_->cluster->network().Slow(rail, delay);
    faults_->Later(time, [this, rail] { world_->cluster->network().Slow(rail, 0); });
  }
}

void SwarmAims::LoseRestored() {
  if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
  DeafenRestored();
  if (world_->now() < next_restored_at_ || Chance(0.2)) return;
  const int64_t time = Leases(40, 150);
  next_restored_at_ = world_->now() + time + Leases(100, 300);
  CutOperator(time);
  const auto index = static_cast<int>(Between(0, world_->cluster->servers() - 1));
  faults_->Later(Between(0, 20) * kMilli, [this, index] {
    if (world_->stage == SwarmStage::kFaults && !world_->old_state) {
      faults_->Crash(index, Leases(5, 30));
    }
  });
}

void SwarmAims::CutOperator(int64_t time) {
  world_->Trace(absl::StrCat("cut: operator -> coordinator, for ", time / kMilli, " ms"));
  world_->cluster->control().Cut("operator", "coordinator", true);
  faults_->Later(time,
                 [this] { world_->cluster->control().Cut("operator", "coordinator", false); });
}

void SwarmAims::DeafenRestored() {
  const v1::ClusterView& view = world_->cluster->view();
  std::set<int> deaf;
  for (const v1::Table& table : view.tables()) {
    if (!table.restoring()) continue;
    for (const uint32_t p : table.lost_partitions()) {
      deaf.insert(faults_->ServerOf(view.partitions(static_cast<int>(p)).primary()));
    }
  }
  for (const int server : deaf) {
    if (server >= 0) faults_->Deafen(absl::StrCat("server-", server), Between(100, 4000) * kMilli);
  }
}

// A follower dies; its primary leaves when the coordinator has not heard the follower for most of a
// lease, and has not declared it silent.
void SwarmAims::LeaveLate() {
  if (world_->now() < next_leave_at_) return;
  next_leave_at_ = world_->now() + Between(200, 2000) * kMilli;
  const v1::ClusterView& view = world_->cluster->view();
  std::vector<const v1::Partition*> followed;
  for (const v1::Partition& p : view.partitions()) {
    if (p.followers_size() > 0) followed.push_back(&p);
  }
  if (followed.empty()) return;
  const v1::Partition& p =
      *followed[static_cast<size_t>(Between(0, static_cast<int64_t>(followed.size()) - 1))];
  const int primary = faults_->ServerOf(p.primary());
  const int follower = faults_->ServerOf(p.followers(0).server());
  if (primary < 0 || follower < 0 || primary == follower) return;
  faults_->Crash(follower);
  faults_->Later(Leases(80, 98), [this, primary, incarnation = p.primary()] {
    if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
    if (faults_->ServerOf(incarnation) == primary) faults_->LeaveServer(primary);
  });
}

const v1::Job* SwarmAims::JobWithSteps(SwarmJob** job) const {
  const v1::ClusterView& view = world_->cluster->view();
  const auto found = std::find_if(world_->jobs.begin(), world_->jobs.end(), [](const SwarmJob& j) {
    return j.plan.steps && !j.restart && !j.draining;
  });
  if (found == world_->jobs.end() || view.partitions().empty()) return nullptr;
  *job = &*found;
  const auto known = std::find_if(view.jobs().begin(), view.jobs().end(),
                                  [&](const v1::Job& j) { return j.name() == found->plan.name; });
  return known == view.jobs().end() || known->members().empty() ? nullptr : &*known;
}

void SwarmAims::BeginMissedRun() {
  next_run_at_ = world_->now() + Between(50, 500) * kMilli;
  const v1::ClusterView& view = world_->cluster->view();
  SwarmJob* job = nullptr;
  const v1::Job* known = JobWithSteps(&job);
  if (known == nullptr) return;
  const v1::Partition& p =
      view.partitions(static_cast<int>(Between(0, view.partitions_size() - 1)));
  if (p.followers().empty()) return;
  const int follower = faults_->ServerOf(p.followers(0).server());
  if (follower < 0 || faults_->ServerOf(p.primary()) < 0) return;
  job->restart = true;
  run_ = {.job = job->plan.name,
          .generation = known->generation(),
          .partition = static_cast<int>(p.id()),
          .primary = p.primary(),
          .follower = p.followers(0).server(),
          .host = absl::StrCat("server-", follower),
          .until_ns = world_->now() + 6 * kSecond};
  world_->Trace(absl::StrCat("job ", run_.job, " begins anew, and ", run_.host, " misses it"));
}

void SwarmAims::EndMissedRun() {
  if (run_.until_ns == 0) return;
  if (run_.deaf) world_->cluster->control().Cut("coordinator", run_.host, false);
  run_ = {};
}

void SwarmAims::MissRun() {
  if (run_.until_ns == 0) {
    if (world_->now() >= next_run_at_) BeginMissedRun();
    return;
  }
  const v1::ClusterView& view = world_->cluster->view();
  const v1::Partition& p = view.partitions(run_.partition);
  const bool same = p.primary() == run_.primary && p.followers_size() > 0 &&
                    p.followers(0).server() == run_.follower;
  if (world_->now() >= run_.until_ns || !same) return EndMissedRun();
  const auto job = std::find_if(view.jobs().begin(), view.jobs().end(),
                                [&](const v1::Job& j) { return j.name() == run_.job; });
  if (job == view.jobs().end()) return;
  // No earlier: a follower that is deaf for long is given up.
  if (!run_.deaf && job->members().empty()) {
    run_.deaf = true;
    world_->Trace(absl::StrCat(run_.host, " is deaf"));
    world_->cluster->control().Cut("coordinator", run_.host, true);
  }
  if (job->generation() == run_.generation) return;
  if (!run_.deaf) return EndMissedRun();
  // The new run makes a step first.
  const bool steps =
      std::any_of(world_->tables.begin(), world_->tables.end(), [&](const auto& entry) {
        const SwarmTable& table = entry.second;
        return !table.dropped() && table.steps() != nullptr && table.spec().job() == run_.job &&
               table.steps()->generation() > run_.generation && table.steps()->ended() > 0;
      });
  if (run_.leaves_at_ns == 0 && !steps) return;
  if (run_.leaves_at_ns == 0) run_.leaves_at_ns = world_->now() + Between(5, 200) * kMilli;
  if (world_->now() < run_.leaves_at_ns) return;
  const int primary = faults_->ServerOf(run_.primary);
  if (primary < 0) return EndMissedRun();
  faults_->LeaveServer(primary);
  // The follower hears of the run and of its promotion together. Another run would hide the effect.
  run_.leaves_at_ns = run_.until_ns;
  next_run_at_ = world_->plan.faults_end_ns;
}

void SwarmAims::BeginLostFollower() {
  next_lost_at_ = world_->now() + Between(50, 500) * kMilli;
  const v1::ClusterView& view = world_->cluster->view();
  if (view.partitions().empty() || view.tables().empty()) return;
  const v1::Partition& p =
      view.partitions(static_cast<int>(Between(0, view.partitions_size() - 1)));
  if (p.followers().empty()) return;
  const int follower = faults_->ServerOf(p.followers(0).server());
  if (follower < 0 || faults_->ServerOf(p.primary()) < 0) return;
  lost_ = {.partition = static_cast<int>(p.id()),
           .primary = p.primary(),
           .follower = p.followers(0).server(),
           .deaf = absl::StrCat("server-", follower),
           .until_ns = world_->now() + Leases(1000, 1500)};
  world_->Trace(absl::StrCat(lost_.deaf, " has no rails, and is deaf"));
  world_->cluster->control().Cut("coordinator", lost_.deaf, true);
  CutRails(lost_.deaf, true);
}

void SwarmAims::CutRails(const std::string& host, bool cut) {
  for (uint32_t rail = 0; rail < world_->plan.cluster.rails; ++rail) {
    world_->cluster->network().Cut(RailHost(host, rail), cut);
  }
}

void SwarmAims::EndLostFollower() {
  if (lost_.until_ns == 0) return;
  world_->cluster->control().Cut("coordinator", lost_.deaf, false);
  CutRails(lost_.deaf, false);
  lost_ = {};
}

void SwarmAims::LoseFollower() {
  if (lost_.until_ns == 0) {
    if (world_->now() >= next_lost_at_) BeginLostFollower();
    return;
  }
  const v1::ClusterView& view = world_->cluster->view();
  const v1::Partition& p = view.partitions(lost_.partition);
  const bool dropped = p.followers().empty();
  const bool its_own = p.primary() == lost_.follower;
  if (world_->now() >= lost_.until_ns || (p.primary() != lost_.primary && !its_own)) {
    return EndLostFollower();
  }
  const int primary = faults_->ServerOf(lost_.primary);
  if (!lost_.dead && dropped && primary >= 0) {
    lost_.dead = true;
    CutRails(lost_.deaf, false);
    faults_->Crash(primary, Leases(400, 700));
  }
  if (!its_own) return;
  const bool lost =
      std::any_of(view.tables().begin(), view.tables().end(), [&](const v1::Table& t) {
        return std::count(t.lost_partitions().begin(), t.lost_partitions().end(), p.id()) > 0;
      });
  if (!lost) EndLostFollower();
}

void SwarmAims::PartFollower() {
  if (world_->now() < next_part_at_) return;
  next_part_at_ = world_->now() + Leases(150, 400);
  const v1::ClusterView& view = world_->cluster->view();
  if (view.partitions().empty()) return;
  const v1::Partition& p =
      view.partitions(static_cast<int>(Between(0, view.partitions_size() - 1)));
  const int follower = p.followers().empty() ? -1 : faults_->ServerOf(p.followers(0).server());
  if (follower < 0) return;
  const std::string host = absl::StrCat("server-", follower);
  world_->Trace(absl::StrCat(host, " has no rails"));
  CutRails(host, true);
  faults_->Later(Leases(110, 150), [this, host] { CutRails(host, false); });
}

void SwarmAims::OnReconfigure(const v1::ReconfigureRequest& request) {
  if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
  const bool takes_role =
      std::any_of(request.changes().begin(), request.changes().end(), [](const auto& change) {
        return change.kind() == v1::ConfigurationChange::DROP_REPLICA ||
               change.kind() == v1::ConfigurationChange::PROMOTE;
      });
  const int index = faults_->ServerOf(request.incarnation());
  if (!takes_role || index < 0 || world_->now() < next_change_at_ || Chance(0.3)) return;
  next_change_at_ = world_->now() + Leases(200, 500);
  const int64_t time = Leases(20, 150);
  world_->Trace(absl::StrCat("the coordinator stalls for ", time / kMilli, " ms with what server-",
                             index, " asks"));
  world_->cluster->StallCoordinatorUntil(world_->now() + time);
  faults_->Later(Between(1, 20) * kMilli,
                 [this, index] { faults_->Crash(index, Leases(200, 500)); });
}

void SwarmAims::SlowRails(const std::string& host, int64_t delay) {
  for (uint32_t rail = 0; rail < world_->plan.cluster.rails; ++rail) {
    world_->cluster->network().Slow(RailHost(host, rail), delay);
  }
}

void SwarmAims::BeginSlowFollower() {
  next_late_at_ = world_->now() + Between(200, 1000) * kMilli;
  const v1::ClusterView& view = world_->cluster->view();
  SwarmJob* job = nullptr;
  const v1::Job* known = JobWithSteps(&job);
  if (known == nullptr) return;
  const v1::Partition& p =
      view.partitions(static_cast<int>(Between(0, view.partitions_size() - 1)));
  const int follower = p.followers().empty() ? -1 : faults_->ServerOf(p.followers(0).server());
  if (follower < 0 || faults_->ServerOf(p.primary()) < 0) return;
  job->restart = true;
  late_ = {.job = job->plan.name,
           .generation = known->generation(),
           .partition = static_cast<int>(p.id()),
           .primary = p.primary(),
           .follower = p.followers(0).server(),
           .slow = absl::StrCat("server-", follower),
           .until_ns = world_->now() + 6 * kSecond};
  // Less than a primary needs to read for workers: it hears the follower in time.
  const int64_t delay = Leases(15, 35);
  world_->Trace(absl::StrCat("job ", late_.job, " begins anew, and ", late_.slow, " is ",
                             delay / kMilli, " ms late"));
  SlowRails(late_.slow, delay);
}

void SwarmAims::EndSlowFollower() {
  if (late_.until_ns == 0) return;
  CutRails(late_.slow, false);
  SlowRails(late_.slow, 0);
  late_ = {};
}

void SwarmAims::SlowFollower() {
  if (late_.until_ns == 0) {
    if (world_->now() >= next_late_at_) BeginSlowFollower();
    return;
  }
  const v1::ClusterView& view = world_->cluster->view();
  const v1::Partition& p = view.partitions(late_.partition);
  const bool same = p.primary() == late_.primary && p.followers_size() > 0 &&
                    p.followers(0).server() == late_.follower;
  if (world_->now() >= late_.until_ns || !same) return EndSlowFollower();
  const auto job = std::find_if(view.jobs().begin(), view.jobs().end(),
                                [&](const v1::Job& j) { return j.name() == late_.job; });
  if (job == view.jobs().end() || job->generation() == late_.generation) return;
  if (late_.dies_at_ns == 0) {
    // Messages in flight to the follower do not arrive.
    CutRails(late_.slow, true);
    late_.dies_at_ns = world_->now() + Leases(1, 50);
  }
  if (world_->now() < late_.dies_at_ns) return;
  late_.dies_at_ns = late_.until_ns;
  const int primary = faults_->ServerOf(late_.primary);
  if (primary < 0) return EndSlowFollower();
  faults_->Crash(primary, Leases(300, 500));
}

void SwarmAims::CrashHolder() {
  if (world_->now() < next_holder_at_) return;
  const v1::ClusterView& view = world_->cluster->view();
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    for (uint32_t s = 0; server != nullptr && s < server->shards(); ++s) {
      const shard::Engine* engine = server->shard(s).engine();
      const auto held = engine == nullptr ? std::nullopt : PartitionWithHeldReads(*engine);
      if (!held.has_value()) continue;
      const v1::Partition& p = view.partitions(static_cast<int>(*held));
      const int follower = p.followers().empty() ? -1 : faults_->ServerOf(p.followers(0).server());
      if (follower < 0) continue;
      next_holder_at_ = world_->now() + Leases(100, 300);
      if (Chance(0.2)) return;
      const std::string host = absl::StrCat("server-", follower);
      const int64_t time = Leases(2, 40);
      world_->Trace(absl::StrCat("server-", i, " holds reads of partition ", *held, "; ", host,
                                 " has no rails"));
      CutRails(host, true);
      faults_->Later(time, [this, i] { faults_->Crash(i, Leases(300, 500)); });
      faults_->Later(time + kMilli, [this, host] { CutRails(host, false); });
      return;
    }
  }
}

// The request is on its way to the coordinator.
void SwarmAims::AnswerByOldState() {
  if (world_->now() < next_old_at_ || !Chance(0.7)) return;
  next_old_at_ = world_->now() + Between(300, 2000) * kMilli;
  faults_->PutOldStateBack(true);
}

}  // namespace verbena::test
