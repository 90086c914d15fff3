// Scenarios run with many seeds, and failpoints that they find.
#ifndef VERBENA_TESTS_CLUSTER_SCENARIO_RUNS_H_
#define VERBENA_TESTS_CLUSTER_SCENARIO_RUNS_H_

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/base/failpoint.h"
#include "rdma/sim/sim_network.h"
#include "tests/cluster/scenario.h"
#include "tests/cluster/seeds.h"

namespace verbena::test {

// Sums over all seeds of a test.
struct Totals {
  uint64_t commits = 0, crashed = 0, stalled = 0, hung = 0, partitioned = 0, resumed = 0;
  uint64_t joined = 0, admitted = 0, left = 0;
  uint64_t rails_cut = 0, rails_stalled = 0, rail_moves = 0;
  uint64_t servers_killed = 0, servers_stalled = 0, outlived = 0;
};

inline Totals RunSeeds(const char* name, ScenarioOptions options, uint64_t count) {
  Totals totals;
  ForEachSeed(absl::StrCat(program_invocation_short_name, " '", name, "'"), count,
              [&](uint64_t seed) {
                options.seed = seed;
                const ScenarioResult result = RunScenario(options);
                totals.commits += result.commits;
                totals.crashed += result.crashed;
                totals.stalled += result.stalled;
                totals.hung += result.hung;
                totals.partitioned += result.partitioned;
                totals.joined += result.joined;
                totals.admitted += result.admitted;
                totals.left += result.left;
                totals.resumed += result.resumed_operations;
                totals.servers_killed += result.servers_killed;
                totals.servers_stalled += result.servers_stalled;
                totals.outlived += result.outlived;
                totals.rails_cut += result.rails_cut;
                totals.rails_stalled += result.rails_stalled;
                totals.rail_moves += result.rail_moves;
                return result.violations;
              });
  return totals;
}

// The first violation that `count` seeds find; empty: they find none. Options that make the
// necessary events frequent find it in a few seeds, also after a change of the scenario that
// changes its random numbers.
inline std::string FirstFinding(ScenarioOptions options, uint64_t count) {
  for (uint64_t seed = 1; seed <= count; ++seed) {
    options.seed = seed;
    const ScenarioResult result = RunScenario(options);
    if (result.violations.empty()) continue;
    std::fprintf(stderr, "found by seed %llu: %s\n", static_cast<unsigned long long>(seed),
                 result.violations.front().c_str());
    return result.violations.front();
  }
  return "";
}

// Switches a failpoint on for one scope.
struct Planted {
  explicit Planted(Failpoint* which) : which_(which) { *which_ = true; }
  ~Planted() { *which_ = false; }
  Failpoint* which_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SCENARIO_RUNS_H_
