// `verbena checkpoint import`: makes a checkpoint of safetensors files that others made.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/import_plan.h"

namespace verbena::cli {

struct ImportCommand {
  checkpoint::ImportOptions options;  // without `from`, `specs`
  std::string spec_file;              // empty: none
};

// The options of `action`; what was given is in `command`.
void AddImport(CLI::App* action, ImportCommand* command);

// What was done, for standard output. `progress`: it is told also where standard error is no
// terminal. CANCELLED: a signal came (`signal_fd`, -1: none), and what was begun is undone.
absl::StatusOr<std::string> RunImport(const ImportCommand& command, const std::string& from,
                                      bool progress, bool json, int signal_fd);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_
