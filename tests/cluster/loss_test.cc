// Partitions whose only copy is lost are reported as lost, and no others are (loss_scenario.h).
// Seeds: seeds.h.
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/cluster/loss_scenario.h"
#include "tests/cluster/seeds.h"

namespace verbena::test {
namespace {

TEST_CASE("servers that die with the only copies, under faults") {
  LossResult totals;
  ForEachSeed("cluster_test 'servers that die*'", 300, [&](uint64_t seed) {
    LossOptions options;
    options.seed = seed;
    const LossResult result = RunLossScenario(options);
    totals.crashed += result.crashed;
    totals.lost += result.lost;
    totals.checked += result.checked;
    totals.unavailable += result.unavailable;
    return result.violations;
  });
  std::printf("%d servers died, %d tables were lost, %d pulls checked, %d calls unanswered\n",
              totals.crashed, totals.lost, totals.checked, totals.unavailable);
  if (SeedsToRun(1).replay) return;
  CHECK(totals.crashed > 0);
  CHECK(totals.lost > 0);
  CHECK(totals.checked > 0);
  CHECK(totals.unavailable > 0);
}

}  // namespace
}  // namespace verbena::test
