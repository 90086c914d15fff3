// `verbena server remove`, `verbena partition reset`, `verbena table drop` and `verbena job
// forget`: commands by which an operator discards data.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Nothing is changed before the operator has agreed: by --yes, or by a word at the terminal.
#ifndef VERBENA_SERVER_CLI_VERBENA_REPAIR_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_REPAIR_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/verbena/cluster_state.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

struct RepairOptions {
  enum class Action { kNone, kRemoveServer, kResetTable, kDropTable, kForgetJob };
  Action action = Action::kNone;
  std::string name;                  // of the server, table or job
  std::vector<uint32_t> partitions;  // to reset; none: all that are lost
  bool restoring = false;            // drop: the one that is being restored, and no other
  bool yes = false;                  // no confirmation is needed
};

// Adds the action (never kNone) to its command: `partition reset`, `server remove`, `table drop` or
// `job forget`. Parsing fills *repair.
CLI::App* AddRepair(RepairOptions::Action action, CLI::App* command, RepairOptions* repair);

// "table 'w' is used by 3 workers of job 'demo'" for each of `tables` whose job has workers (not
// counting observers), joined by "; ". Empty: no worker trains them.
std::string UsersText(const std::vector<const v1::Table*>& tables, const v1::ClusterView& view);

// NOT_FOUND: its target does not exist; the message names it. Called before the confirmation of
// Consequences().
absl::Status CheckTarget(const RepairOptions& options, const ClusterState& state);

// The effects on the current cluster, for confirmation.
std::string Consequences(const RepairOptions& options, const ClusterState& state);

// Asks for confirmation at the terminal. FAILED_PRECONDITION: there is none. ABORTED: the answer
// was different. CANCELLED: interrupted.
absl::Status Confirm(const std::string& consequences, int interrupt_fd);

struct RepairReport {
  std::string out;  // for standard output
  std::string err;  // for people: a summary
};
// Errors of CallAndWait(). `state`: before the change.
absl::StatusOr<RepairReport> RunRepair(const RepairOptions& options, bool json,
                                       const ClusterState& state, const Coordinator& coordinator);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_REPAIR_COMMAND_H_
