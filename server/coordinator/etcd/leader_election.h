// The election of the leader among several coordinators, by a key in etcd that is attached to a
// lease.
//
//   state     | on                                            | to
//   ----------+-----------------------------------------------+----------
//   follows   | no key: it is created with a new lease        | leads
//             | another's key: looked at every 100 ms; its    | follows
//             | lease is revoked when it has ended            |
//             | etcd does not answer: seat().problem          | follows
//   leads     | the lease is extended, and the key is there   | leads
//             | the lease has ended, or could have by our own | follows
//             | clock; Resign(); HandOver(): the transaction  |
//             | that removes the key names a successor        |
//   any       | Stop(): the own key is removed                | stopped
//
// While there is a successor's key, which has a lease of its own, only that coordinator is a
// candidate. It removes the key as it is elected.
//
// A look every 100 ms replaces a watch: no stream of a stopped member of etcd delays a take-over,
// and no compaction ends it.
//
// **Thread safety**: every function from any thread; Start() and Stop() once each.
//
// Invariants:
//  1. The leader's key is created only where there is none. Each leadership has a new key, so its
//  create
//     revision names it.
//  2. Leads() is false from nine tenths of the lease after the last extension that etcd confirmed
//  was *sent*,
//     by a clock that also counts suspended time. etcd ends the lease later than that.
//  3. A former leader removes its key only by its create revision.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_LEADER_ELECTION_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_LEADER_ELECTION_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/base/clock.h"
#include "server/coordinator/etcd/etcd_client.h"
#include "server/coordinator/etcd/lease_watch.h"

namespace verbena::server {

class LeaderElection {
 public:
  // A successor that is not elected in that time has died. By default etcd grants no shorter lease.
  static constexpr int64_t kSuccessorSeconds = 2;

  // Of this coordinator, and what it knows of the others.
  struct Seat {
    int64_t create_revision = 0;  // of our key; 0: this coordinator does not lead
    std::string leader;           // address; empty: not known
    absl::Status problem;         // not OK: etcd does not answer
  };

  // `clock` outlives it. `changed` is called by its thread after each change of seat(). Errors of
  // EtcdClient::Create().
  static absl::StatusOr<std::unique_ptr<LeaderElection>> Create(const EtcdOptions& options,
                                                                const Clock* clock,
                                                                std::function<void()> changed);
  ~LeaderElection();

  // `address`: ours, as callers reach it.
  void Start(const std::string& address);
  // Lets another coordinator lead at once.
  void Stop();

  Seat seat() const;
  bool Leads(int64_t create_revision) const;
  // When that leadership ends by this process's clock; 0: it has ended.
  int64_t UntilNanos(int64_t create_revision) const;
  // Gives up that leadership: Leads() is false from now on. This coordinator is no candidate for
  // `pause`.
  void Resign(int64_t create_revision, absl::Duration pause);
  // As Resign(), to the coordinator at `successor` alone for kSuccessorSeconds.
  void HandOver(int64_t create_revision, const std::string& successor);
  uint64_t failed_attempts() const;  // of calls of etcd

 private:
  LeaderElection(std::unique_ptr<EtcdClient> client, const Clock* clock,
                 std::function<void()> changed);

  void Run();
  // The time to wait before the next step.
  absl::Duration Step();
  absl::Duration Keep();
  absl::Duration Campaign();
  absl::Duration Candidate();
  // Another one's lease, after a read with that header: revokes it once it has ended.
  absl::Duration Watch(int64_t lease, const etcdserverpb::ResponseHeader& header);
  void Lead(int64_t create_revision, int64_t sent_ns);
  void Follow(const std::string& leader, const absl::Status& problem);
  // Removes our own key, if it has this create revision. Another coordinator than `successor`, if
  // there is one, does not lead next.
  absl::Status RemoveKey(int64_t create_revision, const std::string& successor = "");
  // NOT_FOUND: it is gone, or another's.
  absl::Status CheckKey(int64_t create_revision);
  int64_t EndOfLease(int64_t sent_ns) const;
  std::string Key() const { return client_->options().prefix + "leader"; }
  std::string SuccessorKey() const { return client_->options().prefix + "successor"; }

  const std::unique_ptr<EtcdClient> client_;  // of the thread
  const Clock* const clock_;
  const std::function<void()> changed_;
  std::string address_;
  std::thread thread_;

  // Of the thread.
  int64_t lease_ = 0;                // of our key, or of one that may have been created; 0: none
  int64_t lease_s_ = 0;              // its time
  int64_t lease_sent_ns_ = 0;        // when it was requested
  std::set<int64_t> former_leases_;  // of our keys that may still be there
  LeaseWatch watch_;                 // of the leader's lease

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  // Guarded by mutex_.
  bool stopping_ = false;
  Seat seat_;
  int64_t until_ns_ = 0;           // of the leadership of seat_
  int64_t resigned_ = 0;           // the create revision that is to be given up
  std::string successor_;          // to this coordinator; empty: to any
  int64_t candidate_from_ns_ = 0;  // no candidate before
  uint64_t failed_attempts_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_LEADER_ELECTION_H_
