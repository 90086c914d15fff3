// What is lost with its only copy is said to be lost, and nothing else is (loss_scenario.h).
//
// VERBENA_SEEDS=N runs N seeds, VERBENA_SEEDS_AT_MOST=N no more than N; VERBENA_SEED=S replays one.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>

#include "tests/cluster/loss_scenario.h"
#include "tests/cluster/seeds.h"

namespace verbena::test {
namespace {

TEST_CASE("servers that die with the only copies, under faults") {
  const Seeds seeds = SeedsToRun(300);
  LossResult totals;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    LossOptions options;
    options.seed = seed;
    const LossResult result = RunLossScenario(options);
    for (const std::string& violation : result.violations) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed),
                   violation.c_str());
    }
    if (!result.violations.empty()) FAIL("replay: VERBENA_SEED=" << seed << " ./cluster_test");
    totals.crashed += result.crashed;
    totals.lost += result.lost;
    totals.checked += result.checked;
    totals.unavailable += result.unavailable;
  }
  std::printf("%d servers died, %d tables were lost, %d pulls checked, %d calls unanswered\n",
              totals.crashed, totals.lost, totals.checked, totals.unavailable);
  if (seeds.replay) return;
  CHECK(totals.crashed > 0);
  CHECK(totals.lost > 0);
  CHECK(totals.checked > 0);
  CHECK(totals.unavailable > 0);
}

}  // namespace
}  // namespace verbena::test
