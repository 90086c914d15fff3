// Failpoints of the coordinator and of membership.
//
// **Thread safety**: written only while no coordinator and no member runs.
#ifndef VERBENA_SERVER_COORDINATOR_FAILPOINTS_H_
#define VERBENA_SERVER_COORDINATOR_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::server {

struct Failpoints {
  Failpoint count_pauses;       // leases run on while the coordinator does not
  Failpoint make_late_changes;  // of configurations, however long its requester has been dead
  Failpoint hand_over_unheard;  // by a leaving server, to a follower that may be dead
  Failpoint believe_workers;    // a worker's word alone proves that the state is too old
  Failpoint reuse_ids;          // each term gives out the ids that follow in the loaded state
  // changes are made before servers have confirmed that it is new
  Failpoint trusts_loaded_state;
  Failpoint wait_for_polls;   // a server's view comes by a poll alone, which may be lost
  Failpoint take_uncompared;  // a server requests a view without the newest state that it has seen
  Failpoint drop_by_name;     // a drop by id drops the table with the same name
  Failpoint answer_unsaved;   // calls of a group are answered before it is saved
  Failpoint replace_at_once;  // a table is dropped before its replacement is loaded
  Failpoint join_open_step;   // a worker that joins a run counts in a step that is perhaps open
  Failpoint reuse_ranks;      // its rank's steps are not over when a worker gets it
  Failpoint keep_ranks;       // a rank beyond the expected ones is never free again
  Failpoint drop_used;        // a table is dropped under workers that joined meanwhile
  Failpoint reuse_generations;   // a job that has ended begins with its first generation again
  Failpoint answer_all_polls;    // heartbeats wait until all polls are answered
  Failpoint cold_tier_anywhere;  // a table's rows go to a disk that a server does not have
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::server
#endif

#endif  // VERBENA_SERVER_COORDINATOR_FAILPOINTS_H_
