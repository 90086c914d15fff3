// Failpoints that tests switch on to show that their checks find these faults.
//
// **Thread safety**: written only while no coordinator and no member runs.
#ifndef VERBENA_SERVER_COORDINATOR_PLANTED_BUGS_H_
#define VERBENA_SERVER_COORDINATOR_PLANTED_BUGS_H_

namespace verbena::server {

struct CoordinatorPlantedBugs {
  bool count_pauses = false;       // leases run on while the coordinator does not
  bool make_late_changes = false;  // of configurations, however long its requester has been dead
  bool hand_over_unheard = false;  // by a leaving server, to a follower that may be dead
  bool believe_workers = false;    // a worker's word alone proves that the state is too old
  bool reuse_ids = false;          // each term gives out the ids that follow in the loaded state
  // changes are made before servers have confirmed that it is new
  bool trusts_loaded_state = false;
  bool wait_for_polls = false;  // a server's view comes by a poll alone, which may be lost
  bool take_uncompared =
      false;                  // a server requests a view without the newest state that it has seen
  bool drop_by_name = false;  // a drop by id drops the table with the same name
  bool replace_at_once = false;     // a table is dropped before its replacement is loaded
  bool keep_ranks = false;          // a rank beyond the expected ones is never free again
  bool drop_used = false;           // a table is dropped under workers that joined meanwhile
  bool reuse_generations = false;   // a job that has ended begins with its first generation again
  bool answer_all_polls = false;    // heartbeats wait until all polls are answered
  bool cold_tier_anywhere = false;  // a table's rows go to a disk that a server does not have
};

// All false outside tests.
inline CoordinatorPlantedBugs& coordinator_planted_bugs() {
  static CoordinatorPlantedBugs bugs;
  return bugs;
}

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_PLANTED_BUGS_H_
