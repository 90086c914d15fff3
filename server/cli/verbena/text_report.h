// The text output of each command.
//
// **Thread safety**: pure functions. Everything that peers chose is escaped.
#ifndef VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_

#include <string>
#include <vector>

#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/shard_load.h"

namespace verbena::cli {

// The first line is the verdict.
std::string StatusText(const ClusterState& state);
std::string TablesText(const ClusterState& state);
std::string JobsText(const ClusterState& state);
// The job's limits and use.
std::string LimitsText(const ClusterState& state, const std::string& job);
std::string WorkersText(const ClusterState& state);
// The totals of each shard since its start, its lanes, and why transports are missing.
std::string ShardsText(const ClusterState& state, const std::vector<ShardLoad>& loads);
// The rates of each shard per second. `when` is the heading.
std::string RatesText(const ClusterState& state, const std::vector<ShardLoad>& loads,
                      const std::string& when);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TEXT_REPORT_H_
