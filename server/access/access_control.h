// Decides whether a control-plane call is allowed: by its caller (a token), its method (the option
// in the .proto), and its job.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. A method without an access option in the .proto is refused to every caller.
//  2. Errors have nothing of a token but its id.
#ifndef VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_
#define VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// The authenticated caller. In a cluster without tokens: an operator without a token.
struct Principal {
  std::string token = {};  // its id; empty: none
  v1::Role role = v1::ROLE_OPERATOR;
  std::string job = {};  // the job that it is restricted to; empty: none
};

// The objects of a call, beyond its method.
struct Scope {
  std::optional<std::string> job = {};  // none: the whole cluster, or nothing that exists
  bool observes = false;                // the call acts as an observer of that job
  bool makes_job = false;               // there is no such job yet
  bool of_server = false;               // a call of a server's life cycle, which belongs to no job
  // Id of a token: the call ends this member, or a lane of it, and it joined with that token.
  // Empty: it ends none, or it joined without a token.
  std::string ends_member_of = {};
  bool restores = false;        // the call makes a table that is to be restored
  bool reads_all_jobs = false;  // the call acts as an observer whose token named no job
  bool writes = false;          // the call acts as an observer whose token may write
  std::string about = {};       // for messages: "table 'w' of job 'ads'"
};

// The access option of a method such as "/verbena.v1.Cluster/JoinWorker". No roles: there is no
// such method, or it has no option.
const v1::Access& AccessOf(const std::string& method);

// "/verbena.v1.Cluster/JoinWorker" for JoinWorkerRequest: calls and their requests have one name,
// and are in the file of their service.
template <typename Request>
std::string MethodOf() {
  const auto* message = Request::descriptor();
  const std::string& name = message->name();
  return "/" + message->file()->service(0)->full_name() + "/" +
         name.substr(0, name.size() - (sizeof("Request") - 1));
}

// The principal of a token. `rules` null: calls need no tokens. UNAUTHENTICATED: the token is
// missing, unknown, expired or revoked.
absl::StatusOr<Principal> Authenticate(const v1::AccessRules* rules, const std::string& token);

// PERMISSION_DENIED names the role, the method, and the job that the token is for.
absl::Status Authorize(const Principal& who, const std::string& method, const Scope& scope);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_
