// `verbena partition list`: the replicas of each partition.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_PARTITION_REPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_PARTITION_REPORT_H_

#include <string>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

std::string PartitionsText(const ClusterState& state);
std::string PartitionsJson(const ClusterState& state);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_PARTITION_REPORT_H_
