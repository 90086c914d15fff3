#include "server/access/access_control.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "proto/security/role.h"
#include "proto/security/token.h"
#include "server/access/shown.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {
namespace {

absl::Status Ended(const v1::Token& token) {
  return absl::UnauthenticatedError(
      absl::StrCat("token ", token.id(), token.revoked() ? " was revoked" : " has expired",
                   "; ask the cluster's operator for another ('verbena token create')"));
}

absl::Status Denied(const Principal& who, const std::string& method, const std::string& why) {
  return absl::PermissionDeniedError(absl::StrCat(
      "token ", who.token, " (", RoleName(who.role), who.job.empty() ? "" : " of job '", who.job,
      who.job.empty() ? "" : "'", ") may not call ", method, ": ", why));
}

}  // namespace

const v1::Access& AccessOf(const std::string& method) {
  // Named, so that whatever links this links the services' descriptions.
  static const auto* const cluster = v1::ClusterView::descriptor();
  static const auto* const shard = v1::OpenLaneRequest::descriptor();
  if (cluster == nullptr || shard == nullptr) return v1::Access::default_instance();
  // "/package.Service/Method" -> "package.Service.Method"
  std::string name = method.substr(method.empty() ? 0 : 1);
  std::replace(name.begin(), name.end(), '/', '.');
  const auto* found = google::protobuf::DescriptorPool::generated_pool()->FindMethodByName(name);
  if (found == nullptr) return v1::Access::default_instance();
  return found->options().GetExtension(v1::access);
}

absl::StatusOr<Principal> Authenticate(const v1::AccessRules* rules, const std::string& token) {
  if (rules == nullptr) return Principal{};
  if (token.empty()) {
    return absl::UnauthenticatedError(
        "this cluster asks for a token: give --token-file (or ClientOptions::token_file), with one "
        "that its operator made by 'verbena token create'");
  }
  const absl::StatusOr<std::string> id = TokenId(token);
  if (!id.ok()) return absl::UnauthenticatedError(id.status().message());
  for (const v1::Token& known : rules->tokens()) {
    if (known.id() != *id) continue;
    if (!SameHash(known.hash(), HashToken(token))) break;
    if (known.ended() != 0) return Ended(known);
    return Principal{known.id(), known.role(), known.job()};
  }
  return absl::UnauthenticatedError(
      absl::StrCat("this cluster knows no such token ", *id,
                   ": it is another cluster's, was forgotten after its end, or was altered"));
}

absl::Status Authorize(const Principal& who, const std::string& method, const Scope& scope) {
  const v1::Access& access = AccessOf(method);
  if (std::find(access.roles().begin(), access.roles().end(), who.role) == access.roles().end()) {
    std::vector<std::string> allowed;
    for (const int role : access.roles()) allowed.push_back(RoleName(static_cast<v1::Role>(role)));
    return Denied(
        who, method,
        absl::StrCat("allowed: ", allowed.empty() ? "nobody" : absl::StrJoin(allowed, ", ")));
  }
  if (who.role == v1::ROLE_OPERATOR) return absl::OkStatus();
  if (scope.of_server) {
    if (who.role == v1::ROLE_SERVER) return absl::OkStatus();
    return Denied(who, method, "that is a server's incarnation");
  }
  if (!scope.job.has_value()) return absl::OkStatus();
  if (who.role == v1::ROLE_SERVER) return Denied(who, method, "that is a worker's incarnation");
  if (!who.job.empty() && who.job != *scope.job) {
    return Denied(who, method, absl::StrCat("that is of job '", Shown(*scope.job), "'"));
  }
  // Only an operator's calls finish it, and meanwhile nobody else restores a table of that name,
  // which may be another job's.
  if (scope.restores) return Denied(who, method, "only an operator restores tables");
  // Shards go by the member that a lane was opened for, not by the token that opened it.
  if (!who.job.empty() && scope.reads_all_jobs) {
    return Denied(who, method,
                  absl::StrCat("that observer reads the tables of all jobs, and this token is of "
                               "job '",
                               who.job, "'; join with it"));
  }
  if (who.role == v1::ROLE_READ_ONLY && !scope.observes) {
    return Denied(who, method, "with such a token a worker is an observer, which only pulls");
  }
  if (who.role == v1::ROLE_READ_ONLY && scope.writes) {
    return Denied(who, method, "that observer joined with a token that may write; join with this");
  }
  // Observers of all jobs may have such tokens: their holders have nothing to do with each other.
  if (who.role == v1::ROLE_READ_ONLY && !scope.ends_member_of.empty() &&
      scope.ends_member_of != who.token) {
    return Denied(who, method, "that observer joined with another token");
  }
  // Jobs stay. One that only looks must not fill the state with them.
  if (who.role == v1::ROLE_READ_ONLY && scope.makes_job) {
    return absl::UnavailableError(
        absl::StrCat("there is no job '", Shown(*scope.job), "' yet; token ", who.token,
                     " (read-only) joins existing jobs only: a worker or a table makes the job"));
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
