// `verbena checkpoint`: lists, checks, prunes, compacts, exports and imports checkpoints on a disk
// that this machine sees. It calls no cluster.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/export.h"
#include "server/cli/verbena/checkpoint_import.h"

namespace verbena::cli {

struct CheckpointOptions {
  enum class Action { kList, kVerify, kInspect, kPrune, kCompact, kExport, kImport };
  Action action = Action::kList;
  // A directory of checkpoints, or of one checkpoint for commands that read; import: the foreign
  // model.
  std::string path;
  bool all = false;       // verify: every one
  bool dry_run = false;   // prune
  bool progress = false;  // also where standard error is no terminal
  checkpoint::Retention retention;
  checkpoint::ExportOptions exported;
  ImportCommand imported;
};

// Adds the actions of `command` and returns them; parsing fills `options`.
std::vector<CLI::App*> AddCheckpointActions(CLI::App* command, CheckpointOptions* options);

struct CheckpointReport {
  std::string out;     // for standard output
  std::string err;     // for people
  bool wrong = false;  // something is damaged
};
// CANCELLED: a signal came (`signal_fd`, -1: none), and unfinished work is undone.
absl::StatusOr<CheckpointReport> RunCheckpoint(const CheckpointOptions& options, bool json,
                                               int signal_fd);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_COMMAND_H_
