// An older state of the coordinator under live servers: their tables are neither lost nor mistaken
// for other tables.
#include <catch2/catch.hpp>
#include <string>

#include "proto/control/cluster_history.h"
#include "proto/control/failpoints.h"
#include "server/coordinator/failpoints.h"
#include "tests/cluster/sim_member.h"

namespace verbena::test {
namespace {

constexpr uint32_t kWorkers = 4;
// Two pushes of 1 by one worker, at rate 1 and the mean over all workers.
constexpr float kTrained = -2.0f / kWorkers;

SimMember Worker(SimCluster* cluster, const std::string& name, uint64_t seed) {
  return SimMember(cluster, name, {.expected_workers = kWorkers, .seed = seed});
}

// `new_table`: pulled by a worker that joins under the older state, from a new table of its own.
// `old_table`: pulled from a table with earlier pushes when the newer state is back.
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

// Members that joined an older state while no server could be heard, with the newer one back. Each
// start of the older one is a revision of it: it may have more of them than the newer one.
void JoinOlderState(int starts) {
  ClusterOptions options;
  options.servers = 1;
  options.lease_ms = 1000;
  SimCluster cluster(options);
  SimMember one = Worker(&cluster, "one", 1);
  REQUIRE(one.Join().ok());
  const auto table = one.Create("a");
  REQUIRE(table.ok());
  const server::CoordinatorState backup = cluster.store().state();
  cluster.RestartCoordinator();
  REQUIRE(one.Push(*table).ok());
  REQUIRE(one.Push(*table).ok());
  // In the newer state an observer and a worker have the numbers that come next.
  SimMember reads(&cluster, "reads", {.observer = true, .seed = 2});
  REQUIRE(reads.Join().ok());
  SimMember two = Worker(&cluster, "two", 3);
  REQUIRE(two.Join().ok());
  const server::CoordinatorState newest = cluster.store().state();

  cluster.control().Cut("server-0", "coordinator", true);
  cluster.store().set_state(backup);
  for (int i = 0; i < starts; ++i) cluster.RestartCoordinator();
  SimMember stray = Worker(&cluster, "stray", 4);
  SimMember stray_reads(&cluster, "stray reads", {.observer = true, .seed = 5});
  REQUIRE(stray.Join().ok());  // after a lease
  REQUIRE(stray_reads.Join().ok());
  REQUIRE(stray.Open("a").ok());
  REQUIRE(stray_reads.Open("a").ok());

  cluster.control().Cut("server-0", "coordinator", false);
  cluster.store().set_state(newest);
  cluster.RestartCoordinator();
  // A call that is in progress is ABORTED, a later one refused: connect again.
  const absl::Status pushed = stray.Push(*table);
  const absl::Status pulled = stray_reads.Pull(*table).status();
  INFO(pushed.ToString() << "; " << pulled.ToString());
  CHECK(absl::IsAborted(pushed));
  CHECK((absl::IsAborted(pulled) || absl::IsFailedPrecondition(pulled)));
  SimMember again(&cluster, "again", {.observer = true, .seed = 6});
  REQUIRE(again.Join().ok());
  const absl::StatusOr<float> read = again.Pull(*table);
  INFO(read.status().ToString());
  REQUIRE(read.ok());
  CHECK(*read == kTrained);
}

TEST_CASE("regression: members that joined an older state end, and are taken for no others") {
  JoinOlderState(GENERATE(1, 20));
}

TEST_CASE("a coordinator state whose age goes unnoticed is found") {
  history::failpoints().one_history = true;
  server::failpoints().reuse_ids = true;
  const Outcome outcome = RollBack(1);
  history::failpoints().one_history = false;
  server::failpoints().reuse_ids = false;
  INFO(outcome.new_table.status().ToString());
  REQUIRE(outcome.new_table.ok());
  CHECK(*outcome.new_table == kTrained);  // the values of another table
}

}  // namespace
}  // namespace verbena::test
