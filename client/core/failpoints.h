// Failpoints of the client.
//
// **Thread safety**: written only while no client runs.
#ifndef VERBENA_CLIENT_CORE_FAILPOINTS_H_
#define VERBENA_CLIENT_CORE_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::client {

struct Failpoints {
  Failpoint release_buffer_at_deadline;  // releases a buffer without closing the lane
  Failpoint heartbeats_need_owner;       // no heartbeats while the client's owner is in a long call
  Failpoint refusals_are_final;          // a temporary refusal of memory by a transport ends the
                                         // call
  Failpoint keep_patience;        // a sleeping client keeps its promise to wait for the last reply
                                  // when another operation starts
  Failpoint trust_late_grants;    // a lease counts as granted when its response is handled
  Failpoint hold_last_buffer;     // keeps a buffer for a record that waits behind others in its
                                  // queue
  Failpoint norm_of_first_table;  // a worker sends the first table's norm as that of all tables
  Failpoint learn_losses_late;    // a table that is first used after a loss waits for another view
  Failpoint keep_norm_steps;      // norm steps of removed tables count for the tables that replace
                                  // them
  Failpoint keep_ended_pulls;     // pulls of ended calls keep staging that other records wait for
  Failpoint hold_no_steps;        // a worker goes on with steps in which others are to join
  Failpoint awaits_before_pulls;  // on small lanes unanswered awaits block pulls
  Failpoint count_committed_pushes;  // an end-step after a failover counts pushes of chunks that
                                     // were committed before it
  Failpoint count_no_pushes_again;   // an end-step that is sent again counts no pushes
  Failpoint take_older_version;      // an observer accepts an older version than it has read
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::client
#endif

#endif  // VERBENA_CLIENT_CORE_FAILPOINTS_H_
