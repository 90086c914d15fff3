// `verbena migrate` and `verbena drain`: planned moves of partitions between servers, under load.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_MOVE_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_MOVE_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/cli/verbena/cluster_reader.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

struct MoveOptions {
  enum class Action { kNone, kMigrate, kDrain };
  Action action = Action::kNone;
  std::vector<uint32_t> partitions;
  std::vector<std::string> tables;
  std::string server;  // the target, or the server that is drained
  bool cancel = false;
  bool no_wait = false;
};

// Adds the options of `migrate` or `drain`. Parsing fills *move.
void AddMigrate(CLI::App* command, MoveOptions* move);
void AddDrain(CLI::App* command, MoveOptions* move);

// For servers that had no memory for replicas which a drain or a missing replica waits for: the
// bytes that these need, and the free ones; a line for each server, empty: there is none. The state
// was read with servers and their partitions.
std::string LackingMemoryText(const ClusterState& state);
// The partitions that have chunks of one of the tables, each once. NOT_FOUND names the table.
absl::StatusOr<std::vector<uint32_t>> PartitionsOfTables(const std::vector<std::string>& tables,
                                                         const v1::ClusterView& view);

struct MoveReport {
  std::string out;    // for standard output
  std::string err;    // for people
  bool done = false;  // all was moved, or was not to be waited for
};
// Begins or cancels the moves, and waits for their end, with progress on standard error. Errors of
// ChangeAndWait(). CANCELLED: interrupted; the moves go on.
absl::StatusOr<MoveReport> RunMove(const MoveOptions& options, bool json,
                                   const Coordinator& coordinator, ClusterReader* reader);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_MOVE_COMMAND_H_
