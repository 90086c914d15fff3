// A server's membership: joins the cluster under its name, keeps the lease, follows the view.
//
//   state    | on                                            | to
//   ---------+-----------------------------------------------+---------
//   joining  | JoinServer OK                                 | joined
//            | INVALID_ARGUMENT                              | ended
//            | any other error: again after a backoff        | joining
//   joined   | Heartbeat NOT_FOUND or ABORTED, or a view in  | ended
//            | which a newer incarnation has our name, or    |
//            | one of another cluster or another history     |
//            | any other error: again; status() reports it   | joined
//   any      | Leave()                                       | leaving
//   leaving  | Leave answered, or its time is over           | ended
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. All repetitions of one join carry one request id: the coordinator gives one incarnation.
//  2. An incarnation that has ended is never used again: this server's data belongs to it.
//  3. A view is given only if it continues the one given before (proto/control/cluster_history.h).
//  A
//     coordinator with an older state is not followed: its view is ignored, the data is kept, and
//     heartbeats prove to it that the state is old.
#ifndef VERBENA_SERVER_MEMBERSHIP_H_
#define VERBENA_SERVER_MEMBERSHIP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control/control_channel.h"
#include "proto/control/view_difference.h"
#include "proto/protocol_version.h"
#include "rdma/base/clock.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

struct MembershipOptions {
  std::string coordinator;  // host:port
  std::string name;
  std::string address;  // ours, as peers reach it
  uint32_t shards = 1;
  std::string zone = {};      // replicas of a partition are kept in different ones
  bool cold_tier = false;     // its shards have a cold store
  uint64_t memory_bytes = 0;  // that its tables may take; 0: not known
  Protocols protocols = SpokenProtocols();
  std::string version = {};  // of the program, for people
  // Backoff jitter, request ids. 0: from the system's random source. Anything else is for tests:
  // two lives of a server with one seed would send one request id, and the second would be taken
  // for a repetition of the first and get its incarnation.
  uint64_t seed = 0;
};

class Membership {
 public:
  // Called inside RunOnce() with every new view (and our incarnation), first with the join's.
  using OnView = std::function<void(uint64_t incarnation, std::shared_ptr<const v1::ClusterView>)>;
  // `clock` and `control` outlive it; calls in flight when it is destroyed are forgotten.
  Membership(const MembershipOptions& options, const Clock* clock, ControlChannel* control,
             OnView on_view);
  ~Membership();

  // Runs the control channel too.
  bool RunOnce();
  int64_t NextTimerNanos() const;
  // The access rules of the last view that was given, which authorize calls to this server; null:
  // calls need no tokens. Changes only together with the view.
  std::shared_ptr<const v1::AccessRules> access() const;
  // The changes from the view given before to the view given last; empty: not known.
  std::shared_ptr<const ViewChangeList> changes() const;
  // How often a change was made in a copy of the view. For tests.
  uint64_t view_copies() const;
  // 0 before the first join.
  uint64_t incarnation() const;
  // UNAVAILABLE while the coordinator does not answer (with the time since when). After the end:
  // FAILED_PRECONDITION (another verbenad has our name, or the coordinator another cluster),
  // INVALID_ARGUMENT (refused), CANCELLED (we left).
  absl::Status status() const;
  // Error of the last call that failed; OK once one has succeeded since.
  const absl::Status& last_error() const;
  // Whether nothing will happen any more.
  bool ended() const;
  // Leaves; `done` runs inside RunOnce(). Only the first call counts.
  void Leave(absl::Duration timeout, std::function<void(absl::Status)> done);

 private:
  struct Impl;
  // Callbacks of calls in flight hold a weak reference.
  std::shared_ptr<Impl> impl_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_MEMBERSHIP_H_
