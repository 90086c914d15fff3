// Names of token roles for people: "operator", "server", "job", "read-only".
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SECURITY_ROLE_H_
#define VERBENA_PROTO_SECURITY_ROLE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "verbena/v1/access.pb.h"

namespace verbena {

// The name of a role: a number for a role of a newer version, "none" for none.
std::string RoleName(v1::Role role);
// INVALID_ARGUMENT has the allowed names.
absl::StatusOr<v1::Role> ParseRole(std::string_view name);

}  // namespace verbena

#endif  // VERBENA_PROTO_SECURITY_ROLE_H_
