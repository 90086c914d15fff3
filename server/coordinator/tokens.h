// Changes of a cluster's tokens: made, revoked, expired.
//
// **Thread safety**: pure functions on a state. After an error the state is partly changed.
//
// Invariants:
//  1. A token that has ended never becomes good again, and no worker that joined with it is left.
//  2. At most kMaxTokens are known; the first to be forgotten is the one that ended first.
#ifndef VERBENA_SERVER_COORDINATOR_TOKENS_H_
#define VERBENA_SERVER_COORDINATOR_TOKENS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/coordinator/commands.h"
#include "server/coordinator/store.h"
#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

inline constexpr int kMaxTokens = 1000;

// `now_s`: seconds since 1970. INVALID_ARGUMENT names the field; ALREADY_EXISTS: the id is known;
// RESOURCE_EXHAUSTED: kMaxTokens are good.
absl::StatusOr<Effect> AddToken(const v1::CreateTokenRequest& request, int64_t now_s,
                                CoordinatorState* state, v1::CreateTokenResponse* response);

// kNone when it has ended before; NOT_FOUND.
absl::StatusOr<Effect> EndToken(const std::string& id, int64_t now_s, CoordinatorState* state,
                                ViewEditor* view, v1::RevokeTokenResponse* response);

// Ends tokens whose time is over.
Effect EndExpiredTokens(int64_t now_s, CoordinatorState* state, ViewEditor* view);
// Workers of all tokens that have ended, also before.
void RetireEnded(const CoordinatorState& state, ViewEditor* view);
// Seconds since 1970; INT64_MAX: none has one.
int64_t NextTokenExpiry(const CoordinatorState& state);

// DATA_LOSS when no coordinator can have written these.
absl::Status CheckTokens(const CoordinatorState& state);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_TOKENS_H_
