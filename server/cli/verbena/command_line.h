// The command line of `verbena`, the operator's program.
//
// **Thread safety**: ParseCommandLine() reads the environment; otherwise pure.
#ifndef VERBENA_SERVER_CLI_VERBENA_COMMAND_LINE_H_
#define VERBENA_SERVER_CLI_VERBENA_COMMAND_LINE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "server/cli/verbena/checkpoint_cluster.h"
#include "server/cli/verbena/checkpoint_command.h"
#include "server/cli/verbena/coordinator_command.h"
#include "server/cli/verbena/limits.h"
#include "server/cli/verbena/move_command.h"
#include "server/cli/verbena/rebalance_command.h"
#include "server/cli/verbena/repair_command.h"
#include "server/cli/verbena/rolling_restart.h"
#include "server/cli/verbena/scale_hint.h"
#include "server/cli/verbena/table_command.h"
#include "server/cli/verbena/token_command.h"
#include "verbena/tls_options.h"

namespace verbena::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitWrong = 1;        // something is wrong, or an answer is incomplete
inline constexpr int kExitUsage = 2;        // wrong command line
inline constexpr int kExitUnreachable = 3;  // no answer from the coordinator

enum class Command {
  kStatus,
  kTables,
  kJobs,
  kJob,
  kLimits,
  kWorkers,
  kShards,
  kScaleHint,
  kPartition,
  kServer,
  kMigrate,
  kDrain,
  kRebalance,
  kRollingRestart,
  kTable,
  kToken,
  kCoordinator,
  kMoveLeader,
  kCheckpoint
};

struct Options {
  Command command = Command::kStatus;
  std::string cluster;  // host:port of the coordinator, or of several with commas
  TlsOptions tls;
  std::string token_file;  // of the operator's own token; empty: none
  absl::Duration timeout = absl::Seconds(5);
  std::optional<absl::Duration> watch;  // shards: print rates this often
  std::optional<absl::Duration> wait;   // status: until all is well, at most so long
  bool json = false;
  bool option_reference = false;  // table: print the options that a table can have
  bool markdown = false;          // option_reference: as the reference page
  std::string job;                // limits: whose
  ScaleOptions scale;             // of kScaleHint
  LimitChange limits;             // limits: none given: they are shown
  RepairOptions repair;  // of kServer, kTable, kJob, kPartition; of none: partitions are listed
  TableAction table;     // of kTable; no name: `repair`
  MoveOptions move;      // of kMigrate, kDrain
  RebalanceOptions rebalance;                   // of kRebalance
  RollingRestartOptions restart;                // of kRollingRestart
  TokenOptions token;                           // of kToken
  CoordinatorAction coordinator;                // of kCoordinator
  std::string successor;                        // of kMoveLeader; empty: any
  CheckpointOptions checkpoint;                 // of kCheckpoint
  ClusterCheckpointOptions cluster_checkpoint;  // of kCheckpoint, where a cluster is asked
};

struct Parsed {
  Options options;
  // Set when there is nothing to run: --help, --version, or an error.
  std::optional<int> exit_status;
  std::string message;  // for stdout when exit_status is 0, else for stderr
};
Parsed ParseCommandLine(int argc, const char* const* argv);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_COMMAND_LINE_H_
