// Whether a call of the control plane may be made: who calls (a token), what the call asks for (its
// option in the .proto), and whose job it is about.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. A call that the .proto gives no access option is refused to everybody.
//  2. No error says anything of a token but its id.
#ifndef VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_
#define VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/verbena/v1/cluster.pb.h"

namespace verbena::server {

// Who calls. In a cluster without tokens: an operator without a token.
struct Principal {
  std::string token = {};  // its id; empty: none
  v1::Role role = v1::ROLE_OPERATOR;
  std::string job = {};  // that it is restricted to; empty: none
};

// What a call is about, beyond its method.
struct Scope {
  std::optional<std::string> job = {};  // none: of the cluster as a whole, or of nothing there is
  bool observes = false;                // of that job: as an observer does
  bool makes_job = false;               // there is no such job yet
  bool of_server = false;               // of a server's life, which is no job's
  // Ends this member, which joined with the token of this id; empty: it ends none, or it joined
  // without a token.
  std::string ends_member_of = {};
  std::string about = {};  // the same for people: "table 'w' of job 'ads'"
};

// What the .proto says of "/verbena.v1.Cluster/JoinWorker". No roles: there is no such method, or
// it says nothing.
const v1::Access& AccessOf(const std::string& method);

// "/verbena.v1.Cluster/JoinWorker" of JoinWorkerRequest: calls and their requests have one name,
// and lie in the file of their service.
template <typename Request>
std::string MethodOf() {
  const auto* message = Request::descriptor();
  const std::string& name = message->name();
  return "/" + message->file()->service(0)->full_name() + "/" +
         name.substr(0, name.size() - (sizeof("Request") - 1));
}

// Whose token it is. `rules` null: nobody needs one. UNAUTHENTICATED: there is none, or it is
// unknown, expired or revoked.
absl::StatusOr<Principal> Authenticate(const v1::AccessRules* rules, const std::string& token);

// PERMISSION_DENIED names the role, the method, and the job that the token is for.
absl::Status Authorize(const Principal& who, const std::string& method, const Scope& scope);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_ACCESS_CONTROL_H_
