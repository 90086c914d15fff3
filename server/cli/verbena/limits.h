// `verbena limits`: a job's limits in the cluster, and its use.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_LIMITS_H_
#define VERBENA_SERVER_CLI_VERBENA_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "server/cli/verbena/cluster_state.h"

namespace CLI {
class App;
}

namespace verbena::cli {

// Changes of a job's limits; 0: no limit.
struct LimitChange {
  std::optional<uint64_t> memory_bytes;
  std::optional<uint32_t> tables;
  std::optional<uint32_t> lanes;
  bool none = false;  // no limits at all

  bool any() const { return none || memory_bytes || tables || lanes; }
};

// `memory`: text of a byte size.
void AddLimitOptions(CLI::App* app, std::string* job, std::string* memory, LimitChange* limits);

// Null: the view does not have it, and it has no limits.
const v1::Job* FindJob(const ClusterState& state, const std::string& name);
v1::JobLimits LimitsOf(const ClusterState& state, const std::string& name);
v1::JobLimits Changed(const v1::JobLimits& before, const LimitChange& change);

// "memory 10.0 GB, 4 tables, 8 lanes a shard"; "-" for none.
std::string LimitsWord(const v1::JobLimits& limits);

// The share of a job's memory limit that a server grants.
uint64_t ShareOf(const ServerState& server, const v1::JobLimits& limits,
                 const v1::ClusterView& view);

// A job's use on one responding server, or on all of them.
struct JobUse {
  uint64_t memory_bytes = 0;
  uint64_t tables = 0;  // of all servers
  uint32_t lanes = 0;   // of the shard that has most
};
JobUse UseOf(const ServerState& server, const std::string& job);
JobUse UseOf(const ClusterState& state, const std::string& job);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_LIMITS_H_
