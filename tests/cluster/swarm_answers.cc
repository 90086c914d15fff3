#include "tests/cluster/swarm_answers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::test {

SwarmAnswers::SwarmAnswers(SwarmWorld* world, SwarmFaults* faults,
                           std::vector<std::unique_ptr<SwarmClient>>* clients)
    : world_(world),
      faults_(faults),
      clients_(clients),
      random_(world->plan.seed * 32'452'843 + 5) {}

void SwarmAnswers::OnRequest(const std::string& method) {
  if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
  if (world_->has(SwarmFeature::kLateAdmissions) && method == "/verbena.v1.Cluster/AdmitMembers") {
    DelayAdmission();
  }
}

void SwarmAnswers::Run() {
  if (world_->stage != SwarmStage::kFaults || world_->old_state) return;
  if (world_->has(SwarmFeature::kStrayMembers)) LetStray();
  if (world_->has(SwarmFeature::kDeafPrimaries)) DeafenPrimary();
  if (world_->has(SwarmFeature::kReadFollowers)) DropFollower();
}

void SwarmAnswers::DropFollower() {
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->now() < next_drop_at_ || view.partitions_size() == 0) return;
  next_drop_at_ = world_->now() + Leases(20, 50);
  const v1::Partition& p =
      view.partitions(static_cast<int>(Between(0, view.partitions_size() - 1)));
  if (p.followers_size() == 0) return;
  const int follower = faults_->ServerOf(p.followers(0).server());
  if (follower < 0) return;
  SimServer* const server = world_->cluster->server(follower);
  const int64_t time = Leases(30, 140), deaf = time + Leases(20, 300);
  next_drop_at_ = world_->now() + deaf + Leases(50, 200);
  server->StallUntil(world_->now() + time);
  world_->Trace(absl::StrCat(server->host(), ", a follower, stalls for ", time / kMilli, " ms"));
  faults_->Deafen(server->host(), deaf);
  for (const auto& client : *clients_) {
    if (client == nullptr || !client->observer() || Chance(0.2)) continue;
    client->Excuse();
    faults_->Deafen(client->process()->host(), deaf);
  }
}

// The answers that bring them the view are on their way.
void SwarmAnswers::DeafenPrimary() {
  const v1::ClusterView& view = world_->cluster->view();
  if (view.revision() == before_.revision()) return;
  const v1::ClusterView before = std::exchange(before_, view);
  if (world_->now() < next_move_at_ || before.partitions_size() != view.partitions_size()) return;
  const auto moved =
      std::find_if(before.partitions().begin(), before.partitions().end(), [&](const auto& was) {
        const v1::Partition& p = view.partitions(static_cast<int>(was.id()));
        return p.primary() != was.primary() && p.epoch() == was.epoch() + 1 &&
               p.released_epoch() == p.epoch() && faults_->ServerOf(was.primary()) >= 0;
      });
  if (moved == before.partitions().end()) return;
  const int64_t time = Leases(50, 100);
  next_move_at_ = world_->now() + time;
  faults_->Deafen(absl::StrCat("server-", faults_->ServerOf(moved->primary())), time);
  for (const auto& client : *clients_) {
    // Others have to push at the new place.
    if (client == nullptr || Chance(client->observer() ? 0.1 : 0.6)) continue;
    client->Excuse();
    faults_->Deafen(client->process()->host(), time);
  }
}

void SwarmAnswers::DelayAdmission() {
  if (world_->now() < next_admission_at_ || Chance(0.2)) return;
  // Less than the joining workers wait.
  const int64_t time = std::min<int64_t>(Leases(30, 150), 1600 * kMilli);
  next_admission_at_ = world_->now() + time;
  world_->Trace(
      absl::StrCat("the coordinator stalls for ", time / kMilli, " ms with an admission"));
  world_->cluster->StallCoordinatorUntil(world_->now() + time);
}

void SwarmAnswers::CutServers(bool cut) {
  for (int i = 0; i < world_->cluster->servers(); ++i) {
    const std::string host = absl::StrCat("server-", i);
    world_->cluster->control().Cut(host, "coordinator", cut);
    world_->cluster->control().Cut("coordinator", host, cut);
  }
  world_->cluster->control().Cut("operator", "coordinator", cut);
}

void SwarmAnswers::LetStray() {
  if (world_->now() < next_stray_at_) return;
  next_stray_at_ = world_->now() + Between(200, 1000) * kMilli;
  // Nobody joins before the servers that the state lists were silent for a lease, and its first
  // leases are longer by a second.
  const int64_t time = Leases(110, 160) + 2 * kSecond;
  faults_->PutOldStateBack(/*overtakes=*/true, time);
  if (!world_->old_state) return;
  CutServers(true);
  faults_->Later(time + Leases(10, 60), [this] { CutServers(false); });
  next_stray_at_ = world_->now() + time + Leases(200, 300);
  // Other processes take their places.
  for (auto& client : *clients_) {
    if (client != nullptr && Chance(0.5)) client.reset();
  }
}

}  // namespace verbena::test
