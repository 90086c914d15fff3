// `verbena move-leader`: another coordinator leads, as planned, without the wait for a lease.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_MOVE_LEADER_H_
#define VERBENA_SERVER_CLI_VERBENA_MOVE_LEADER_H_

#include <string>

#include "absl/status/statusor.h"
#include "server/cli/verbena/coordinator_call.h"

namespace CLI {
class App;
}

namespace verbena::cli {

void AddMoveLeader(CLI::App* command, std::string* successor);

struct MovedLeader {
  std::string out;  // for standard output
  std::string err;  // for people
};

// Returns once the coordinator at `successor` leads; empty: a standby that answers.
//
// FAILED_PRECONDITION: nothing was changed: there is no such standby, it leads already, or the
// leader has no standbys or cannot hand over. UNAVAILABLE: no coordinator leads. CANCELLED:
// interrupted. UNKNOWN: the leader refused, or another coordinator or none leads now.
absl::StatusOr<MovedLeader> MoveLeader(const std::string& successor, bool json,
                                       const Coordinator& coordinator);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_MOVE_LEADER_H_
