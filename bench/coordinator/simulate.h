// The report of a simulated cluster's failures.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_COORDINATOR_SIMULATE_H_
#define VERBENA_BENCH_COORDINATOR_SIMULATE_H_

#include <vector>

#include "absl/status/status.h"
#include "bench/coordinator/crowd.h"
#include "bench/coordinator/simulation.h"
#include "bench/report.h"

namespace verbena::bench {

// Measures the costs of a cluster of the crowd's size, unless `costs` has them (in the order of
// Costs), and prints how long it takes to converge after each failure. The same seed and costs give
// the same output. The limit of a row is the time that the leases alone take.
absl::Status Simulate(const CrowdOptions& crowd, const std::vector<double>& costs,
                      SimulationOptions options, Report* report);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_SIMULATE_H_
