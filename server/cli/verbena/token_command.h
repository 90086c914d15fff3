// `verbena token`: makes, lists and revokes tokens.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A token is made here and shown, or written to a file, once; the cluster gets its hash.
#ifndef VERBENA_SERVER_CLI_VERBENA_TOKEN_COMMAND_H_
#define VERBENA_SERVER_CLI_VERBENA_TOKEN_COMMAND_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cli/verbena/coordinator_call.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::cli {

struct TokenOptions {
  enum class Action { kCreate, kList, kRevoke };
  Action action = Action::kList;
  v1::Role role = v1::ROLE_UNSPECIFIED;
  std::string job, note;
  absl::Duration lifetime = absl::ZeroDuration();  // zero: until it is revoked
  std::string out;                                 // file for the token; empty: standard output
  std::string id;                                  // of the one to revoke
};

// "30d", "12h", "15m", "90s". INVALID_ARGUMENT names the allowed values.
absl::StatusOr<absl::Duration> ParseLifetime(const std::string& text);

struct TokenReport {
  std::string out;  // for standard output
  std::string err;  // for people: a summary
};
// Errors as CallAndWait().
absl::StatusOr<TokenReport> RunTokenCommand(const TokenOptions& options, bool json,
                                            const Coordinator& coordinator);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_TOKEN_COMMAND_H_
