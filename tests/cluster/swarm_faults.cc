#include "tests/cluster/swarm_faults.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/cluster/replica_compare.h"

namespace verbena::test {
namespace {

// A slow server pauses, and is not stalled.
constexpr int64_t kLongestPause = 20 * kMilli;
// States of the coordinator, one in so much time.
constexpr size_t kStatesKept = 4;
constexpr uint64_t kStartsOfOldState = 24;
constexpr int64_t kStatePeriod = 300 * kMilli;

}  // namespace

SwarmFaults::SwarmFaults(SwarmWorld* world, std::vector<std::unique_ptr<SwarmClient>>* clients)
    : world_(world),
      clients_(clients),
      slow_server_(
          world->has(SwarmFeature::kSlowServer)
              ? static_cast<int>(world->Pick(static_cast<size_t>(world->cluster->servers())))
              : -1),
      next_at_(world->Between(100, 2000) * kMilli) {
  if (slow_server_ >= 0) world_->cluster->server(slow_server_)->SetPace(world_->plan.pace_ns);
  if (world_->has(SwarmFeature::kCoordinatorRestarts)) {
    world_->cluster->set_group_crashes(0.05);
  }
}

void SwarmFaults::Run() {
  while (!later_.empty() && later_.begin()->first <= world_->now()) {
    later_.extract(later_.begin()).mapped()();
  }
  RestartEnded();
  if (world_->has(SwarmFeature::kOldStates)) KeepState();
  if (world_->stage == SwarmStage::kFaults && !world_->old_state) FollowLearners();
  if (world_->stage != SwarmStage::kFaults || world_->now() < next_at_) return;
  next_at_ = world_->now() + world_->Between(1, world_->plan.fault_pause_ns);
  // A server that joined, or was restarted, under the older state would belong to no cluster.
  if (!world_->old_state) Inject();
}

void SwarmFaults::Stop() {
  while (!later_.empty()) later_.extract(later_.begin()).mapped()();
  world_->cluster->network().set_faults(rdma::SimFaults());
  world_->cluster->control().set_faults(ControlFaults());
  world_->cluster->store().set_faults({});
  world_->cluster->set_group_crashes(0);
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    world_->cluster->server(i)->StallUntil(world_->now());
  }
  handover_ = {};
}

void SwarmFaults::Inject() {
  static constexpr SwarmFeature kKinds[] = {
      SwarmFeature::kServerCrashes,
      SwarmFeature::kServerStalls,
      SwarmFeature::kWorkerCrashes,
      SwarmFeature::kWorkerStalls,
      SwarmFeature::kCoordinatorRestarts,
      SwarmFeature::kCoordinatorStalls,
      SwarmFeature::kPartitions,
      SwarmFeature::kHangs,
      SwarmFeature::kRailFaults,
      SwarmFeature::kSlowStore,
      SwarmFeature::kOldStates,
      SwarmFeature::kLongCalls,
      SwarmFeature::kSuspends,
      SwarmFeature::kSlowLinks,
      SwarmFeature::kServerLeaves,
  };
  std::vector<SwarmFeature> kinds;
  std::copy_if(std::begin(kKinds), std::end(kKinds), std::back_inserter(kinds),
               [&](SwarmFeature kind) { return world_->has(kind); });
  if (kinds.empty()) return;
  const SwarmFeature kind = kinds[world_->Pick(kinds.size())];
  world_->Trace(absl::StrCat("fault: ", SwarmFeatureName(kind)));
  switch (kind) {
    case SwarmFeature::kServerCrashes:
      return CrashServer();
    case SwarmFeature::kServerStalls:
      return StallServer();
    case SwarmFeature::kWorkerCrashes: {
      auto& client = (*clients_)[world_->Pick(clients_->size())];
      if (client == nullptr) return;
      ++world_->result->workers_crashed;
      client.reset();
      return;
    }
    case SwarmFeature::kWorkerStalls:
      return StallWorker();
    case SwarmFeature::kCoordinatorRestarts:
      return world_->cluster->RestartCoordinator();
    case SwarmFeature::kCoordinatorStalls:
      return StallCoordinator();
    case SwarmFeature::kPartitions:
      return Partition();
    case SwarmFeature::kHangs:
      return world_->cluster->network().Hang(AnyRail());
    case SwarmFeature::kRailFaults:
      return RailFault();
    case SwarmFeature::kSlowStore:
      return SlowStore();
    case SwarmFeature::kOldStates:
      return PutOldStateBack(false);
    case SwarmFeature::kLongCalls:
      return HoldWorker();
    case SwarmFeature::kSuspends:
      return Suspend();
    case SwarmFeature::kSlowLinks:
      return SlowLink();
    case SwarmFeature::kServerLeaves:
      return LeaveServer(AnyServer());
    default:
      return;
  }
}

SwarmClient* SwarmFaults::AnyClient() { return (*clients_)[world_->Pick(clients_->size())].get(); }

int SwarmFaults::AnyServer() const {
  return static_cast<int>(world_->Pick(static_cast<size_t>(world_->cluster->servers())));
}

int SwarmFaults::ServerOf(uint64_t incarnation) const {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    if (server != nullptr && server->incarnation() == incarnation) return i;
  }
  return -1;
}

std::string SwarmFaults::AnyRail() {
  std::string host = absl::StrCat("server-", AnyServer());
  SwarmClient* client = AnyClient();
  if (client != nullptr && world_->Chance(0.5)) host = client->process()->host();
  return RailHost(host, static_cast<uint32_t>(world_->Pick(world_->plan.cluster.rails)));
}

bool SwarmFaults::MayCrash(int index) const {
  if (world_->has(SwarmFeature::kLosses)) return true;
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->plan.cluster.replicas < 2 || view.partitions_size() == 0) return false;
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    if (i != index && (server == nullptr || server->stalled(world_->now() + kLongestPause)))
      return false;
  }
  if (std::any_of(view.servers().begin(), view.servers().end(),
                  [](const v1::Server& s) { return s.state() != v1::Server::ALIVE; })) {
    return false;
  }
  return std::all_of(view.partitions().begin(), view.partitions().end(),
                     [](const v1::Partition& p) { return p.followers_size() > 0; });
}

void SwarmFaults::CrashServer() {
  int index = AnyServer();
  if (world_->has(SwarmFeature::kHeavyLoad) && world_->Chance(0.5)) index = slow_server_;
  Crash(index);
}

void SwarmFaults::Crash(int index, int64_t dead_ns) {
  if (world_->cluster->server(index) == nullptr || !MayCrash(index)) return;
  ++world_->result->servers_crashed;
  world_->Trace(absl::StrCat("server-", index, " (", world_->cluster->server(index)->incarnation(),
                             ") crashes"));
  ++world_->lives[static_cast<size_t>(index)];
  world_->cluster->CrashServer(index);
  Later(dead_ns > 0 ? dead_ns : StallTime(), [this, index] { RestartServer(index); });
}

void SwarmFaults::RestartServer(int index) {
  world_->cluster->RestartServer(index);
  world_->Trace(absl::StrCat("server-", index, " restarts"));
  if (index == slow_server_) world_->cluster->server(index)->SetPace(world_->plan.pace_ns);
}

void SwarmFaults::StallCoordinator() {
  ++world_->result->coordinator_stalled;
  const int64_t until = world_->now() + StallTime();
  world_->Trace(absl::StrCat("the coordinator stalls until ", until / kMilli, " ms"));
  world_->cluster->StallCoordinatorUntil(until);
}

void SwarmFaults::StallServer() {
  SimServer* server = world_->cluster->server(AnyServer());
  if (server == nullptr) return;
  ++world_->result->servers_stalled;
  const int64_t until = world_->now() + StallTime();
  server->StallUntil(until);
  world_->Trace(absl::StrCat(server->host(), " stalls until ", until / kMilli, " ms"));
}

void SwarmFaults::StallWorker() {
  SwarmClient* client = AnyClient();
  if (client == nullptr) return;
  const int64_t time = StallTime();
  client->process()->StallUntil(world_->now() + time);
  if (time > world_->plan.lease_ns() / 4) client->Excuse();
}

// The process runs, and so its lease does not end.
void SwarmFaults::HoldWorker() {
  SwarmClient* client = AnyClient();
  if (client == nullptr) return;
  client->process()->HoldUntil(world_->now() + StallTime());
}

void SwarmFaults::SlowStore() {
  StoreFaults faults;
  faults.checkpoint_ns = world_->Chance(0.7) ? StallTime() : 0;
  faults.fail_checkpoints = faults.checkpoint_ns == 0 || world_->Chance(0.3);
  world_->Trace(absl::StrCat("saves of the coordinator take ", faults.checkpoint_ns / kMilli, " ms",
                             faults.fail_checkpoints ? " and fail" : ""));
  world_->cluster->store().set_faults(faults);
  Later(StallTime(), [this] { world_->cluster->store().set_faults({}); });
}

void SwarmFaults::KeepState() {
  if (world_->old_state || world_->now() < next_state_at_) return;
  next_state_at_ = world_->now() + kStatePeriod;
  states_.push_back(world_->cluster->store().state());
  if (states_.size() > kStatesKept) states_.pop_front();
}

bool SwarmFaults::AllHaveSeenMore(uint64_t revision) const {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const SimServer* server = world_->cluster->server(i);
    for (uint32_t s = 0; server == nullptr || s < server->shards(); ++s) {
      const shard::Engine* engine = server == nullptr ? nullptr : server->shard(s).engine();
      if (engine == nullptr || RevisionOf(*engine) <= revision) return false;
    }
  }
  return true;
}

// One that no server follows: a server that did would rightly refuse the newest state afterwards.
void SwarmFaults::PutOldStateBack(bool overtakes, int64_t time_ns) {
  if (states_.empty()) return;
  SimStore& store = world_->cluster->store();
  const auto newest = std::make_shared<server::CoordinatorState>(store.state());
  const server::CoordinatorState& older = states_[world_->Pick(states_.size())];
  if (!AllHaveSeenMore(older.view.revision())) return;
  const int64_t time =
      time_ns > 0 ? time_ns : world_->plan.lease_ns() * world_->Between(10, 100) / 100;
  world_->Trace(
      absl::StrCat("revision ", older.view.revision(), " is put back for ", time / kMilli, " ms"));
  for (const auto& client : *clients_) {
    if (client != nullptr) client->Excuse();
  }
  world_->old_state = true;
  store.set_state(older);
  // A supervisor starts it again and again: its revisions overtake those that members have seen.
  std::mt19937_64 own(static_cast<uint64_t>(world_->now()));  // changes no other draw of a seed
  uint64_t starts = 1 + own() % kStartsOfOldState;
  if (overtakes) starts += newest->view.revision() - older.view.revision();
  for (; starts > 0; --starts) {
    world_->cluster->RestartCoordinator();
  }
  Later(time, [this, newest] {
    world_->Trace("the newest state is back");
    world_->cluster->store().set_state(*newest);
    world_->cluster->RestartCoordinator();
    world_->old_state = false;
  });
}

// A client or a server and the coordinator, or a client and a server, do not hear one another's
// calls for a while, or one of them does not hear the other.
void SwarmFaults::Partition() {
  SwarmClient* client = AnyClient();
  std::string one = absl::StrCat("server-", AnyServer()), other = "coordinator";
  if (client != nullptr && world_->Chance(0.5)) {
    one = client->process()->host();
    client->Excuse();
    if (world_->Chance(0.3)) other = absl::StrCat("server-", AnyServer());
  }
  if (world_->Chance(0.5)) std::swap(one, other);
  const bool both = world_->Chance(0.5);
  world_->Trace(absl::StrCat("cut: ", one, both ? " <-> " : " -> ", other));
  world_->cluster->control().Cut(one, other, true);
  if (both) world_->cluster->control().Cut(other, one, true);
  Later(StallTime(), [this, one, other] {
    world_->cluster->control().Cut(one, other, false);
    world_->cluster->control().Cut(other, one, false);
  });
}

void SwarmFaults::RailFault() {
  const std::string rail = AnyRail();
  const int64_t time = world_->Between(1, 2000) * kMilli;
  if (world_->Chance(0.5)) return world_->cluster->network().Stall(rail, world_->now() + time);
  world_->cluster->network().Cut(rail, true);
  Later(time, [this, rail] { world_->cluster->network().Cut(rail, false); });
}

void SwarmFaults::SlowLink() {
  const std::string rail = AnyRail();
  world_->cluster->network().Slow(rail, world_->Between(1, 30) * kMilli);
  Later(StallTime(), [this, rail] { world_->cluster->network().Slow(rail, 0); });
}

// Nothing moves from or to the machine, and its process does not run.
void SwarmFaults::Suspend() {
  const int64_t time = StallTime(), until = world_->now() + time;
  SwarmClient* client = world_->Chance(0.7) ? nullptr : AnyClient();
  std::string host;
  if (client != nullptr) {
    host = client->process()->host();
    client->process()->StallUntil(until);
    client->Excuse();
  } else {
    const int index = AnyServer();
    SimServer* server = world_->cluster->server(index);
    if (server == nullptr) return;
    host = server->host();
    server->StallUntil(until);
    Later(time, [this, index, time, incarnation = server->incarnation()] {
      SimServer* resumed = world_->cluster->server(index);
      if (resumed != nullptr && resumed->incarnation() == incarnation) resumed->Resume(time);
    });
    // A client that hears of the new primary reads there; a deaf one still reads here.
    SwarmClient* deaf = world_->Chance(0.5) ? AnyClient() : nullptr;
    if (deaf != nullptr) {
      deaf->Excuse();
      Deafen(deaf->process()->host(), time + world_->plan.lease_ns() / 10);
    }
  }
  world_->Trace(absl::StrCat(host, " is suspended until ", until / kMilli, " ms"));
  for (uint32_t rail = 0; rail < world_->plan.cluster.rails; ++rail) {
    world_->cluster->network().Stall(RailHost(host, rail), until);
  }
}

void SwarmFaults::LeaveServer(int index) {
  SimServer* server = world_->cluster->server(index);
  if (server == nullptr || server->incarnation() == 0 || !MayCrash(index)) return;
  world_->Trace(absl::StrCat(server->host(), " (", server->incarnation(), ") leaves"));
  server->Leave(StallTime());
}

void SwarmFaults::RestartEnded() {
  for (int i = 0; i < world_->cluster->servers() && !world_->old_state; ++i) {
    const SimServer* server = world_->cluster->server(i);
    if (server == nullptr || !server->ended() || server->stalled(world_->now())) continue;
    world_->Trace(absl::StrCat(server->host(), " (", server->incarnation(), ") has ended"));
    ++world_->lives[static_cast<size_t>(i)];
    world_->cluster->CrashServer(i);
    if (world_->stage != SwarmStage::kFaults) return RestartServer(i);
    Later(StallTime(), [this, i] { RestartServer(i); });
  }
}

void SwarmFaults::FollowLearners() {
  const bool stalls = world_->has(SwarmFeature::kLearnerStalls);
  const bool handovers = world_->has(SwarmFeature::kHandovers);
  if (!stalls && !handovers) return;
  if (handover_.primary != 0) ContinueHandover();
  if (world_->now() < next_learner_at_) return;
  std::vector<const v1::Partition*> learning;
  for (const v1::Partition& p : world_->cluster->view().partitions()) {
    if (p.learners_size() > 0) learning.push_back(&p);
  }
  if (learning.empty()) return;
  next_learner_at_ = world_->now() + world_->Between(1, 500) * kMilli;
  const v1::Partition& p = *learning[world_->Pick(learning.size())];
  if (handovers && handover_.primary == 0 && (!stalls || world_->Chance(0.5))) {
    return BeginHandover(p);
  }
  const int index = ServerOf(p.learners(0).server());
  if (!stalls || index < 0) return;
  // Less than a lease: its primary does not give it up.
  const int64_t time = world_->plan.lease_ns() * world_->Between(5, 80) / 100;
  Later(world_->Between(0, 20) * kMilli, [this, index, time] {
    SimServer* server = world_->cluster->server(index);
    if (server == nullptr) return;
    ++world_->result->servers_stalled;
    server->StallUntil(world_->now() + time);
    world_->Trace(absl::StrCat(server->host(), " stalls while it catches up"));
  });
}

void SwarmFaults::Deafen(const std::string& host, int64_t time) {
  world_->Trace(absl::StrCat(host, " does not hear the coordinator for ", time / kMilli, " ms"));
  world_->cluster->control().Cut("coordinator", host, true);
  Later(time, [this, host] { world_->cluster->control().Cut("coordinator", host, false); });
}

void SwarmFaults::BeginHandover(const v1::Partition& partition) {
  handover_ = {.primary = partition.primary(),
               .learner = partition.learners(0).server(),
               .partition = static_cast<int>(partition.id()),
               .revision = world_->cluster->view().revision(),
               .until_ns = world_->now() + StallTime()};
}

void SwarmFaults::HandOver(const v1::Partition& partition) {
  if (handover_.primary != 0) return;
  BeginHandover(partition);
  handover_.deaf = true;
}

// The learner's server hears that it is one, and nothing more. Once it is a follower the primary
// leaves, and does not hear the answer; nor does a client, so that reads go on there by its lease.
void SwarmFaults::ContinueHandover() {
  Handover& h = handover_;
  const int primary = ServerOf(h.primary), learner = ServerOf(h.learner);
  const v1::Partition& p = world_->cluster->view().partitions(h.partition);
  const bool learns = p.learners_size() > 0 && p.learners(0).server() == h.learner;
  const bool admitted = p.followers_size() > 0 && p.followers(0).server() == h.learner;
  const bool over = world_->now() >= h.until_ns || p.primary() != h.primary ||
                    (!learns && !(admitted && h.deaf)) || primary < 0 || learner < 0;
  if (over) {
    h = {};
    return;
  }
  const std::string host = absl::StrCat("server-", learner);
  const shard::Engine* engine = world_->cluster->server(learner)->shard(0).engine();
  if (!h.deaf && engine != nullptr && RevisionOf(*engine) >= h.revision) {
    h.deaf = true;
    Deafen(host, h.until_ns - world_->now());
  }
  if (!admitted || !MayCrash(primary)) return;
  h = {};
  LeaveServer(primary);
  Deafen(absl::StrCat("server-", primary), StallTime());
  if (SwarmClient* client = AnyClient(); client != nullptr) {
    client->Excuse();
    Deafen(client->process()->host(), world_->plan.lease_ns() * world_->Between(10, 100) / 100);
  }
  Later(world_->Between(1, 200) * kMilli,
        [this, host] { world_->cluster->control().Cut("coordinator", host, false); });
}

}  // namespace verbena::test
