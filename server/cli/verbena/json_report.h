// The output of each command with --json: one object on one line. The project's README documents
// the members; they are always there, in this order. New ones may be added, none changes its
// meaning.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_JSON_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_JSON_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "proto/base/json.h"
#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/shard_load.h"

namespace verbena::cli {

// The first members of every answer.
JsonWriter ClusterJson(const ClusterState& state);

std::string StatusJson(const ClusterState& state);
std::string TablesJson(const ClusterState& state);
std::string JobsJson(const ClusterState& state);
std::string LimitsJson(const ClusterState& state, const std::string& job);
std::string WorkersJson(const ClusterState& state);
// `interval`: seconds that rates are taken over; none without rates.
std::string ShardsJson(const ClusterState& state, const std::vector<ShardLoad>& loads,
                       std::optional<double> interval);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_JSON_REPORT_H_
