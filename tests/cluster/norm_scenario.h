// Training with norms over several tables under faults in the simulator: pulled values equal the
// single-process reference bit for bit, and the job goes on whichever workers come and go.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_NORM_SCENARIO_H_
#define VERBENA_TESTS_CLUSTER_NORM_SCENARIO_H_

#include <string>
#include <vector>

#include "tests/cluster/sim_cluster.h"

namespace verbena::test {

struct NormOptions {
  uint64_t seed = 1;
  bool faults = true;
  int workers = 3;
  int steps = 5;
  int servers = 2;
  bool elastic = false;  // an elastic job: workers come later, and more of them leave or are killed
  bool norms = true;     // false: plain tables, each step in one phase
  bool run_ahead = false;  // some steps begin before the one before them was seen committed
};

struct NormResult {
  std::vector<std::string> violations;
  int commits = 0, checked = 0;  // commits of chunks; pulls compared with the reference
  int joined = 0, admitted = 0;  // workers that came later; those that joined the run
  int crashed = 0, left = 0, stalled = 0, resumed = 0;
};

NormResult RunNormScenario(const NormOptions& options);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_NORM_SCENARIO_H_
