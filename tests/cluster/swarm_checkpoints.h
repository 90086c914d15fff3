// Saves and restores of the swarm's tables: periodic saves, as beside a coordinator, and an
// operator that saves, restores, compacts and removes checkpoints. Each may die at any moment.
//
// Invariants, beside those of swarm_saved.h:
//  1. A save or restore fails only for a reason, and leaves the earlier checkpoints whole.
//  2. From the end of the faults on a save of every job succeeds within a bound of virtual time,
//     and so does a restore.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_CHECKPOINTS_H_
#define VERBENA_TESTS_CLUSTER_SWARM_CHECKPOINTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>

#include "proto/control/control_channel.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/periodic_checkpoints.h"
#include "server/checkpoint/restore_task.h"
#include "tests/cluster/swarm_checks.h"
#include "tests/cluster/swarm_saved.h"
#include "tests/cluster/swarm_world.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::test {

class SwarmCheckpoints {
 public:
  // Before the cluster is made, whose options get the disk.
  explicit SwarmCheckpoints(SwarmWorld* world);

  // Between turns of the cluster, after `checks`.
  void Run(const SwarmChecks& checks);
  void StopFaults();
  // Destroys the save and the restore in progress. To be called before the cluster is destroyed.
  void Stop();
  // Since the faults stopped every job with tables was saved, and something was restored.
  bool Proved(std::string* missing) const;

  checkpoint::test::SimDisk& disk() { return disk_; }
  // All checkpoints of this directory that the newest one does not need are removed in the next
  // turn.
  void PruneNext(const std::string& root) { prunes_next_ = root; }
  SwarmSaved& saved() { return saved_; }
  // How long a write to a file takes at least.
  int64_t slow_files_ns() const { return slow_files_ns_; }

 private:
  int64_t Between(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  size_t Pick(size_t count) {
    return static_cast<size_t>(Between(0, static_cast<int64_t>(count) - 1));
  }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  bool RestoresOften() const {
    return world_->has(SwarmFeature::kRestoreCrashes) || world_->has(SwarmFeature::kRestoredLosses);
  }
  bool faults() const { return world_->stage == SwarmStage::kFaults; }
  int64_t DrawDeath();
  std::unique_ptr<ControlChannel> NewChannel(const std::string& host);
  // Jobs with tables that can be saved.
  std::set<std::string> Jobs() const;
  std::string AnyRoot();

  void StartPeriodic();
  void RunPeriodic();
  void OnPeriodic(const std::string& line);
  void StartCheckpoint();
  // Draws whether the operator interrupts the save. `again`: the save follows an interrupted one of
  // the same job and directory.
  void DrawInterrupt(bool again);
  void RunOneCheckpoint();
  std::string AnyJob(const SavedTable& table);
  void StartRestore();
  void RunRestore();
  void DropLeftBehind();
  void Compact(const std::string& root);
  void Prune(const std::string& root, bool all_but_newest);
  void RunDisk();
  // Checks that a save or restore may end with this status.
  void Judge(const char* what, const absl::Status& status);

  SwarmWorld* const world_;
  std::mt19937_64 random_;      // its own: it changes no other draw of a seed
  std::mt19937_64 interrupts_;  // likewise
  checkpoint::test::SimDisk disk_;
  SwarmSaved saved_;
  std::unique_ptr<ControlChannel> operator_channel_;
  std::unique_ptr<ControlChannel> periodic_channel_, checkpoint_channel_, restore_channel_;
  std::unique_ptr<server::PeriodicCheckpoints> periodic_;
  checkpoint::Retention periodic_retention_;
  std::unique_ptr<server::CheckpointTask> checkpoint_task_;
  std::string checkpoint_root_, checkpoint_job_;
  bool checkpoint_proves_ = false;
  bool checkpoint_interrupted_ = false, checkpoint_again_ = false;
  int64_t interrupt_at_ = 0, slow_files_ns_ = 0;
  std::unique_ptr<server::RestoreTask> restorer_;
  std::shared_ptr<const SavedCheckpoint> restores_;
  bool restore_proves_ = false;
  bool removed_ = false;  // checkpoints, while the restore was in progress
  int64_t periodic_dies_at_ = 0, checkpoint_task_dies_at_ = 0, restorer_dies_at_ = 0;
  std::string prunes_next_;  // empty: nothing
  int64_t next_periodic_ = 0, next_checkpoint_ = 0, next_restore_ = 0, next_upkeep_ = 0;
  int64_t next_drop_ = 0, reboot_at_ = 0;
  uint64_t actors_ = 0;       // for seeds and names
  uint64_t compactions_ = 0;  // for seeds
  std::set<std::string> proved_jobs_;
  bool proved_restore_ = false;
  absl::Status last_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_CHECKPOINTS_H_
