// The gate of a gRPC service: authorizes every call, and writes it to the audit log when it was
// refused or has changed something.
//
// **Thread safety**: AccessState and Gate: every function from any thread.
//
// Invariants:
//  1. A call's own work begins only after Judge() has allowed it.
#ifndef VERBENA_SERVER_ACCESS_GATE_H_
#define VERBENA_SERVER_ACCESS_GATE_H_

#include <grpcpp/server_context.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/access/access_control.h"
#include "server/access/audit_log.h"

namespace verbena::server {

// The peer of a call according to gRPC; read while the call is new.
struct Caller {
  std::string peer;
  std::string certificate;
  std::string token;      // the secret itself: for Authenticate() alone
  uint64_t revision = 0;  // of its view, as the caller states; 0: not stated
};
Caller CallerOf(const grpc::CallbackServerContext& context);
// The queue in which a caller's calls wait: one for each token, without a token one for each host.
std::string QueueOf(const Caller& caller);

// The server's data for authorizing calls: those of its newest view.
class AccessState {
 public:
  struct Known {
    std::shared_ptr<const v1::ClusterView> view;
    std::shared_ptr<const v1::AccessRules> rules;  // null: calls need no tokens
  };
  void Update(std::shared_ptr<const v1::ClusterView> view,
              std::shared_ptr<const v1::AccessRules> rules);
  // Both null before the first view.
  Known Get() const;

 private:
  mutable std::mutex mutex_;
  Known known_;  // guarded by mutex_
};

class Gate {
 public:
  // `audit` outlives it.
  explicit Gate(AuditLog* audit) : audit_(audit) {}

  // Whether the request of a call is read: its token is valid, regardless of its request. Refusals
  // are audited here. Where no tokens are needed, the caller's token is cleared: it proves nothing,
  // and must not give its bearer a separate queue.
  absl::Status Admit(const v1::AccessRules* rules, Caller* caller, const std::string& method) const;
  // The caller, if it is authorized. Refusals are audited here.
  absl::StatusOr<Principal> Judge(const v1::AccessRules* rules, const Caller& caller,
                                  const std::string& method, const Scope& scope) const;
  // Audits a refusal by the service itself, and returns it.
  absl::Status Refuse(const Caller& caller, const std::string& method, const std::string& about,
                      absl::Status status) const;
  // Call when a call that Judge() allowed has ended. Audits it if the method's access option
  // requires that, unless it succeeded and `changed` nothing.
  void Ended(const Caller& caller, const Principal& who, const std::string& method,
             const std::string& about, const absl::Status& status, bool changed = true) const;

 private:
  void Refused(const Caller& caller, v1::Role role, const std::string& method,
               const std::string& about, const absl::Status& status) const;

  AuditLog* const audit_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_GATE_H_
