// What each command prints for people.
//
// **Thread safety**: pure functions. Everything that peers chose is escaped.
#ifndef VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_

#include <string>
#include <vector>

#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/shard_load.h"

namespace verbena::cli {

// The verdict first, so that the first line is enough.
std::string StatusText(const ClusterState& state);
std::string TablesText(const ClusterState& state);
std::string JobsText(const ClusterState& state);
// What the job may take, and what it has.
std::string LimitsText(const ClusterState& state, const std::string& job);
std::string WorkersText(const ClusterState& state);
// What each shard has done since it started, its lanes, and why transports are missing.
std::string ShardsText(const ClusterState& state, const std::vector<ShardLoad>& loads);
// What each shard does a second. `when` heads it.
std::string RatesText(const ClusterState& state, const std::vector<ShardLoad>& loads,
                      const std::string& when);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_
