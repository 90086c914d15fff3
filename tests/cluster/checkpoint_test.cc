// Checkpoints are whole, and come back, whatever fails meanwhile (checkpoint_scenario.h).
// Seeds: seeds.h.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "shard/planted_bugs.h"
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
    t.saved += r.saved, t.saves_failed += r.saves_failed, t.savers_died += r.savers_died;
    t.checked += r.checked, t.uneven += r.uneven, t.restored += r.restored,
        t.restores_failed += r.restores_failed;
    t.restorers_died += r.restorers_died, t.pulls += r.pulls;
    t.restored_pulls += r.restored_pulls, t.servers_died += r.servers_died;
    t.disk_crashed += r.disk_crashed, t.unanswered += r.unanswered, t.expired += r.expired;
    return r.violations;
  });
  std::printf(
      "%d saved, %d not, %d savers died, %d checkpoints checked, %d uneven; %d restored, %d not, "
      "%d restorers "
      "died; %d pulls, %d first ones of what was restored; %d servers and %d disks crashed, %d "
      "calls "
      "unanswered, %d runs cut short\n",
      t.saved, t.saves_failed, t.savers_died, t.checked, t.uneven, t.restored, t.restores_failed,
      t.restorers_died, t.pulls, t.restored_pulls, t.servers_died, t.disk_crashed, t.unanswered,
      t.expired);
  return t;
}

TEST_CASE("checkpoints without faults: no call fails for a save") {
  CheckpointOptions options;
  options.faults = false;
  const CheckpointResult totals =
      RunSeeds("checkpoints without faults: no call fails for a save", options, 8);
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
  CHECK(totals.saves_failed > 0);
  CHECK(totals.savers_died > 0);
  CHECK(totals.restored > 0);
  CHECK(totals.restorers_died > 0);
  CHECK(totals.restored_pulls > 0);
  CHECK(totals.servers_died > 0);
  CHECK(totals.disk_crashed > 0);
}

// What the first of `count` seeds finds that finds something.
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

TEST_CASE("planted bug: commit a checkpoint whose files are not synced") {
  CheckpointOptions options;
  options.syncs = false;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

TEST_CASE("planted bug: an apply keeps nothing for a save") {
  Planted bug(&shard::PlantedBugs::save_what_changes);
  CheckpointOptions options;
  options.faults = false;
  CHECK_THAT(FirstFinding(options, 20), Catch::Contains("checkpoint-"));
}

}  // namespace
}  // namespace verbena::test
