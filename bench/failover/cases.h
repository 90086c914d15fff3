// The measurements of failover/, a function each.
#ifndef VERBENA_BENCH_FAILOVER_CASES_H_
#define VERBENA_BENCH_FAILOVER_CASES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "bench/cluster.h"
#include "bench/report.h"

namespace verbena::bench {

inline constexpr char kFailover[] = "failover";

struct FailoverSettings {
  std::string verbenad;
  Wire wire;
  int kills = 20;
  int lease_ms = 1000;
  int repeats = 7;
  uint64_t seed = 1;
  uint64_t learner_mib = 256;  // of the table that is copied to a learner
};

// From SIGKILL of a server to pushes to its partitions that are acknowledged again.
absl::Status MeasureKills(const FailoverSettings& settings, Report* report);
// The cost of pushes with two replicas, beside one.
absl::Status MeasureCopies(const FailoverSettings& settings, Report* report);
// The share of a worker's throughput that is left while a server catches up.
absl::Status MeasureLearner(const FailoverSettings& settings, Report* report);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_FAILOVER_CASES_H_
