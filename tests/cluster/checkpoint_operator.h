// The operators of a checkpoint scenario: programs that save and restore one after the other, which
// may die at any moment, on a disk that fails; and the checks of the disk.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_CHECKPOINT_OPERATOR_H_
#define VERBENA_TESTS_CLUSTER_CHECKPOINT_OPERATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "proto/control/control_channel.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/restore_task.h"
#include "tests/cluster/checkpoint_worker.h"
#include "tests/server/checkpoint/sim_disk.h"

namespace verbena::test {

class CheckpointOperator {
 public:
  static constexpr char kRoot[] = "/checkpoints";

  CheckpointOperator(CheckpointState* state, checkpoint::test::SimDisk* disk)
      : state_(state), disk_(*disk) {}

  // Advances it; call between turns of the cluster.
  void Run();
  // A restore though nothing was lost.
  void RestoreSoon() { restore_wanted_ = true; }
  void StopFaults();
  // Since the faults stopped a save has succeeded, and the tables are there.
  bool proved();
  std::string Describe() const;

  bool has_checkpoint() const { return !reported_.empty(); }
  // Content of the newest checkpoint, which has been read. Null: there is none, or no disk.
  const CheckpointContent* Newest(std::string* path);

 private:
  void WatchTables();
  void LookAtDisk();
  void LookAtCheckpoint(const std::string& name, const std::string& checksum);
  void CheckNoLeftovers(const v1::CheckpointManifest& manifest);
  bool NeedsRestore();
  void StartCheckpoint();
  void PlantDiskFault();
  void RunCheckpointTask();
  void CheckpointEnded();
  void Compact();
  void PlantUpkeepFault();
  void Prune();
  void StartRestore();
  void RunRestoreTask();

  CheckpointState* const state_;
  checkpoint::test::SimDisk& disk_;
  std::unique_ptr<ControlChannel> checkpoint_task_channel_,
      restorer_channel_;  // outlive their users
  std::unique_ptr<server::CheckpointTask> checkpoint_task_;
  std::unique_ptr<server::RestoreTask> restorer_;
  int64_t checkpoint_task_dies_at_ = 0, restorer_dies_at_ = 0;
  int64_t next_checkpoint_ = 0, next_restore_ = 0, reboot_at_ = 0;
  bool restore_wanted_ = false;
  bool after_faults_ = false;  // the current save began when they had stopped
  bool proved_ = false;
  uint64_t actors_ = 0;                      // for seeds
  int restores_ = 0;                         // the last one that was begun
  const CheckpointContent* from_ = nullptr;  // the source of the restore
  uint64_t revision_ = 0;
  std::map<uint32_t, GroupCounts> least_;  // acknowledged when the last save began
  // The checkpoint that was compacted since then: new checkpoints have the same contents. Null:
  // none was.
  const CheckpointContent* compacts_ = nullptr;
  std::string reported_;  // the newest checkpoint that was reported complete
  // By name and checksum of the manifest: names that a crash took away are used again.
  std::map<std::pair<std::string, std::string>, CheckpointContent> known_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_CHECKPOINT_OPERATOR_H_
