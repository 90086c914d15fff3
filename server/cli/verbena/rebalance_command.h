// `verbena rebalance`: spreads bytes and primaries of partitions over servers, by planned moves.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_REBALANCE_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_REBALANCE_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/balance/balance_plan.h"
#include "server/cli/verbena/cluster_reader.h"
#include "server/cli/verbena/coordinator_call.h"
#include "server/cli/verbena/move_command.h"

namespace verbena::cli {

struct RebalanceOptions {
  bool plan = false, apply = false, cancel = false;  // one of them
  bool no_wait = false;
};

// Adds the options of `rebalance`. Parsing fills *options.
void AddRebalance(CLI::App* command, RebalanceOptions* options);

// Prints the plan, carries it out with progress on standard error, or ends all moves. `apply` plans
// again when its moves have ended, until the servers are balanced or nothing helps.
// FAILED_PRECONDITION: see server::MayBalance() (`apply`), MayPlanBalance() (`plan`); or a live
// server did not answer, so its load is not known. CANCELLED: interrupted; the moves go on.
absl::StatusOr<MoveReport> RunRebalance(const RebalanceOptions& options, bool json,
                                        const Coordinator& coordinator, ClusterReader* reader);

// The plan for a state that was read with partitions: its first round, and with those that follow
// it. Errors of RunRebalance().
absl::StatusOr<server::BalancePlan> PlanFor(const ClusterState& state);
absl::StatusOr<server::BalancePlan> WholePlanFor(const ClusterState& state);
std::string PlanText(const server::BalancePlan& plan, const ClusterState& state);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_REBALANCE_COMMAND_H_
