// Whether the lease of a leader that is silent has ended, from answers of etcd to a standby.
//
// etcd removes the key of a lease that has ended up to half a second later, when it next looks for
// such leases. A standby that knows the end revokes the lease itself. etcd reports the time that is
// left in whole seconds, rounded down, and from its memory: a member that was cut off may answer
// with an old time.
//
//   state   | on                                               | to
//   --------+--------------------------------------------------+-------
//   lives   | an answer: less than one second is left          | ends
//   ends    | an answer: more; another lease, member or term;  | lives
//           | so late that an extension may have come and gone |
//           | one second after the first such answer, another  | ended
//           | one, and then a confirmation                     |
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. In `ended` the lease was not extended for its whole time. Its owner's leadership has ended by
//     the owner's clock, at nine tenths of it (LeaderElection, invariant 2).
//  2. All answers in between are of one member in one term of etcd. A read that the same member
//     confirms in that term, after the last of them, shows that they were not of an earlier leader.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_LEASE_WATCH_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_LEASE_WATCH_H_

#include <cstdint>

#include "etcd/etcd.pb.h"

namespace verbena::server {

class LeaseWatch {
 public:
  // Whether the time left is to be read at `now`. Another lease than before begins anew.
  bool Due(int64_t lease, int64_t now);
  // An answer about the lease of the last Due().
  void OnAnswer(const etcdserverpb::LeaseTimeToLiveResponse& answer, int64_t sent_ns,
                int64_t received_ns);
  // After a linearizable read: whether that lease has ended.
  bool Ended(int64_t lease, const etcdserverpb::ResponseHeader& confirmed) const;
  // Of the answer that may show the end; INT64_MAX: none is near.
  int64_t DecisiveNanos() const;

 private:
  int64_t lease_ = 0;
  int64_t next_ns_ = 0;  // of the next reading
  // Of the answers with less than a second left; 0: the last answer was another one.
  int64_t first_received_ns_ = 0, last_sent_ns_ = 0;
  uint64_t member_ = 0, term_ = 0;  // of these
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_LEASE_WATCH_H_
