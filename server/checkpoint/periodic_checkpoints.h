// Checkpoints every job that has tables, every so often or every so many steps, and
// removes old checkpoints: beside the coordinator, in its process.
//
// A job that nobody can have changed since its last checkpoint is not saved again.
//
// Each job has a directory of its own below the root, by its name. A checkpoint that fails is
// reported, and made again when the next is due.
//
// **Thread safety**: one owner thread; statistics() from any thread.
#ifndef VERBENA_SERVER_CHECKPOINT_PERIODIC_CHECKPOINTS_H_
#define VERBENA_SERVER_CHECKPOINT_PERIODIC_CHECKPOINTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/checkpoint_task.h"
#include "server/checkpoint/failing_checkpoints.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/idle_jobs.h"
#include "server/checkpoint/step_watch.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

struct PeriodicCheckpointsOptions {
  CheckpointTaskOptions saver =
      {};                // of each save; its root is the one below which jobs have theirs
  int64_t every_ns = 0;  // from the beginning of one to the beginning of the next; 0: not by time
  uint64_t every_steps = 0;  // a job also when it comes past a multiple of this since its last
                             // checkpoint; 0: not by steps
  checkpoint::Retention retention = {};
  FailingCheckpoints* failing = nullptr;  // outlives the saves; null: nobody asks
  // Whether checkpoints are this process's task now: one of several coordinators leads. A
  // checkpoint that was due before it became so is made at once. Empty: always.
  std::function<bool()> active = {};
  // `failed`: something could not be made or removed.
  std::function<void(bool failed, const std::string&)> log = {};
};

struct PeriodicCheckpointsStatistics {
  uint64_t saved = 0, failed = 0;
  uint64_t unchanged = 0;  // saves that were due, and not made: nothing had changed
  // The last checkpoint.
  int64_t at_ns = 0;  // by the clock; when it was committed, or found to have all there is
  int64_t duration_ns = 0;
  uint64_t bytes = 0;
};

// The name of the directory of a job's checkpoints, another one for each job: the job's name with
// `%`, `/` and a dot in front as %XX, as in a URL. One that would be longer than a file's name may
// be ends with a checksum instead.
std::string CheckpointDirectoryOf(const std::string& job);

class PeriodicCheckpoints {
 public:
  // All outlive it.
  PeriodicCheckpoints(PeriodicCheckpointsOptions options, const Clock* clock,
                      ControlChannel* control, checkpoint::Disk* disk);
  ~PeriodicCheckpoints();

  // Checkpoints every job once more, and nothing after that; `done` is called when it is
  // over.
  void Finish(std::function<void()> done);

  bool RunOnce();
  int64_t NextTimerNanos() const;
  PeriodicCheckpointsStatistics statistics() const;
  // Jobs that something is kept of. For tests.
  size_t jobs_kept() const { return std::max(steps_.size(), idle_.size()); }

 private:
  // Puts off all that is due, if this is not active.
  bool Inactive();
  void AskJobs();
  void OnSteps(const v1::ClusterView* view, const StepWatch::Steps& steps);
  // Forgets all other jobs.
  void KeepOnly(const std::set<std::string>& jobs);
  void OnJobs(absl::StatusOr<v1::GetViewResponse> response);
  void BeginNext();
  int Waits() const;  // CheckpointTaskOptions::waits of the job that is next
  void Ended();
  // Whether the job that is next has to be saved.
  bool HasChanged();

  const PeriodicCheckpointsOptions options_;
  const Clock* const clock_;
  ControlChannel& control_;
  checkpoint::Disk* const disk_;
  StepWatch watch_;
  int64_t next_ns_;         // of all jobs, by time
  int64_t next_look_ns_;    // how far jobs are
  StepWatch::Steps steps_;  // when they were last looked at or saved
  bool asking_ = false;
  std::function<void()> finished_;  // set: the last time
  // Still to be saved this time, and their states by the view (IdleJobs); empty: not known.
  std::deque<std::pair<std::string, std::string>> jobs_;
  // The last time: jobs whose training stands inside a step, saved after all others.
  std::deque<std::pair<std::string, std::string>> late_;
  std::set<std::string> tried_;  // the last time: those that were in late_
  bool many_jobs_ = false;       // there are others that have tables
  IdleJobs idle_;
  std::unique_ptr<CheckpointTask> checkpoint_task_;  // null: none runs
  std::string job_, state_;                          // that it saves
  uint64_t begun_ = 0;                               // checkpoints begun
  int64_t began_ns_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  mutable std::mutex mutex_;
  PeriodicCheckpointsStatistics statistics_;  // guarded by mutex_
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_PERIODIC_CHECKPOINTS_H_
