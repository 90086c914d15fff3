// `verbena rolling-restart`: restarts servers one after the other by a command of the operator, and
// waits between two until the cluster has all of its replicas again.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_ROLLING_RESTART_H_
#define VERBENA_SERVER_CLI_VERBENA_ROLLING_RESTART_H_

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/verbena/cluster_reader.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

struct RollingRestartOptions {
  std::string command;               // for /bin/sh; empty: the action was not chosen
  std::vector<std::string> servers;  // names; empty: all
  bool drain = false;
  double wait_seconds = 600;
};

// Adds the options of `rolling-restart`. Parsing fills *restart.
void AddRollingRestart(CLI::App* command, RollingRestartOptions* restart);

// Restarts the servers, with progress on standard error, and returns how many. FAILED_PRECONDITION:
// it was not begun, or the command failed. DEADLINE_EXCEEDED: a server did not come back, or a
// replica. CANCELLED: interrupted. Errors of ClusterReader::Read() and ChangeAndWait(). The message
// names the servers that are left.
absl::StatusOr<size_t> RunRollingRestart(const RollingRestartOptions& options,
                                         const Coordinator& coordinator, ClusterReader* reader);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_ROLLING_RESTART_H_
