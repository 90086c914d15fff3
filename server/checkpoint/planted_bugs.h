// Failpoints that tests switch on to show that their checks find these faults.
//
// **Thread safety**: written only where nobody uses checkpoints.
#ifndef VERBENA_SERVER_CHECKPOINT_PLANTED_BUGS_H_
#define VERBENA_SERVER_CHECKPOINT_PLANTED_BUGS_H_

namespace verbena::checkpoint {

struct PlantedBugs {
  bool compact_oldest = false;    // a compacted checkpoint has the rows of its chain's oldest alone
  bool prune_bases = false;       // the base of a kept checkpoint is removed
  bool prune_unread = false;      // the same of one whose manifest cannot be read for a while
  bool merge_key_by_key = false;  // a partition that was saved whole does not replace older rows
  bool read_unverified = false;   // the checksums of blocks that are used are not compared
  bool commit_unsynced = false;   // files of a checkpoint that is committed are not durable
  bool forget_moved = false;      // a table is served of which no shard has loaded a partition
  bool reuse_attempts = false;    // an attempt may have the directory name of an abandoned one
  bool keep_former_steps = false;  // a save waits for steps that the job had before its restart
  // a slow table must reach the same number of steps as the fastest one
  bool save_at_one_pace = false;
  bool reload_unread = false;  // a shard waits for a window that it could not read to be loaded
  bool forget_former_runs = false;  // a run that starts over removes the former run's results
  bool share_directories = false;   // jobs "a/b" and "a_b" save into one directory
};

// All false outside tests.
inline PlantedBugs& planted_bugs() {
  static PlantedBugs bugs;
  return bugs;
}

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_PLANTED_BUGS_H_
