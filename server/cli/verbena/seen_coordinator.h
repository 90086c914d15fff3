// One coordinator of several, as it answers.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_SEEN_COORDINATOR_H_
#define VERBENA_SERVER_CLI_VERBENA_SEEN_COORDINATOR_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/cli/verbena/coordinator_call.h"

namespace verbena::cli {

struct SeenCoordinator {
  std::string address;
  const char* state = "unreachable";
  std::string leader;   // that it names; its own address, if it leads
  uint64_t term = 0;    // 0: it does not lead
  std::string problem;  // why it is not reached, or names no leader; empty: none

  bool leads() const { return term > 0; }
  bool standby() const { return state == std::string("standby"); }
};

// Calls the coordinator at `address` alone. CANCELLED: interrupted; no other error.
absl::StatusOr<SeenCoordinator> LookAt(const std::string& address, const Coordinator& coordinator);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_SEEN_COORDINATOR_H_
