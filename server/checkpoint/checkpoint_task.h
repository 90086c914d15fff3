// Makes a checkpoint of a job's tables while the cluster trains: has every shard write its part,
// and commits when all parts are written.
//
// A state machine outside of the servers: in the operator's program, or in the coordinator's
// process. When it dies the shards give up by themselves, and the next checkpoint removes the
// written files.
//
//     viewing  --(the view is there)-->  looking, twice: at which step are sync tables?
//     looking  --(all shards have replied)-->  beginning, at steps of step_selection.h
//     beginning  --(all shards have begun)-->  writing
//     beginning  --(a shard is past the step)-->  ending, and beginning again at a later step
//     writing  --(training has stopped before the step)-->  ending, and looking again; the second
//         time, if the job has no workers: done, with an error
//     writing  --(all parts are written)-->  committing: the manifest; then ending, done
//     any  --(an error)-->  ending; once more from the beginning if another try may do better
//
// **Thread safety**: one owner thread. Waits for the disk: begins, commits and leftovers.
//
// Invariants:
//  1. A committed checkpoint has every partition of every table once, for a sync table at one step.
//  2. After done() with an error nothing was committed, unless the error states otherwise.
#ifndef VERBENA_SERVER_CHECKPOINT_CHECKPOINT_TASK_H_
#define VERBENA_SERVER_CHECKPOINT_CHECKPOINT_TASK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/checkpoint_base.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/shard_calls.h"
#include "server/checkpoint/step_selection.h"
#include "verbena/v1/checkpoint.pb.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

struct CheckpointTaskOptions {
  std::string coordinator;               // host:port
  std::string root;                      // of checkpoints; the same directory for every server
  std::string job = {};                  // empty: the only one that has tables
  std::vector<std::string> tables = {};  // empty: all of the job
  uint64_t memory_bytes = 0;             // of each shard, beside the tables; 0: its default
  uint64_t bytes_per_second = 0;         // of all shards together; 0: as fast as it goes
  uint64_t file_bytes = 0;               // 0: the format's default
  // More than 1: embedding tables are written incrementally, with only the rows that have changed
  // since the newest checkpoint of the directory; each so many-th checkpoint is a full one. The
  // shards track changes with one bit a row.
  uint32_t full_every = 1;
  std::string written_by = {};             // for the manifest
  std::function<std::string()> time = {};  // for the manifest: RFC 3339
  uint64_t seed = 0;                       // of save ids; 0: from the system's random source
  int tries = 5;  // partitions that move, or training that is ahead of every step
  // It ends UNAVAILABLE when training has stood still inside a step for so many waits, of 3 s, 6 s,
  // 12 s and so on; 0: it waits as long as there are workers.
  int waits = 0;
};

struct CheckpointTaskProgress {
  const char* doing = "";  // for people
  uint64_t step = 0;       // the one that is saved; the farthest, where tables are at several
  uint64_t written_bytes = 0;
  uint64_t total_bytes = 0;  // of dense tables; rows come on top
  uint32_t waiting = 0;      // partitions that are not at the step yet
  std::string job;           // whose workers they wait for
  // Between two tries: why the last one failed, and how long until the next.
  std::string failure;
  int64_t pause_nanos = 0;
};

class CheckpointTask {
 public:
  // All outlive it.
  CheckpointTask(CheckpointTaskOptions options, const Clock* clock, ControlChannel* control,
                 checkpoint::Disk* disk);
  ~CheckpointTask();

  bool RunOnce();
  int64_t NextTimerNanos() const;
  // Ends with CANCELLED, unless it is committing.
  void Cancel();

  bool done() const { return state_ == State::kDone; }
  const absl::Status& status() const { return status_; }
  // When done and OK.
  const std::string& name() const { return name_; }
  const v1::CheckpointManifest& manifest() const { return manifest_; }
  CheckpointTaskProgress progress() const;

 private:
  enum class State : uint8_t { kNew, kViewing, kBeginning, kWriting, kEnding, kPausing, kDone };
  struct Part {
    ShardAddress at;
    bool begun = false;   // or may have: it needs the call that ends it
    bool asking = false;  // a call is in flight
    bool done = false;
    v1::WaitCheckpointResponse reply;
  };

  void AskView();
  void OnView(absl::StatusOr<v1::GetViewResponse> response);
  absl::Status ChooseJob();
  absl::Status ChooseTables();
  absl::Status LockDirectory();
  absl::Status BeginDirectory();
  // Asks all shards to begin; or, before the steps are chosen, for their steps.
  void Begin();
  void OnBegun(size_t part, absl::StatusOr<v1::BeginCheckpointResponse> response);
  void Ask(size_t part);
  void OnWaited(size_t part, absl::StatusOr<v1::WaitCheckpointResponse> response);
  // Whether training has stopped before a step that this waits for.
  bool StandsStill();
  void OnStandsStill();
  absl::Status Commit();
  v1::CheckpointManifest Heading() const;
  absl::Status FillManifest();
  absl::Status FillTable(size_t position);
  // Ends the parts; then pauses and tries again if `again`, or is done.
  void End(absl::Status status, bool again);
  void OnEnded(size_t part);
  void Finish();
  template <typename Response, typename Request>
  void Send(size_t part, const char* method, const Request& request, int64_t timeout_ms,
            void (CheckpointTask::*on_answer)(size_t, absl::StatusOr<Response>));

  const CheckpointTaskOptions options_;
  const Clock* const clock_;
  ControlChannel& control_;
  checkpoint::Disk* const disk_;

  State state_ = State::kNew;
  absl::Status status_;
  bool again_ = false;
  bool cancelled_ = false;
  int tries_ = 0;
  int64_t began_ns_ = 0;
  int64_t resume_ns_ = 0;  // of kPausing
  RandomIds ids_;
  uint64_t call_ = 0;  // grows with each try: answers of an earlier one count no more
  uint64_t save_ = 0;
  StepChoice choice_;
  std::vector<uint64_t> newest_;  // for each table, the newest step that a shard reported
  std::vector<bool> open_;        // for each table, whether a shard reported an open step
  bool too_late_ = false;
  CheckpointTaskProgress still_;  // as it is since then
  int64_t still_since_ns_ = 0;
  v1::ClusterView view_;
  std::string job_;
  uint32_t generation_ = 0;  // the run of the job by whose steps choice_ goes
  std::vector<v1::Table> tables_;
  std::vector<Part> parts_;
  std::unique_ptr<checkpoint::CheckpointDirectory> directory_;
  std::string path_;  // of the checkpoint that is being made
  std::optional<CheckpointBaseOf> base_;
  std::string name_;
  v1::CheckpointManifest manifest_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_CHECKPOINT_TASK_H_
