// Prometheus metrics of this process, for operators.
//
// **Thread safety**: pure functions over copies; the caller gathers.
#ifndef VERBENA_SERVER_METRICS_METRICS_H_
#define VERBENA_SERVER_METRICS_METRICS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rdma/memory/statistics.h"
#include "server/access/budget.h"
#include "server/coordinator/move_results.h"
#include "server/executor/shard_executor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

struct ShardMetrics {
  std::optional<ShardSnapshot> snapshot;  // empty: the shard did not answer
  double cpu_seconds = 0;
  uint64_t sleeps = 0;
  uint64_t spins = 0;
  uint64_t fruitless_spins = 0;
};

struct CoordinatorMetrics {
  uint64_t revision = 0;
  uint64_t term = 0;
  uint64_t servers_alive = 0;
  uint64_t servers_silent = 0;
  uint64_t workers = 0;
  uint64_t jobs = 0;
  uint64_t tables = 0;
  uint64_t lost_partitions = 0;      // of all tables
  uint64_t checkpoint_failures = 0;  // of the state
  bool checkpoint_failing = false;   // the last one
  uint64_t partitions_moving = 0;
  uint64_t partitions_refused = 0;  // that want a replica for which a server had no memory
  MoveCounters moves = {};          // planned moves that have ended
};
CoordinatorMetrics Summarise(const v1::ClusterView& view);

// Metrics of a coordinator that is elected, or not.
struct ElectionMetrics {
  bool leads = false;
  uint64_t elected = 0;
  uint64_t etcd_failures = 0;
};

// Metrics of a coordinator that writes periodic checkpoints.
struct CheckpointMetrics {
  uint64_t saved = 0, failed = 0;
  // Age of the last checkpoint; none: there was none yet.
  std::optional<double> age_seconds;
  double duration_seconds = 0;
  uint64_t bytes = 0;
};

struct NodeMetrics {
  std::string name;
  std::string version;
  uint64_t incarnation = 0;
  std::optional<bool> joined;  // empty: this process has no shards, so it never joins
  rdma::MemoryStatistics memory;
  uint64_t log_lines_left_out = 0, audit_lines_left_out = 0;
  std::array<uint64_t, kBudgetNames.size()> exceeded = {};  // by Budget
  uint64_t control_connections = 0;
  uint64_t memory_limit = 0;     // 0: this process has no shards
  uint64_t memory_reserved = 0;  // of it
  std::vector<ShardMetrics> shards;
  std::optional<CoordinatorMetrics> coordinator;
  std::optional<ElectionMetrics> election;  // empty: no coordinator of several
  std::optional<CheckpointMetrics> checkpoints;
  std::optional<double> imbalance;  // of a coordinator with --rebalance
  double imbalance_of_primaries = 0;
};

// The text of a scrape: metrics that have a value.
std::string RenderMetrics(const NodeMetrics& node);

struct MetricDescription {
  std::string name;
  std::string type;  // counter, gauge, histogram
  std::string help;  // one sentence with the unit
};
// All metrics that RenderMetrics() can export, for docs/reference/metrics.md.
std::vector<MetricDescription> DescribeMetrics();

}  // namespace verbena::server

#endif  // VERBENA_SERVER_METRICS_METRICS_H_
