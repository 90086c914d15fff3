// Failpoints of the client: deliberate bugs that tests enable to show that their checks detect
// them.
//
// **Thread safety**: written only while no client runs.
#ifndef VERBENA_CLIENT_CORE_PLANTED_BUGS_H_
#define VERBENA_CLIENT_CORE_PLANTED_BUGS_H_

#include "proto/failpoint.h"

namespace verbena::client {

struct PlantedBugs {
  Failpoint learn_losses_late;    // a table that is first used after a loss waits for another view
  Failpoint keep_norm_steps;      // norm steps of removed tables count for the tables that replace
                                  // them
  Failpoint awaits_before_pulls;  // on small lanes unanswered awaits block pulls
};

// All false outside tests.
inline PlantedBugs& planted_bugs() {
  static PlantedBugs bugs;
  return bugs;
}

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PLANTED_BUGS_H_
