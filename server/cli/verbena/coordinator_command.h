// `verbena coordinator`: the coordinators of a cluster, and their state in etcd.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. State is imported and exported only while no coordinator leads by that etcd: the command
//  holds the
//     leader's key meanwhile.
//  2. An import writes only where there is no state, an export only where there is no state
//  directory with one.
#ifndef VERBENA_SERVER_CLI_VERBENA_COORDINATOR_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_COORDINATOR_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/verbena/coordinator_call.h"
#include "server/coordinator/etcd/etcd_options.h"

namespace verbena::cli {

struct CoordinatorAction {
  enum class Action { kNone, kList, kImportSqlite, kExport };
  Action action = Action::kNone;
  server::EtcdOptions etcd;
  std::string state;  // the state directory of SQLite
  bool insecure = false;
};

// Whether it reads and writes state, and calls no coordinator.
inline bool MovesState(const CoordinatorAction& action) {
  return action.action == CoordinatorAction::Action::kImportSqlite ||
         action.action == CoordinatorAction::Action::kExport;
}

// Adds the actions to `command`. Those that call the cluster are returned.
std::vector<CLI::App*> AddCoordinatorActions(CLI::App* command, CoordinatorAction* raw, bool* json);

struct CoordinatorReport {
  std::string out;    // for standard output
  std::string err;    // for people
  bool leads = true;  // list: whether one of them leads
};
// The state of each coordinator of the list `coordinator.address`.
absl::StatusOr<CoordinatorReport> ListCoordinators(bool json, const Coordinator& coordinator);
// Import and export; call no coordinator.
absl::StatusOr<CoordinatorReport> MoveState(const CoordinatorAction& action, bool json);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_COORDINATOR_COMMAND_H_
