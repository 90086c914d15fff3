// Failpoints of checkpoints.
//
// **Thread safety**: written only where nobody uses checkpoints.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_FAILPOINTS_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_FAILPOINTS_H_

#include "proto/base/failpoint.h"

#if VERBENA_FAILPOINTS
namespace verbena::checkpoint {

struct Failpoints {
  Failpoint compact_oldest;     // a compacted checkpoint has the rows of its chain's oldest alone
  Failpoint prune_bases;        // the base of a kept checkpoint is removed
  Failpoint prune_unread;       // the same of one whose manifest cannot be read for a while
  Failpoint merge_key_by_key;   // a partition that was saved whole does not replace older rows
  Failpoint read_unverified;    // the checksums of blocks that are used are not compared
  Failpoint commit_unsynced;    // files of a checkpoint that is committed are not durable
  Failpoint forget_moved;       // a table is served of which no shard has loaded a partition
  Failpoint reuse_attempts;     // an attempt may have the directory name of an abandoned one
  Failpoint keep_former_steps;  // a save waits for steps that the job had before its restart
  // a slow table must reach the same number of steps as the fastest one
  Failpoint checkpoint_at_one_pace;
  Failpoint
      checkpoint_inside_step;    // tables that stand within a step are saved before and after it
  Failpoint reload_unread;       // a shard waits for a window that it could not read to be loaded
  Failpoint forget_former_runs;  // a run that starts over removes the former run's results
  Failpoint share_directories;   // jobs "a/b" and "a_b" save into one directory
};

// All false unless a test sets them.
inline Failpoints& failpoints() {
  static Failpoints all;
  return all;
}

}  // namespace verbena::checkpoint
#endif

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_FAILPOINTS_H_
