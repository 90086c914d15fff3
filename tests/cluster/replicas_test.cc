// Training goes on with the replicas when servers die, stall and are cut off.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "tests/cluster/scenario_runs.h"

namespace verbena::test {
namespace {

ScenarioOptions ReplicaOptions(v1::Consistency consistency, uint32_t keys) {
  ScenarioOptions options;
  options.replicas = 2;
  options.consistency = consistency;
  options.staleness = consistency == v1::CONSISTENCY_SSP ? 2 : 0;
  options.keys = keys;
  options.steps = 20;
  options.step_ns = 400 * kMilli;
  return options;
}

// Servers die, stall and are cut off, and training goes on with their partitions' copies. 2,000
// seeds in all.
TEST_CASE("training on replicas under faults") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const uint32_t keys = GENERATE(0u, 60u);
  ScenarioOptions options = ReplicaOptions(consistency, keys);
  options.tight_log = true;
  const Totals totals = RunSeeds("training on replicas under faults", options, 335);
  // Fewer, as under a sanitizer, need not see each kind of fault.
  const Seeds seeds = SeedsToRun(335);
  if (!seeds.replay && seeds.last >= 40) {
    CHECK(totals.servers_killed > 0);
    CHECK(totals.servers_stalled > 0);
    CHECK(totals.outlived > 0);
  }
}

// The server that dies had not heard of a worker that the next one knows: no joiner, which starts
// where the others are, but one that is expected, whose steps count from the first.
TEST_CASE(
    "regression: ssp counts a worker that only the next primary has heard of from its start") {
  for (const auto& [seed, keys] : {std::pair(1135u, 0u), std::pair(1830u, 60u)}) {
    ScenarioOptions options = ReplicaOptions(v1::CONSISTENCY_SSP, keys);
    options.seed = seed;
    options.push_pulls = 0;  // as when they were found
    CHECK(RunScenario(options).violations == std::vector<std::string>{});
  }
}

TEST_CASE("failpoint: acknowledge a push before its copy has it") {
  Planted failpoint(&shard::failpoints().acknowledge_early);
  CHECK_FALSE(FirstFinding(ReplicaOptions(v1::CONSISTENCY_ASYNC, 0), 100).empty());
}

TEST_CASE("failpoint: take requests of any epoch") {
  Planted failpoint(&shard::failpoints().ignore_epoch);
  CHECK_FALSE(FirstFinding(ReplicaOptions(v1::CONSISTENCY_ASYNC, 0), 100).empty());
}

// The old primary wakes with a pull in its inbox, and answers it with values that lack pushes to
// the new primary.
TEST_CASE("failpoint: answer pulls without a lease") {
  Planted failpoint(&shard::failpoints().read_without_lease);
  CHECK_THAT(FirstFinding(ReplicaOptions(v1::CONSISTENCY_ASYNC, 0), 300),
             Catch::Contains("had been acknowledged"));
}

}  // namespace
}  // namespace verbena::test
