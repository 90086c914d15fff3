// The work of each shard of a cluster, in total or between two moments, and the hottest shard.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_SHARD_LOAD_H_
#define VERBENA_SERVER_CLI_VERBENA_SHARD_LOAD_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

// A second.
struct Rates {
  double push_bytes = 0, pull_bytes = 0;
  double pushes = 0, pulls = 0;
  double cpu = 0;  // of one processor: 0 to 1
};

struct ShardLoad {
  const ServerState* server = nullptr;
  // Null: the server did not answer; this one row stands for all its shards.
  const v1::ShardStatistics* statistics = nullptr;
  uint32_t partitions = 0;
  // None without an earlier moment, or when the process is another one than then.
  std::optional<Rates> rates = {};
  bool hottest = false;
};

// In the order of the view. `before` may be null. The hottest shard used the most processor time
// (since `before`, or in total) among those that served any request in that time.
std::vector<ShardLoad> ShardLoads(const ClusterState& now, const ClusterState* before);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_SHARD_LOAD_H_
