// The coordinator's view of a cluster that a benchmark runs, and waiting for a state of it.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_BENCH_CLUSTER_VIEW_H_
#define VERBENA_BENCH_CLUSTER_VIEW_H_

#include <chrono>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::bench {

using std::chrono::steady_clock;

double MillisecondsSince(steady_clock::time_point start);

absl::StatusOr<v1::ClusterView> ViewOf(const Cluster& cluster);
// Waits until all servers are alive and all partitions have their copies, none of them a learner.
// DEADLINE_EXCEEDED after `seconds`.
absl::Status AwaitCopies(const Cluster& cluster, int seconds = 60);
// Waits until each partition has a primary that is alive.
absl::Status AwaitPrimaries(const Cluster& cluster, int seconds = 60);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CLUSTER_VIEW_H_
