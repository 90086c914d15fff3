// `verbena checkpoint import`: makes a checkpoint from foreign safetensors files.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/files/import_plan.h"

namespace verbena::cli {

struct ImportCommand {
  checkpoint::ImportOptions options;  // without `from`, `specs`
  std::string spec_file;              // empty: none
};

// Adds the options of `action`; parsing fills `command`.
void AddImport(CLI::App* action, ImportCommand* command);

// Returns a summary for standard output. `progress`: is called even if standard error is no
// terminal. CANCELLED: a signal came (`signal_fd`, -1: none), and unfinished work is undone.
absl::StatusOr<std::string> RunImport(const ImportCommand& command, const std::string& from,
                                      bool progress, bool json, int signal_fd);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_IMPORT_H_
