// The roles of tokens as people read and write them: "operator", "server", "job", "read-only".
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_ROLE_H_
#define VERBENA_PROTO_ROLE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/verbena/v1/access.pb.h"

namespace verbena {

// A role of a newer version is its number; none, "none".
std::string RoleName(v1::Role role);
// INVALID_ARGUMENT names what is allowed.
absl::StatusOr<v1::Role> ParseRole(std::string_view name);

}  // namespace verbena

#endif  // VERBENA_PROTO_ROLE_H_
