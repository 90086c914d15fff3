// Steps in two phases survive faults: global-norm clipping and LAMB over many seeds.
// Seeds: seeds.h.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/cluster/norm_scenario.h"
#include "tests/cluster/seeds.h"

namespace verbena::test {
namespace {

NormResult RunSeeds(const std::string& name, NormOptions options, uint64_t count) {
  NormResult totals;
  ForEachSeed("cluster_norm_test '" + name + "'", count, [&](uint64_t seed) {
    options.seed = seed;
    const NormResult result = RunNormScenario(options);
    totals.commits += result.commits;
    totals.checked += result.checked;
    totals.admitted += result.admitted;
    totals.crashed += result.crashed;
    totals.left += result.left;
    totals.stalled += result.stalled;
    totals.resumed += result.resumed;
    return result.violations;
  });
  return totals;
}

TEST_CASE("steps in two phases give the reference's bits on 1, 2 and 5 servers") {
  NormOptions options;
  options.faults = false;
  for (const int servers : {1, 2, 5}) {
    options.servers = servers;
    const NormResult totals = RunSeeds(
        "steps in two phases give the reference's bits on 1, 2 and 5 servers", options, 10);
    CHECK(totals.checked > 0);
  }
}

TEST_CASE("steps in two phases under faults") {
  const NormResult totals = RunSeeds("steps in two phases under faults", NormOptions(), 400);
  CHECK(totals.checked > 0);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.left > 0);
    CHECK(totals.stalled > 0);
    CHECK(totals.resumed > 0);
  }
  std::printf("%d commits, %d pulls checked, %d crashed, %d left, %d stalled, %d pulled again\n",
              totals.commits, totals.checked, totals.crashed, totals.left, totals.stalled,
              totals.resumed);
}

TEST_CASE("steps in two phases under faults, with workers that join a run") {
  NormOptions options;
  options.elastic = true;
  options.steps = 20;
  const NormResult totals =
      RunSeeds("steps in two phases under faults, with workers that join a run", options, 300);
  CHECK(totals.checked > 0);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.admitted > 0);
    CHECK(totals.crashed > 0);
    CHECK(totals.left > 0);
  }
}

// Slots filled with contributions to a later step, which other workers can make only after this
// one, and operations filled with pulls of it, once kept the earlier step from ending.
TEST_CASE("regression: workers that begin a step before they have seen the last one end") {
  NormOptions options;
  options.run_ahead = true;
  options.norms = GENERATE(false, true);
  const NormResult totals = RunSeeds(
      "regression: workers that begin a step before they have seen the last one end", options, 150);
  CHECK(totals.checked > 0);
}

}  // namespace
}  // namespace verbena::test
