// Calls of etcd's v3 API, each until it has a definite answer or its deadline has passed.
//
// A call goes to one member of etcd after the other: a member that does not answer within an
// attempt, or has no leader, is passed over. "too many requests" is repeated after a pause, and an
// expired token is replaced.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A call that changes something is repeated while its outcome is unknown. So a caller makes
//  only
//     transactions whose repetition is harmless and recognisable.
//  2. An error has OutcomeUnknown() if any attempt may have been applied, now or later; otherwise
//  nothing was
//     and will be applied.
//  3. A password is sent only to this host, or over TLS. No error contains it.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_ETCD_CLIENT_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_ETCD_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "etcd/etcd.pb.h"
#include "server/coordinator/etcd/etcd_options.h"

namespace verbena::server {

// Whether a call that ended with this error may have been applied, or may still be.
bool OutcomeUnknown(const absl::Status& status);

class EtcdClient {
 public:
  // INVALID_ARGUMENT, FAILED_PRECONDITION: options or files that cannot be used.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(const EtcdOptions& options);
  ~EtcdClient();

  // Errors of all calls, with etcd's text:
  //   UNAVAILABLE          no member has answered, or etcd has no leader (no quorum)
  //   RESOURCE_EXHAUSTED   etcd's space is full (alarm NOSPACE)
  //   OUT_OF_RANGE         the requested revision is compacted
  //   UNAUTHENTICATED, PERMISSION_DENIED   user, password or rights
  //   others               as etcd returns them
  absl::StatusOr<etcdserverpb::RangeResponse> Range(const etcdserverpb::RangeRequest& request,
                                                    absl::Duration timeout);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);
  // The new lease's id and time in seconds.
  absl::StatusOr<etcdserverpb::LeaseGrantResponse> GrantLease(int64_t seconds,
                                                              absl::Duration timeout);
  // NOT_FOUND: the lease has ended.
  absl::Status KeepLease(int64_t lease, absl::Duration timeout);
  // The time that is left as the member that answers has it, which may be out of date.
  absl::StatusOr<etcdserverpb::LeaseTimeToLiveResponse> TimeToLive(int64_t lease,
                                                                   absl::Duration timeout);
  absl::Status RevokeLease(int64_t lease, absl::Duration timeout);

  // Attempts that failed, of all calls.
  uint64_t failed_attempts() const;
  const EtcdOptions& options() const;

 private:
  struct Impl;
  explicit EtcdClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The end of the range of all keys that begin with `prefix`.
std::string EndOfPrefix(std::string prefix);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_ETCD_CLIENT_H_
