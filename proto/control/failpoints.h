// Failpoints of cluster_history.h.
//
// **Thread safety**: written only while no coordinator and no member runs.
#ifndef VERBENA_PROTO_CONTROL_FAILPOINTS_H_
#define VERBENA_PROTO_CONTROL_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::history {

struct Failpoints {
  Failpoint one_history;        // every state continues every other one
  Failpoint forgets_terms;      // a coordinator compares using only the terms that its view
                                // lists
  Failpoint compare_revisions;  // a higher revision comes after a lower one of any term
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::history
#endif

#endif  // VERBENA_PROTO_CONTROL_FAILPOINTS_H_
