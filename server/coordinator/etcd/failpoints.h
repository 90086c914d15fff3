// Failpoints of the coordinator's state in etcd.
//
// **Thread safety**: written only while no store runs.
#ifndef VERBENA_SERVER_COORDINATOR_ETCD_FAILPOINTS_H_
#define VERBENA_SERVER_COORDINATOR_ETCD_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::etcd {

struct Failpoints {
  Failpoint
      two_leaders_write;  // a write does not depend on the leader's key and the state's revision
  Failpoint stale_read;   // a leader that has ended answers until its coordinator is gone
  Failpoint unknown_is_failed;   // a transaction without an answer counts as not applied
  Failpoint entries_before_all;  // a large save writes its entries before it is complete
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::etcd
#endif

#endif  // VERBENA_SERVER_COORDINATOR_ETCD_FAILPOINTS_H_
