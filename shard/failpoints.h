// Failpoints of the shard engine.
//
// **Thread safety**: written only where no engine runs.
#ifndef VERBENA_SHARD_FAILPOINTS_H_
#define VERBENA_SHARD_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::shard {

struct Failpoints {
  Failpoint skip_dedupe;         // a repeated contribution is applied again
  Failpoint settle_refused;      // a refused push takes the place of its empty one
  Failpoint acknowledge_early;   // a follower's answer is not waited for
  Failpoint ignore_admission;    // a step commits without workers that this shard does not know yet
  Failpoint ignore_epoch;        // a shard with a partition's data takes requests of any epoch
  Failpoint read_without_lease;  // a primary reads for workers though its lease is over
  Failpoint forget_deferred;     // deferred requests are not answered when a partition moves
  Failpoint forget_changed_rows;      // a committed save forgets the rows that changed during it
  Failpoint checkpoint_what_changes;  // an apply keeps no old content for a save in progress
  Failpoint forget_cold_changes;      // a row that changes while it is written counts as written
  Failpoint replicate_as_gradients;   // a replica takes new parameters for a gradient
  Failpoint replicate_no_state;       // a replica keeps its state where the primary's was assigned
  Failpoint replicate_from_slot;      // a replica is sent the later content of the worker's slot
  Failpoint unbounded_log;            // applies do not wait for the log; catch-up waits for it
  Failpoint unbounded_notes;          // changes of views are added to the log even if it is full
  Failpoint forget_unapplied;         // a job's new run forgets contributions that were not applied
  Failpoint skip_given_lease;   // a learner that becomes the primary forgets the lease it gave
  Failpoint skip_next_table;    // a learner is not sent chunks of the first table made after it
  Failpoint expire_other_jobs;  // a worker of another job than the table's is no member
  Failpoint pull_early;         // a pull is answered before the push that it names is applied
  Failpoint answer_unapplied;   // a push that a learner is sent is answered before it is applied
  Failpoint restart_windows;    // a restore that had to wait loads all of its rows again
  Failpoint load_unbounded;     // restored rows do not wait for room in the log
  Failpoint end_before_notes;   // the end of a restored slice passes changes noted for its copy
  Failpoint forget_inherited;   // a copy that becomes the primary during a restore has nothing
  Failpoint evict_named;        // a sweep drops rows that its own push or step names
  Failpoint evict_alike;        // of rows with the same stamp all go as soon as one does
  Failpoint count_unnamed;      // rows that no push or step has named count, though all go
  // Rows of an apply that waits are the latest of all when a sweep is decided.
  Failpoint waiting_rows_are_latest;
  Failpoint restore_as_next;      // restored rows have the stamp of the next apply
  Failpoint rows_never_come;      // rows of a table made or reset under a learner stay "to come"
  Failpoint hurry_audit;          // more of the audit goes to a follower that has not answered it
  Failpoint lost_by_old_view;     // a view that is older than the caller's decides about losses
  Failpoint drop_the_busy;        // a replica without room for now is dropped after a lease
  Failpoint refuse_replicas;      // a fault: replicas have no room for any record
  Failpoint lose_what_is_reset;   // a loss that ends with the restore is one of the restore
  Failpoint keep_refused_sweep;   // a sweep for a push that was refused is the next push's
  Failpoint cursor_before_apply;  // a learner is sent a row without an apply that it has already
  Failpoint forget_new_rows;      // a learner gets no record for new rows that the cursor skips
  Failpoint chase_new_rows;       // the cursor sends rows that pushes make meanwhile
  Failpoint announce_late;        // a slice that grows waits for its turn to be sent to a learner
  Failpoint skip_proof;           // a learner is admitted whatever it has
  Failpoint prove_once;           // it is not compared again before it is admitted
  Failpoint forget_proved;        // rows made after the first comparison stay "to come"
  Failpoint keep_lost;    // a copy that missed that its partition was lost and reset keeps it
  Failpoint forget_owed;  // contributions that a sync step held for a dead lane are not awaited
  // Applies of a job's new run are read before the follower has them.
  Failpoint read_unacknowledged;
  // A follower that learns of a run when it becomes primary makes the steps again that it has of
  // it.
  Failpoint reset_promoted;
  Failpoint keep_retired;         // copies know of each worker that has pushed in this run
  Failpoint ignore_copy_room;     // rows are made that a follower has no room for
  Failpoint all_or_nothing;       // a dense table is not served where its copies find no memory
  Failpoint wait_for_open_steps;  // a push without room at its follower waits for open steps, too
  Failpoint refuse_told_rows;     // an apply that its follower has waits for the job's limit
  Failpoint skip_tail;            // records of a new primary's tail count as applied
  Failpoint resume_unequal;       // a replica goes on under a new primary from another record
  Failpoint never_quiet;          // catch-up never makes applies wait
  Failpoint seal_open_steps;      // a planned move loses the pushes of a step that has begun
  Failpoint old_place_answers;    // a primary that has stopped for a planned move still reads
  Failpoint keep_optimizer;       // replicas are not sent changes of the optimizer's values
  Failpoint ignore_record_bytes;  // lanes have slots for the tables that their server knows alone
  Failpoint follower_answers_unapplied;  // a follower shows records that may be undone
  Failpoint follower_answers_stale;      // a follower shows content of any age
  Failpoint follower_ignores_floor;      // a follower shows an older version than the reader's
  Failpoint pass_early;                  // a rank that has ended the step before this one is passed
  Failpoint apply_abandoned;  // the open step of a run is applied when all its workers are gone
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::shard
#endif

#endif  // VERBENA_SHARD_FAILPOINTS_H_
