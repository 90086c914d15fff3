// Random clusters with random tables, clients, operator's calls and faults (swarm.h). Seeds:
// seeds.h.
#include "tests/cluster/swarm.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/cluster/seeds.h"
#include "tests/cluster/swarm_plan.h"

namespace verbena::test {
namespace {

TEST_CASE("swarm: random clusters, tables and clients under faults") {
  SwarmResult totals;
  ForEachSeed("cluster_swarm_test 'swarm: random*'", 200, [&](uint64_t seed) {
    const SwarmResult result = RunSwarm(seed);
    if (!result.violations.empty() || SeedsToRun(1).replay) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
                   result.plan.c_str());
    }
    totals.pushes += result.pushes, totals.pulls += result.pulls;
    totals.follower_pulls += result.follower_pulls;
    totals.compared += result.compared, totals.steps += result.steps;
    totals.created += result.created, totals.dropped += result.dropped;
    totals.reset += result.reset;
    totals.saved += result.saved, totals.compacted += result.compacted;
    totals.pruned += result.pruned, totals.restored += result.restored;
    totals.checkpoints += result.checkpoints;
    totals.restored_partitions += result.restored_partitions;
    totals.servers_crashed += result.servers_crashed;
    totals.servers_stalled += result.servers_stalled;
    totals.workers_crashed += result.workers_crashed;
    totals.coordinator_stalled += result.coordinator_stalled;
    return result.violations;
  });
  std::printf(
      "%llu pushes, %llu pulls, %llu steps, %llu replicas compared; tables: %d created, %d "
      "dropped, %d "
      "resets; %d servers and %d workers crashed, %d servers and %d coordinators stalled\n",
      static_cast<unsigned long long>(totals.pushes), static_cast<unsigned long long>(totals.pulls),
      static_cast<unsigned long long>(totals.steps),
      static_cast<unsigned long long>(totals.compared), totals.created, totals.dropped,
      totals.reset, totals.servers_crashed, totals.workers_crashed, totals.servers_stalled,
      totals.coordinator_stalled);
  std::printf(
      "%llu chunks read from followers; %d saves, %d compactions, %d checkpoints removed, %d "
      "restores; %d checkpoints and %d restored partitions compared\n",
      static_cast<unsigned long long>(totals.follower_pulls), totals.saved, totals.compacted,
      totals.pruned, totals.restored, totals.checkpoints, totals.restored_partitions);
  if (SeedsToRun(1).replay) return;
  CHECK(totals.pushes > 0);
  CHECK(totals.pulls > 0);
  CHECK(totals.steps > 0);
  CHECK(totals.compared > 0);
  CHECK(totals.dropped > 0);
  CHECK(totals.reset > 0);
  CHECK(totals.servers_crashed > 0);
  CHECK(totals.saved > 0);
  CHECK(totals.checkpoints > 0);
}

TEST_CASE("swarm: where observers read from any replica, followers answer many of the chunks") {
  uint64_t chunks = 0, plans = 0;
  // Some have embedding tables alone, or hardly ever a follower.
  for (uint64_t seed = 1; plans < 4; ++seed) {
    if (!DrawPlan(seed).has(SwarmFeature::kReadFollowers)) continue;
    ++plans;
    const SwarmResult result = RunSwarm(seed);
    CAPTURE(seed, result.plan);
    CHECK(result.violations == std::vector<std::string>());
    chunks += result.follower_pulls;
  }
  CHECK(chunks > 100);
}

}  // namespace
}  // namespace verbena::test
