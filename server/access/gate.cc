#include "server/access/gate.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/security/token.h"

namespace verbena::server {
namespace {

constexpr absl::string_view kBearer = "Bearer ";

}  // namespace

Caller CallerOf(const grpc::CallbackServerContext& context) {
  Caller caller;
  caller.peer = context.peer();
  if (const auto authenticated = context.auth_context()) {
    const auto names = authenticated->GetPeerIdentity();
    if (!names.empty()) caller.certificate.assign(names.front().data(), names.front().size());
  }
  const auto& metadata = context.client_metadata();
  if (const auto it = metadata.find("authorization"); it != metadata.end()) {
    const absl::string_view value(it->second.data(), it->second.size());
    if (absl::StartsWith(value, kBearer)) caller.token = std::string(value.substr(kBearer.size()));
  }
  if (const auto it = metadata.find(kRevisionMetadata); it != metadata.end()) {
    const absl::string_view value(it->second.data(), it->second.size());
    if (!absl::SimpleAtoi(value, &caller.revision)) caller.revision = 0;
  }
  return caller;
}

std::string QueueOf(const Caller& caller) {
  const absl::StatusOr<std::string> token = TokenId(caller.token);
  return token.ok() ? absl::StrCat("token ", *token) : HostOf(caller.peer);
}

void AccessState::Update(std::shared_ptr<const v1::ClusterView> view,
                         std::shared_ptr<const v1::AccessRules> rules) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_ = {std::move(view), std::move(rules)};
}

AccessState::Known AccessState::Get() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return known_;
}

void Gate::Refused(const Caller& caller, v1::Role role, const std::string& method,
                   const std::string& about, const absl::Status& status) const {
  audit_->Write({.peer = caller.peer,
                 .certificate = caller.certificate,
                 .token = TokenId(caller.token).value_or(""),
                 .role = role,
                 .method = method,
                 .about = about,
                 .status = status});
}

absl::Status Gate::Refuse(const Caller& caller, const std::string& method, const std::string& about,
                          absl::Status status) const {
  Refused(caller, v1::ROLE_UNSPECIFIED, method, about, status);
  return status;
}

absl::Status Gate::Admit(const v1::AccessRules* rules, Caller* caller,
                         const std::string& method) const {
  if (rules == nullptr) caller->token.clear();
  absl::Status status = Authenticate(rules, caller->token).status();
  if (!status.ok()) Refused(*caller, v1::ROLE_UNSPECIFIED, method, "", status);
  return status;
}

absl::StatusOr<Principal> Gate::Judge(const v1::AccessRules* rules, const Caller& caller,
                                      const std::string& method, const Scope& scope) const {
  absl::StatusOr<Principal> who = Authenticate(rules, caller.token);
  absl::Status status = who.status();
  if (status.ok()) status = Authorize(*who, method, scope);
  if (status.ok() && AccessOf(method).audited()) {
    status = audit_->Charge(QueueOf(caller), absl::Now());
  }
  if (status.ok()) return who;
  Refused(caller, who.ok() ? who->role : v1::ROLE_UNSPECIFIED, method, scope.about, status);
  return status;
}

void Gate::Ended(const Caller& caller, const Principal& who, const std::string& method,
                 const std::string& about, const absl::Status& status, bool changed) const {
  if (!AccessOf(method).audited()) return;
  if (status.ok() && !changed) return audit_->Refund(QueueOf(caller));
  audit_->Write({.peer = caller.peer,
                 .certificate = caller.certificate,
                 .token = who.token,
                 .role = who.token.empty() ? v1::ROLE_UNSPECIFIED : who.role,
                 .method = method,
                 .about = about,
                 .status = status});
}

}  // namespace verbena::server
