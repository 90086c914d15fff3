// Coordinators that are killed at random under training; and a campaign of all failures of
// coordinators and etcd, which tests/faults/coordinators.sh runs.
#include "tests/faults/coordinator_kills.h"

#include <signal.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace verbena::test {
namespace {

uint64_t Number(const char* variable, uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

void Print(const std::string& line) { std::cout << line << std::endl; }

TEST_CASE("coordinators are killed at random: no call fails, no lease ends, nothing is lost") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  World world({.servers = 2, .lease_s = 2});
  CoordinatorKills kills(&world, seed);
  for (int i = 0; i < 4; ++i) kills.Kill();
  kills.KillLeader();
  const std::string counts = world.Check();
  WARN(kills.Report() << "; " << counts);
}

// The campaign: every failure by name, in one cluster that trains all the while.
class Campaign {
 public:
  explicit Campaign(uint64_t seed)
      : world_({.member_options = {"--quota-backend-bytes", absl::StrCat(kQuota)}}),
        kills_(&world_, seed) {}

  void KillEtcdLeader() {
    const int leader = EtcdLeader();
    world_.cluster.KillMember(leader);
    REQUIRE(world_.cluster.WaitEtcdLeader(leader) >= 0);
    Goes("the leader of etcd was killed");
    StartMember(leader);
  }

  void StopEtcdLeader(absl::Duration time) {
    const int leader = EtcdLeader();
    world_.cluster.member(leader).Signal(SIGSTOP);
    const absl::Time end = absl::Now() + time;
    // It goes on long before the member does.
    while (absl::Now() < end) world_.Goes("the leader of etcd was stopped");
    world_.cluster.member(leader).Signal(SIGCONT);
    Goes("the leader of etcd was stopped, and runs on");
  }

  void KillEtcdFollower() {
    const int follower = (EtcdLeader() + 1) % 3;
    world_.cluster.KillMember(follower);
    Goes("a follower of etcd was killed");
    StartMember(follower);
  }

  void LoseQuorum(absl::Duration time) {
    EtcdLeader();
    for (const int member : {0, 1}) world_.cluster.KillMember(member);
    const absl::Time end = absl::Now() + time;
    while (absl::Now() < end) world_.Flows("without a quorum of etcd");
    for (const int member : {0, 1}) StartMember(member);
    Goes("the quorum of etcd was lost and is back");
  }

  void Compact() {
    const std::string status =
        world_.cluster.Etcdctl({"endpoint", "status", "--write-out", "json"});
    world_.cluster.Etcdctl({"compaction", "--physical", JsonFields(status, "revision").at(0)});
    kills_.KillLeader();
    Goes("a compaction, and a leader that reads the state after it");
  }

  void FillSpace() {
    TemporaryDirectory directory;
    WriteFile(directory.File("value"), std::string(1 << 20, 'v'));
    const std::string put = absl::StrCat(
        "for i in $(seq ", 2 * kQuota >> 20, "); do etcdctl --endpoints ", world_.cluster.etcd(),
        " put /other/$i < ", directory.File("value"), " || exit 1; done");
    const Finished full = RunProgram({"/usr/bin/env", "ETCDCTL_API=3", "/bin/sh", "-c", put});
    REQUIRE_THAT(full.err, Catch::Matchers::Contains("database space exceeded"));
    world_.Flows("without space in etcd");
    world_.cluster.Etcdctl({"del", "--prefix", "/other/"});
    const std::string status =
        world_.cluster.Etcdctl({"endpoint", "status", "--write-out", "json"});
    world_.cluster.Etcdctl({"compaction", "--physical", JsonFields(status, "revision").at(0)});
    world_.cluster.Etcdctl({"defrag"});
    world_.cluster.Etcdctl({"alarm", "disarm"});
    Goes("etcd was full");
  }

  void KillCoordinators(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) kills_.Kill();
    Print(absl::StrCat(count, " coordinators were killed at random"));
  }

  void Check() {
    const std::string counts = world_.Check();
    Print(kills_.Report());
    Print(absl::StrCat("bound of p99: ", Bound(), " s (etcd's lease and half a second)"));
    Print(counts);
    CHECK(kills_.p99() <= Bound());
  }

 private:
  static constexpr int kQuota = 64 << 20;

  static double Bound() { return EtcdClusterOptions().lease_s + 0.5; }

  int EtcdLeader() {
    const int leader = world_.cluster.WaitEtcdLeader();
    REQUIRE(leader >= 0);
    return leader;
  }

  void StartMember(int member) {
    world_.cluster.StartMember(member);
    REQUIRE(Eventually([&] { return world_.cluster.EtcdAnswers(member); }));
  }

  void Goes(const char* after) {
    world_.Goes(after);
    Print(after);
  }

  World world_;
  CoordinatorKills kills_;
};

// Hidden, since it asserts a time: tests/faults/coordinators.sh.
TEST_CASE("all failures of coordinators and etcd, and the time of a leader's change",
          "[.campaign]") {
  const uint64_t seed = Number("VERBENA_SEED", std::random_device()());
  Print(absl::StrCat("seed ", seed));
  Campaign campaign(seed);
  campaign.KillEtcdLeader();
  campaign.StopEtcdLeader(absl::Seconds(30));
  campaign.KillEtcdFollower();
  campaign.LoseQuorum(absl::Seconds(10));
  campaign.Compact();
  campaign.FillSpace();
  campaign.KillCoordinators(Number("VERBENA_COORDINATOR_KILLS", 50));
  campaign.Check();
}

}  // namespace
}  // namespace verbena::test
