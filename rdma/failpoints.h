// Failpoints of lanes and of the sim transport.
//
// **Thread safety**: written only while no lane exists.
#ifndef VERBENA_RDMA_FAILPOINTS_H_
#define VERBENA_RDMA_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::rdma {

struct Failpoints {
  Failpoint act_on_send_completion;  // treats a sender's completion as arrival
  Failpoint reply_before_receive;    // sends a reply or credit before the receive is
                                     // reposted
  Failpoint replay_before_dead;      // resends records while their old lane is still alive
  Failpoint never_probe;             // a worker never probes a silent shard
  Failpoint trust_writes;            // waits forever for a write that does not complete
  Failpoint clock_stops_in_suspend;  // leases use a clock that excludes suspended time
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::rdma
#endif

#endif  // VERBENA_RDMA_FAILPOINTS_H_
