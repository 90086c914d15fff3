// Deliberate faults of the client, switched on by tests to show that their checks find them.
//
// **Thread safety**: written only where no client runs.
#ifndef VERBENA_CLIENT_CORE_PLANTED_BUGS_H_
#define VERBENA_CLIENT_CORE_PLANTED_BUGS_H_

namespace verbena::client {

struct PlantedBugs {
  bool learn_losses_late = false;  // a table that is first used after a loss waits for another view
  bool keep_norm_steps = false;  // steps of a norm's tables count for tables that take their place
  bool awaits_before_pulls = false;  // on small lanes awaits without an answer keep pulls back
};

// All false outside tests.
inline PlantedBugs& planted_bugs() {
  static PlantedBugs bugs;
  return bugs;
}

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_PLANTED_BUGS_H_
