// Checkpoints are whole, and come back, whatever fails meanwhile (checkpoint_scenario.h).
// Seeds: seeds.h.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "server/checkpoint/files/failpoints.h"
#include "server/coordinator/failpoints.h"
#include "shard/failpoints.h"
#include "tests/cluster/checkpoint_scenario.h"
#include "tests/cluster/scenario_runs.h"
#include "tests/cluster/seeds.h"

namespace verbena::test {
namespace {

CheckpointResult RunSeeds(const char* name, CheckpointOptions options, uint64_t count) {
  CheckpointResult t;
  ForEachSeed(std::string("cluster_checkpoint_test '") + name + "'", count, [&](uint64_t seed) {
    options.seed = seed;
    options.replicas = 1 + static_cast<uint32_t>(seed % 2);
    const CheckpointResult r = RunCheckpointScenario(options);
    t.saved += r.saved, t.checkpoints_failed += r.checkpoints_failed,
        t.checkpoint_tasks_died += r.checkpoint_tasks_died;
    t.increments += r.increments, t.compacted += r.compacted;
    t.compactions_failed += r.compactions_failed, t.pruned += r.pruned;
    t.checked += r.checked, t.uneven += r.uneven, t.restored += r.restored,
        t.restores_failed += r.restores_failed;
    t.restorers_died += r.restorers_died, t.pulls += r.pulls;
    t.restored_pulls += r.restored_pulls, t.servers_died += r.servers_died;
    t.disk_crashed += r.disk_crashed, t.unanswered += r.unanswered, t.expired += r.expired;
    return r.violations;
  });
  std::printf(
      "%d saved, %d not, %d checkpoint_tasks died, %d checkpoints checked, %d uneven, %d of "
      "changed rows; %d "
      "compacted, %d not, %d removed; %d restored, %d not, "
      "%d restorers "
      "died; %d pulls, %d first ones of what was restored; %d servers and %d disks crashed, %d "
      "calls "
      "unanswered, %d runs cut short\n",
      t.saved, t.checkpoints_failed, t.checkpoint_tasks_died, t.checked, t.uneven, t.increments,
      t.compacted, t.compactions_failed, t.pruned, t.restored, t.restores_failed, t.restorers_died,
      t.pulls, t.restored_pulls, t.servers_died, t.disk_crashed, t.unanswered, t.expired);
  return t;
}

TEST_CASE("checkpoints without faults: no call fails for a save") {
  CheckpointOptions options;
  options.faults = false;
  const CheckpointResult totals =
      RunSeeds("checkpoints without faults: no call fails for a save", options, 4);
  CHECK(totals.saved > 0);
  CHECK(totals.unanswered == 0);
  CHECK(totals.uneven == 0);
}

// Every other seed has copies.
TEST_CASE("checkpoints under faults") {
  const CheckpointResult totals = RunSeeds("checkpoints under faults", {}, 40);
  if (SeedsToRun(1).replay) return;
  CHECK(totals.uneven * 20 <= totals.checked);
  CHECK(totals.saved > 0);
  CHECK(totals.checkpoints_failed > 0);
  CHECK(totals.checkpoint_tasks_died > 0);
  CHECK(totals.restored > 0);
  CHECK(totals.restorers_died > 0);
  CHECK(totals.restored_pulls > 0);
  CHECK(totals.servers_died > 0);
  CHECK(totals.disk_crashed > 0);
}

TEST_CASE("incremental checkpoints without faults: no call fails for a save") {
  CheckpointOptions options;
  options.faults = false;
  options.increments = true;
  const CheckpointResult totals =
      RunSeeds("incremental checkpoints without faults: no call fails for a save", options, 4);
  CHECK(totals.increments > 0);
  CHECK(totals.compacted > 0);
  CHECK(totals.unanswered == 0);
}

// Chains, their compaction, and the removal of old checkpoints.
TEST_CASE("incremental checkpoints under faults") {
  CheckpointOptions options;
  options.increments = true;
  const CheckpointResult totals = RunSeeds("incremental checkpoints under faults", options, 30);
  if (SeedsToRun(1).replay) return;
  CHECK(totals.increments > 0);
  CHECK(totals.compacted > 0);
  CHECK(totals.compactions_failed > 0);
  CHECK(totals.pruned > 0);
  CHECK(totals.checkpoints_failed > 0);
  CHECK(totals.checkpoint_tasks_died > 0);
  CHECK(totals.restored > 0);
  CHECK(totals.servers_died > 0);
  CHECK(totals.disk_crashed > 0);
}

// The first violation that `count` seeds find; empty: they find none.
std::string FirstFinding(CheckpointOptions options, uint64_t count) {
  for (options.seed = 1; options.seed <= count; ++options.seed) {
    const CheckpointResult result = RunCheckpointScenario(options);
    if (result.violations.empty()) continue;
    std::fprintf(stderr, "found by seed %llu: %s\n", static_cast<unsigned long long>(options.seed),
                 result.violations.front().c_str());
    return result.violations.front();
  }
  return "";
}

TEST_CASE("failpoint: commit a checkpoint whose files are not synced") {
  CheckpointOptions options;
  options.syncs = false;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

TEST_CASE("failpoint: a restore that fails drops the table that has the name") {
  Planted failpoint(&server::failpoints().drop_by_name);
  CHECK_THAT(FirstFinding({}, 40), Catch::Contains("none has taken its place"));
}

TEST_CASE("failpoint: a table is dropped before its replacement is loaded") {
  Planted failpoint(&server::failpoints().replace_at_once);
  CHECK_THAT(FirstFinding({}, 20), Catch::Contains("none has taken its place"));
}

TEST_CASE("failpoint: an apply keeps nothing for a save") {
  Planted failpoint(&shard::failpoints().checkpoint_what_changes);
  CheckpointOptions options;
  options.faults = false;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

// The chain lacks the changes that were made while the base of the increment was written.
TEST_CASE("failpoint: an increment forgets changes that were made during the save of its base") {
  Planted failpoint(&shard::failpoints().forget_changed_rows);
  CheckpointOptions options;
  options.faults = false;
  options.increments = true;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

TEST_CASE("failpoint: compaction leaves out the content of increments") {
  Planted failpoint(&checkpoint::failpoints().compact_oldest);
  CheckpointOptions options;
  options.faults = false;
  options.increments = true;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

TEST_CASE("failpoint: the base of a kept checkpoint is removed") {
  Planted failpoint(&checkpoint::failpoints().prune_bases);
  CheckpointOptions options;
  options.faults = false;
  options.increments = true;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

}  // namespace
}  // namespace verbena::test
