// Deliberate faults, switched on by tests to show that their checks find them.
//
// **Thread safety**: written only where no engine runs.
#ifndef VERBENA_SHARD_PLANTED_BUGS_H_
#define VERBENA_SHARD_PLANTED_BUGS_H_

namespace verbena::shard {

struct PlantedBugs {
  bool skip_dedupe = false;          // what was applied is applied again when it comes again
  bool settle_refused = false;       // a refused async push uses up its sequence
  bool acknowledge_early = false;    // a follower's answer is not waited for
  bool ignore_epoch = false;         // whoever has a partition's data takes requests for it
  bool read_without_lease = false;   // a primary reads for workers though its lease is over
  bool forget_parked = false;        // what is parked is not answered when its partition moves
  bool forget_changed_rows = false;  // a committed save forgets the rows that changed during it
  bool save_what_changes = false;    // an apply keeps nothing for a save that has not written it
  bool forget_cold_changes = false;  // a row that changes while it is written counts as written
  bool replicate_from_slot = false;  // a copy is sent what is in the worker's slot by then
  bool unbounded_log = false;        // applies do not wait for the log; catch-up waits for it
  bool unbounded_notes = false;      // what views change is added to the log whatever is in it
  bool forget_unapplied = false;     // a job that begins anew forgets what it could not apply
  bool skip_given_lease = false;     // a learner that becomes the primary forgets the lease it gave
  bool skip_next_table = false;    // a learner is not sent chunks of the first table made after it
  bool expire_other_jobs = false;  // who is no member of a table's job is a member of none
  bool pull_early = false;         // a pull is answered before the push that it names is applied
  bool answer_unapplied = false;   // a push that a learner is sent is answered before it is applied
  bool restart_windows = false;    // a restore that had to wait loads all of its rows again
  bool end_before_notes = false;   // the end of a restored slice passes what is noted for its copy
  bool forget_inherited = false;   // a copy that becomes the primary during a restore has nothing
  bool evict_named = false;        // a sweep drops rows that its own push or step names
  bool evict_alike = false;        // of rows with the same stamp all go as soon as one does
  bool count_unnamed = false;      // rows that no push or step has named count, though all go
  // Rows of an apply that waits are the latest of all when a sweep is decided.
  bool waiting_rows_are_latest = false;
  bool restore_as_next = false;     // restored rows have the stamp of the next apply
  bool rows_never_come = false;     // rows of a table made or reset under a learner stay "to come"
  bool hurry_audit = false;         // more of the audit goes to a follower that has not answered it
  bool lost_by_old_view = false;    // a view that is older than the caller's says what is lost
  bool drop_the_busy = false;       // a replica without room for now is dropped after a lease
  bool refuse_replicas = false;     // a fault: replicas have no room for any record
  bool lose_what_is_reset = false;  // a loss that ends with the restore is one of the restore
  bool keep_refused_sweep = false;  // a sweep for a push that was refused is the next push's
  bool cursor_before_apply = false;  // a learner is sent a row without an apply it was told before
  bool forget_new_rows = false;  // a learner is not told to make rows that the cursor leaves out
  bool chase_new_rows = false;   // the cursor sends rows that pushes make meanwhile
  bool announce_late = false;    // a slice that grows waits for its turn to be sent to a learner
  bool skip_proof = false;       // a learner is admitted whatever it has
  bool prove_once = false;       // it is not compared again before it is admitted
  bool forget_proved = false;    // rows made after the first comparison stay "to come"
  bool keep_lost = false;    // a copy that missed that its partition was lost and reset keeps it
  bool forget_owed = false;  // what a lane that died held for a sync step is not waited for
  // What a new run of a job applies before the follower has it is read at once.
  bool read_unacknowledged = false;
  // A follower that learns of a run when it becomes primary makes the steps again that it has of
  // it.
  bool reset_promoted = false;
  bool keep_retired = false;      // copies know of each worker that has pushed in this run
  bool ignore_copy_room = false;  // rows are made that a follower has no room for
  bool refuse_told_rows = false;  // an apply that a follower was told waits for the job's limit
  bool pass_early = false;        // a rank that has ended the step before this one is passed
};

// All false outside tests.
inline PlantedBugs& planted_bugs() {
  static PlantedBugs bugs;
  return bugs;
}

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_PLANTED_BUGS_H_
