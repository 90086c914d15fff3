// `verbena scale-hint`: load and memory of servers, and how many servers an autoscaler should run.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_SCALE_HINT_H_
#define VERBENA_SERVER_CLI_VERBENA_SCALE_HINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/shard_load.h"

namespace CLI {
class App;
}

namespace verbena::cli {

struct ScaleOptions {
  absl::Duration interval = absl::Seconds(5);  // between the two readings
  // Shares of a server, 0 to 1: above `high` a server is added, and one is removed only where the
  // others stay below `low`.
  double cpu_high = 0.75, cpu_low = 0.3;
  double memory_high = 0.8, memory_low = 0.5;
  double full_within_s = 3600;  // memory that is full so soon counts as full
  uint32_t min_servers = 1;
  uint32_t max_servers = 0;  // 0: no limit
};
void AddScaleOptions(CLI::App* command, ScaleOptions* options);
// Empty when they fit together.
std::string WrongScaleOptions(const ScaleOptions& options);

struct ServerUse {
  const ServerState* server = nullptr;
  // Sums of its shards, but `cpu` is a share of the processors of all its shards, 0 to 1. None: it
  // did not answer twice as the same process.
  std::optional<Rates> rates = {};
  uint64_t memory_bytes = 0;
  uint64_t memory_limit = 0;  // 0: none, or not known
  // Bytes a second; none without rates.
  std::optional<double> growth = {};
  // Seconds until the limit at this growth. None: it does not grow, or there is no limit.
  std::optional<double> full_in_s = {};
};
std::vector<ServerUse> ServerUses(const ClusterState& now, const ClusterState& before);

enum class ScaleAction { kNone, kAdd, kRemove };
struct ScaleHint {
  ScaleAction action = ScaleAction::kNone;
  uint32_t servers = 0;         // alive now
  uint32_t wanted_servers = 0;  // after the action
  std::string reason = {};      // one sentence
};
// Never removes servers while one does not answer or a replica is missing, nor below the number of
// replicas, nor at all with one replica of each partition, because data would be lost.
ScaleHint Suggest(const ClusterState& now, const std::vector<ServerUse>& uses,
                  const ScaleOptions& options);

std::string ScaleHintJson(const ClusterState& now, const ClusterState& before,
                          const ScaleOptions& options);
std::string ScaleHintText(const ClusterState& now, const ClusterState& before,
                          const ScaleOptions& options);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_SCALE_HINT_H_
