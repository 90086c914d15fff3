// Failpoints of the client: deliberate bugs that tests enable to show that their checks detect
// them.
//
// **Thread safety**: written only while no client runs.
#ifndef VERBENA_CLIENT_CORE_FAILPOINTS_H_
#define VERBENA_CLIENT_CORE_FAILPOINTS_H_

#include "proto/base/failpoint.h"

namespace verbena::client {

struct Failpoints {
  Failpoint learn_losses_late;    // a table that is first used after a loss waits for another view
  Failpoint keep_norm_steps;      // norm steps of removed tables count for the tables that replace
                                  // them
  Failpoint awaits_before_pulls;  // on small lanes unanswered awaits block pulls
};

// All false outside tests.
inline Failpoints& failpoints() {
  static Failpoints bugs;
  return bugs;
}

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_FAILPOINTS_H_
