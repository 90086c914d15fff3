// The gate of a gRPC service: every call goes through it, is judged, and is written to the audit
// log when it was refused or has changed something.
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

// Who is at the other end of a call, as gRPC says it: taken while the call is new.
struct Caller {
  std::string peer;
  std::string certificate;
  std::string token;      // the secret itself: for Authenticate() alone
  uint64_t revision = 0;  // of its view, as it states; 0: it does not
};
Caller CallerOf(const grpc::CallbackServerContext& context);
// The queue in which a caller's calls wait: one for each token, without a token one for each host.
std::string QueueOf(const Caller& caller);

// What a server knows of the cluster, for judging calls: as of its newest view.
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

  // Whether the request of a call is read: its token is good, whatever it asks for. What is refused
  // is audited here. Where no tokens are needed the caller's is taken away: it proves nothing, and
  // must not give its bearer a queue of its own.
  absl::Status Admit(const v1::AccessRules* rules, Caller* caller, const std::string& method) const;
  // The caller, if it may. What is refused is audited here.
  absl::StatusOr<Principal> Judge(const v1::AccessRules* rules, const Caller& caller,
                                  const std::string& method, const Scope& scope) const;
  // How a call that Judge() allowed has ended: audited when the method's access option says so.
  void Ended(const Caller& caller, const Principal& who, const std::string& method,
             const std::string& about, const absl::Status& status) const;

 private:
  void Refused(const Caller& caller, v1::Role role, const std::string& method,
               const std::string& about, const absl::Status& status) const;

  AuditLog* const audit_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_GATE_H_
