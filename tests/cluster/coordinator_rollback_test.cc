// An older state of the coordinator under live servers: what they hold is neither lost nor taken
// for something else.
#include <catch2/catch.hpp>
#include <string>

#include "proto/cluster_history.h"
#include "tests/cluster/sim_member.h"

namespace verbena::test {
namespace {

constexpr uint32_t kWorkers = 4;
// Two pushes of 1 by one worker, at rate 1 and the mean over all workers.
constexpr float kTrained = -2.0f / kWorkers;

SimMember Worker(SimCluster* cluster, const std::string& name, uint64_t seed) {
  return SimMember(cluster, name, {.expected_workers = kWorkers, .seed = seed});
}

// What a worker that comes under the older state gets of a new table of its own, and then an older
// one of what it pushed, with the newer state back.
struct Outcome {
  absl::StatusOr<float> new_table = absl::UnknownError("");
  absl::StatusOr<float> old_table = absl::UnknownError("");
};

Outcome RollBack(int tables_since_backup) {
  ClusterOptions options;
  options.servers = 1;
  options.lease_ms = 1000;
  SimCluster cluster(options);
  SimMember one = Worker(&cluster, "one", 1);
  REQUIRE(one.Join().ok());
  REQUIRE(one.Create("a").ok());
  const server::CoordinatorState backup = cluster.store().state();
  cluster.RestartCoordinator();
  uint32_t last = 0;
  for (int i = 0; i < tables_since_backup; ++i) {
    const auto made = one.Create("b" + std::to_string(i));
    REQUIRE(made.ok());
    last = *made;
    REQUIRE(one.Push(last).ok());
    REQUIRE(one.Push(last).ok());
  }
  const server::CoordinatorState newest = cluster.store().state();

  cluster.store().set_state(backup);
  cluster.RestartCoordinator();
  Outcome outcome;
  // At once, before any member has sent a heartbeat.
  SimMember two = Worker(&cluster, "two", 2);
  absl::Status status = two.Join();
  for (int i = 0; i < tables_since_backup && status.ok(); ++i) {
    const absl::StatusOr<uint32_t> made = two.Create("c" + std::to_string(i));
    status = made.status();
    if (made.ok() && i + 1 == tables_since_backup) outcome.new_table = two.Pull(*made);
  }
  if (!status.ok()) outcome.new_table = status;

  cluster.store().set_state(newest);
  cluster.RestartCoordinator();
  SimMember three = Worker(&cluster, "three", 3);
  REQUIRE(three.Join().ok());
  outcome.old_table = three.Pull(last);
  return outcome;
}

TEST_CASE("regression: an older coordinator state serves no table's values under another one") {
  for (const int tables : {1, 3, 12}) {
    INFO(tables << " tables since the backup");
    const Outcome outcome = RollBack(tables);
    INFO(outcome.new_table.status().ToString());
    CHECK_FALSE(outcome.new_table.ok());
    INFO(outcome.old_table.status().ToString());
    REQUIRE(outcome.old_table.ok());
    CHECK(*outcome.old_table == kTrained);
  }
}

TEST_CASE("a coordinator state whose age goes unnoticed is found") {
  history_planted_bugs().one_history = true;
  const Outcome outcome = RollBack(1);
  history_planted_bugs().one_history = false;
  INFO(outcome.new_table.status().ToString());
  REQUIRE(outcome.new_table.ok());
  CHECK(*outcome.new_table == kTrained);  // what was pushed to another table
}

}  // namespace
}  // namespace verbena::test
