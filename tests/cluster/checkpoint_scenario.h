// A job that trains while its tables are saved and restored, and while servers, the coordinator,
// the programs that save and restore, and the disk fail, all from one seed. Checked all the while:
//
//  1. Whenever the disk can be looked at, also after it has lost unsynced data, every committed
//     checkpoint is whole. A sync table in it has exactly the checkpoint's steps; an async or ssp
//     table has each push that was acknowledged before the save began, none twice, and a prefix in
//     each partition.
//  2. A checkpoint that was reported complete is there until a newer one is.
//  3. A restored table has exactly the contents of the checkpoint; before, it cannot be read. The
//     last checkpoint is restored onto another cluster, too, with another number of servers.
//  4. With incremental saves all this holds for chains, too, also while they are compacted and old
//     checkpoints are removed: a compacted checkpoint has the contents of the chain, and the bases
//     of a kept checkpoint stay.
//  5. A save alone makes no call fail; training, saves and restores go on when the faults stop, and
//     after a save nothing is left of those before.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_CHECKPOINT_SCENARIO_H_
#define VERBENA_TESTS_CLUSTER_CHECKPOINT_SCENARIO_H_

#include <cstdint>
#include <string>
#include <vector>

namespace verbena::test {

struct CheckpointOptions {
  uint64_t seed = 1;
  int servers = 3;
  uint32_t replicas = 1;  // 2: most servers that die lose nothing
  bool faults = true;
  bool increments = false;  // most saves have changed rows only; and checkpoints are compacted
  bool syncs = true;  // false: the disk ignores those of files, and the scenario has to find that
};

struct CheckpointResult {
  std::vector<std::string> violations;                // empty when everything held
  int saved = 0, checkpoints_failed = 0;              // as the programs reported
  int checkpoint_tasks_died = 0, restorers_died = 0;  // at a random moment
  int checked = 0;                                    // checkpoints, wholly
  int uneven = 0;      // of these, with sync tables at different steps
  int increments = 0;  // of these, with changed rows only
  int compacted = 0, compactions_failed = 0;
  int pruned = 0;                         // checkpoints, from under others or not
  int restored = 0, restores_failed = 0;  // onto the cluster
  int pulls = 0, restored_pulls = 0;      // checked; the first ones of tables that were restored
  int servers_died = 0, disk_crashed = 0;
  int unanswered = 0;  // calls of workers that ended without an answer
  int expired = 0;     // runs that ended early: a worker's lease had ended
};

CheckpointResult RunCheckpointScenario(const CheckpointOptions& options);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_CHECKPOINT_SCENARIO_H_
