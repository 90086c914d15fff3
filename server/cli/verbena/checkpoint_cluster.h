// `verbena checkpoint save` and `restore`: a cluster writes a checkpoint, or loads one, with
// progress reports.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_CLUSTER_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_CLUSTER_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

struct ClusterCheckpointOptions {
  enum class Action { kNone, kCheckpoint, kRestore };
  Action action = Action::kNone;
  // save: a directory of checkpoints; restore: that, or a checkpoint. All servers see it by this
  // path.
  std::string path;
  std::string job;                  // save: empty is the only one; restore: the checkpoint's
  std::vector<std::string> tables;  // empty: all
  // save
  uint64_t bytes_per_second = 0;                       // 0: as fast as it goes
  uint64_t memory_bytes = 0;                           // of each shard; 0: its default
  uint32_t full_every = 1;                             // CheckpointTaskOptions::full_every
  checkpoint::Retention retention = {.keep_last = 0};  // keep_last 0: nothing is removed
  // restore
  std::map<std::string, std::string> renamed;
  bool parameters_only = false;
  bool replace = false;
  bool drop_first = false;
  bool yes = false;  // agreed to replacing tables that workers use
};

// Adds the actions of `command` and returns them; parsing fills `options`.
std::vector<CLI::App*> AddClusterCheckpointActions(CLI::App* command,
                                                   ClusterCheckpointOptions* options);

// Returns a summary for standard output; progress goes to standard error if that is a terminal.
// CANCELLED: interrupted. After CANCELLED and other errors nothing was done, unless the error
// states otherwise.
absl::StatusOr<std::string> RunClusterCheckpoint(const ClusterCheckpointOptions& options, bool json,
                                                 const Coordinator& coordinator);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_CLUSTER_H_
