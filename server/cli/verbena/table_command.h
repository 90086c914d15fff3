// `verbena table ACTION NAME`: commands that change one table of a running cluster.
//
// Each action has a function that adds it to the command line, and one line in AddTableActions().
// (`verbena table drop` discards data; see repair_command.h.)
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_TABLE_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_TABLE_COMMAND_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/verbena/coordinator_call.h"
#include "verbena/client.h"
#include "verbena/tls_options.h"

namespace verbena::cli {

// The cluster of a command, and the options that all commands have.
struct TableCluster {
  const Coordinator& coordinator;  // for calls of the control plane
  const TlsOptions& tls;
  const std::string& token_file;  // empty: none
  bool json;
};

struct TableReport {
  std::string out;  // for standard output
  std::string err;  // for people: a summary
};
// An action on the served table of that name. CANCELLED: interrupted.
struct TableAction {
  std::string table;  // empty: no action was given
  std::function<absl::StatusOr<TableReport>(const TableCluster&, const v1::Table&)> run;
};

// Adds the actions of `command` and returns them. Parsing one of them sets *chosen.
std::vector<CLI::App*> AddTableActions(CLI::App* command, TableAction* chosen);

// The served table of that name, as the coordinator has it now. NOT_FOUND; errors of CallAndWait().
absl::StatusOr<v1::Table> ServedTable(const Coordinator& coordinator, const std::string& name);

// For an action of the data plane: joins `job` as a worker or as an observer, under `name`. Its
// calls end by --timeout. Errors as Client::Connect(); FAILED_PRECONDITION: a worker, and a job
// with sync tables has its workers.
absl::StatusOr<std::unique_ptr<Client>> JoinJob(const TableCluster& cluster, const std::string& job,
                                                const char* name, bool observer);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TABLE_COMMAND_H_
