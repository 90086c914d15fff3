// Random histories of a cluster with replicas: the transitions allowed for each configuration.
#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/wire/table_partitions.h"
#include "server/coordinator/configurations.h"
#include "server/coordinator/placement.h"
#include "tests/cluster/seeds.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

constexpr int kSteps = 150;
constexpr uint64_t kSeeds = 100;
constexpr uint32_t kPartitions = 12;
constexpr int64_t kReplicaLeaseMs = 1000;
constexpr const char* kNames[] = {"a", "b", "c", "d", "e"};
constexpr const char* kZones[] = {"", "x", "y"};
constexpr const char* kTables[] = {"t", "u"};

std::set<uint64_t> Servers(const google::protobuf::RepeatedPtrField<v1::Replica>& replicas) {
  std::set<uint64_t> servers;
  for (const v1::Replica& r : replicas) servers.insert(r.server());
  return servers;
}

bool IsLost(const v1::ClusterView& view, uint32_t table, uint32_t partition) {
  for (const v1::Table& t : view.tables()) {
    if (t.id() != table) continue;
    return std::count(t.lost_partitions().begin(), t.lost_partitions().end(), partition) > 0;
  }
  return false;
}

class History {
 public:
  explicit History(uint64_t seed)
      : random_(seed),
        c_({.partitions = kPartitions, .lease_ms = kReplicaLeaseMs, .replicas = 2}, &store_) {}

  std::vector<std::string> Run() {
    for (step_ = 0; step_ < kSteps && violations_.empty(); ++step_) {
      Step();
    }
    return violations_;
  }

 private:
  uint32_t Below(uint32_t n) { return std::uniform_int_distribution<uint32_t>(0, n - 1)(random_); }

  void Violated(const v1::Partition& p, const std::string& what) {
    violations_.push_back(
        absl::StrCat("step ", step_, " (", did_, "): ", what, ": ", p.ShortDebugString()));
  }

  // One change of the cluster, or none.
  template <typename Change>
  void Do(Change change) {
    const v1::ClusterView before = c_.view();
    change();
    if (store_.full && before.SerializeAsString() != c_.view().SerializeAsString()) {
      violations_.push_back(absl::StrCat("step ", step_, ": changed, and not saved"));
    }
    store_.full = false;
    Check(before);
  }

  void Step() {
    const std::string name = kNames[Below(5)];
    switch (Below(12)) {
      case 0:
      case 1:
        return Do([&] { Join(name); });
      case 2:
        return Do([&] { Leave(name); });
      case 3:
        did_ = "remove " + name;
        return Do([&] { (void)c_.RemoveServer(name); });
      case 4:
        did_ = "table";
        return Do([&] { Table(); });
      case 5:
        did_ = "restart";
        barred_.clear();
        return Do([&] { c_.Restart(); });
      case 6:
        // Now and then many at once.
        for (const char* each : kNames) {
          if (each != name && Below(8) != 0) continue;
          quiet_.contains(each) ? quiet_.erase(each) : quiet_.insert(each).second;
        }
        [[fallthrough]];
      case 7:
        did_ = "time";
        return Pass();
      default:
        return Do([&] { Ask(); });
    }
  }

  void Join(const std::string& name) {
    did_ = "join " + name;
    v1::JoinServerRequest request = c_.ServerRequest(name, 1 + Below(2));
    request.set_zone(kZones[Below(3)]);
    const bool joined = c_.Call(&Coordinator::JoinServer, request).ok();
    if (joined) quiet_.erase(name);
  }

  void Leave(const std::string& name) {
    did_ = "leave " + name;
    for (const v1::Server& s : c_.view().servers()) {
      if (s.name() != name) continue;
      const uint64_t incarnation = s.incarnation();
      (void)c_.Leave(incarnation);
      return;
    }
  }

  void Table() {
    const std::string name = kTables[Below(2)];
    const uint32_t what = Below(6);
    if (what == 0) {
      (void)c_.DropTable(name);
    } else if (what == 1) {
      (void)c_.ResetTable(name);
    } else {
      (void)c_.CreateTable(c_.Spec(name, 64 * (1 + Below(30)), v1::CONSISTENCY_ASYNC, "job"));
    }
  }

  // A quarter of a lease, in which all but the quiet are heard of.
  void Pass() {
    c_.clock.AdvanceMs(kReplicaLeaseMs / 4);
    // First, so that changes due by time precede the requests.
    Do([&] { c_->RunOnce(); });
    const auto servers = c_.view().servers();
    for (const v1::Server& s : servers) {
      if (!quiet_.contains(s.name())) Do([&] { (void)c_.Heartbeat(s.incarnation()); });
    }
  }

  // Something that somebody may ask for, or may not, of a few partitions.
  void Ask() {
    if (c_.view().servers().empty()) return;
    const auto who = c_.view().servers(Below(c_.view().servers_size())).incarnation();
    did_ = absl::StrCat("reconfigure by ", who);
    std::vector<v1::ConfigurationChange> changes;
    std::vector<std::pair<uint32_t, uint64_t>> bars;
    for (const v1::Partition& p : c_.view().partitions()) {
      if (Below(4) == 0) continue;
      v1::ConfigurationChange change = c_.Change(v1::ConfigurationChange::PROMOTE, p.id());
      uint64_t barred = p.primary();
      if (p.primary() == who) {
        const bool admit = p.learners_size() > 0 && Below(4) != 0;
        change.set_kind(admit ? v1::ConfigurationChange::ADMIT
                              : v1::ConfigurationChange::DROP_REPLICA);
        for (const auto* copies : {&p.learners(), &p.followers()}) {
          if (!copies->empty()) change.set_server((*copies)[0].server());
        }
        barred = admit ? 0 : change.server();
      }
      // Most requests are for the caller's own role: one that is not makes all of them fail.
      const bool theirs =
          p.primary() == who ? change.server() != 0 : Servers(p.followers()).contains(who);
      if (!theirs && Below(40) != 0) continue;
      if (p.primary() != who && Below(3) != 0) continue;
      if (Below(8) == 0) change.set_configuration(change.configuration() - 1);
      changes.push_back(change);
      bars.emplace_back(p.id(), barred);
    }
    store_.full = Below(8) == 0;
    const auto answer = c_.Reconfigure(who, changes);
    if (!answer.ok()) return;
    for (int i = 0; i < answer->made_size(); ++i) {
      if (answer->made(i)) barred_[bars[i]] = c_.clock.NowNanos() + kReplicaLeaseMs * 1000000;
    }
  }

  bool Barred(uint32_t partition, uint64_t server) const {
    const auto it = barred_.find({partition, server});
    return it != barred_.end() && it->second > c_.clock.NowNanos();
  }

  void Check(const v1::ClusterView& before) {
    const v1::ClusterView& after = c_.view();
    const absl::Status sound = CheckConfigurations(after);
    if (!sound.ok()) violations_.push_back(sound.ToString());
    for (uint32_t id = 0; id < kPartitions; ++id) {
      CheckNumbers(before, after, id);
      CheckHeir(before, after, id);
      CheckLost(before, after, id);
      CheckFollowers(before, after, id);
      CheckLearners(before.partitions(id), after.partitions(id));
      CheckRepaired(after.partitions(id));
    }
  }

  // One whose server is forgotten with its content skips an epoch.
  void CheckNumbers(const v1::ClusterView& before, const v1::ClusterView& after, uint32_t id) {
    const v1::Partition& b = before.partitions(id);
    const v1::Partition& a = after.partitions(id);
    const bool moved = b.primary() != a.primary() || b.shard() != a.shard();
    const bool known = a.primary() == 0 || FindServer(a.primary(), before) != nullptr;
    const bool forgotten = moved && known && b.primary() != 0 &&
                           FindServer(b.primary(), after) == nullptr &&
                           !Servers(b.followers()).contains(a.primary());
    if (a.epoch() != b.epoch() + (forgotten ? 2 : moved ? 1 : 0)) Violated(a, "epoch");
    v1::Partition same = a;
    same.set_configuration(b.configuration());
    const bool changed = same.SerializeAsString() != b.SerializeAsString();
    if (changed != (a.configuration() > b.configuration())) Violated(a, "configuration");
  }

  // A new primary was a follower of the former one, or the data are lost, or there were none.
  void CheckHeir(const v1::ClusterView& before, const v1::ClusterView& after, uint32_t id) {
    const v1::Partition& b = before.partitions(id);
    const v1::Partition& a = after.partitions(id);
    if (a.primary() == b.primary() || before.tables().empty()) return;
    if (Servers(b.followers()).contains(a.primary())) return;
    for (const v1::Table& t : after.tables()) {
      if (HasChunkIn(t, id, kPartitions) && !IsLost(after, t.id(), id)) Violated(a, "no heir");
    }
  }

  // Each follower was a follower or a learner before, or there was nothing to copy.
  void CheckFollowers(const v1::ClusterView& before, const v1::ClusterView& after, uint32_t id) {
    if (before.tables().empty()) return;
    const v1::Partition& b = before.partitions(id);
    for (const uint64_t follower : Servers(after.partitions(id).followers())) {
      const bool was =
          Servers(b.followers()).contains(follower) || Servers(b.learners()).contains(follower);
      if (!was) Violated(after.partitions(id), "follower without data");
    }
  }

  void CheckLost(const v1::ClusterView& before, const v1::ClusterView& after, uint32_t id) {
    const v1::Partition& b = before.partitions(id);
    for (const v1::Table& t : after.tables()) {
      if (!IsLost(after, t.id(), id) || IsLost(before, t.id(), id)) continue;
      if (FindServer(b.primary(), after) != nullptr) Violated(b, "lost with its primary there");
      for (const uint64_t follower : Servers(b.followers())) {
        if (FindServer(follower, after) != nullptr) Violated(b, "lost with a follower there");
      }
    }
  }

  bool SameZone(uint64_t a, uint64_t b) const {
    const std::string& zone = FindServer(a, c_.view())->zone();
    return !zone.empty() && zone == FindServer(b, c_.view())->zone();
  }

  // Those that are new: not barred, and in another zone if any other was to be had.
  void CheckLearners(const v1::Partition& b, const v1::Partition& a) {
    for (const v1::Replica& learner : a.learners()) {
      const uint64_t server = learner.server();
      if (Servers(b.learners()).contains(server) && a.epoch() == b.epoch()) continue;
      if (Barred(a.id(), server)) Violated(a, "barred");
      if (!SameZone(a.primary(), server)) continue;
      for (const v1::Server& s : c_.view().servers()) {
        const bool other = s.state() == v1::Server::ALIVE && s.incarnation() != a.primary() &&
                           !Barred(a.id(), s.incarnation()) &&
                           !SameZone(a.primary(), s.incarnation());
        if (other) Violated(a, "in one zone");
      }
    }
  }

  void CheckRepaired(const v1::Partition& a) {
    const bool whole = a.followers_size() + a.learners_size() == 1;
    if (whole || a.primary() == 0) return;
    const bool alive = IsAlive(a.primary(), c_.view());
    for (const v1::Server& s : c_.view().servers()) {
      const bool could = alive && s.state() == v1::Server::ALIVE &&
                         s.incarnation() != a.primary() && !Barred(a.id(), s.incarnation());
      if (could) Violated(a, "not repaired");
    }
  }

  std::mt19937_64 random_;
  FaultyStore store_;
  TestCoordinator c_;
  std::set<std::string> quiet_;
  std::map<std::pair<uint32_t, uint64_t>, int64_t> barred_;
  int step_ = 0;
  std::string did_;
  std::vector<std::string> violations_;
};

TEST_CASE("random histories of a cluster with replicas keep every copy that can be kept") {
  test::ForEachSeed("coordinator_test \"random histories of a cluster with replicas*\"", kSeeds,
                    [](uint64_t seed) { return History(seed).Run(); });
}

}  // namespace
}  // namespace verbena::server
