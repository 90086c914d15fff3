// Restores tables of a cluster from a checkpoint: requests their creation, has every shard load its
// part, and requests that they are served when all parts are loaded.
//
// A state machine outside of the servers, like the one that makes checkpoints.
//
//     making    --(every table is made, to be restored)-->  viewing
//     viewing   --(the view has them)-->  beginning  --(all shards have begun)-->  loading
//     viewing   --(one of them has lost a partition)-->  making: it is dropped and made anew
//     loading   --(all parts are loaded)-->  opening  --(they are served)-->  done
//     opening   --(no answer)-->  pausing, opening again
//     viewing, beginning, loading  --(a partition has moved, ...)-->  pausing, viewing again
//     any  --(another error)-->  dropping the tables that were made; then done
//
// **Thread safety**: one owner thread. Waits for the disk while it is made: the manifest is read.
//
// Invariants:
//  1. A table is served only after all of it is loaded and every checksum was right. Shards begin
//     with views of their own: each lists the partitions that it has loaded, and together they must
//     have all.
//  2. After an error no table that this restorer made is left. If it cannot drop a table itself (it
//     has died, or cannot reach the coordinator), the coordinator drops the table, because its
//     lease is not renewed. If it is not known whether the tables are served, none is dropped, and
//     the error states that.
//  3. It drops a table by id, and only while the table is being restored: never another table that
//     has the name meanwhile.
//  4. A table that is replaced stays, and is served, until all of them are loaded; the same change
//     of the view drops it and serves the new one.
#ifndef VERBENA_SERVER_CHECKPOINT_RESTORE_TASK_H_
#define VERBENA_SERVER_CHECKPOINT_RESTORE_TASK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/shard_calls.h"
#include "verbena/v1/checkpoint.pb.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

struct RestoreTaskOptions {
  std::string coordinator = {};          // host:port
  std::string path = {};                 // of a committed checkpoint; the same for every server
  std::string job = {};                  // empty: the checkpoint's
  std::vector<std::string> tables = {};  // empty: all
  std::map<std::string, std::string> renamed = {};  // table -> its new name
  bool state = true;                                // the optimizer's, too
  bool replace = false;       // tables of these names are dropped when all of this is loaded
  bool drop_first = false;    // they are dropped before: where there is no memory for both
  bool only_unused = false;   // neither while workers of their job are there
  std::string restorer = {};  // its name in refusals to others, see CreateTableRequest
  uint64_t seed = 0;          // of ids; 0: from the system's random source
  int tries = 5;
};

struct RestoreTaskProgress {
  const char* doing = "";
  uint64_t read_bytes = 0;  // by the shard that is least far
  uint64_t total_bytes = 0;
};

class RestoreTask {
 public:
  // Reads the manifest. All outlive it. NOT_FOUND, DATA_LOSS, FAILED_PRECONDITION: of the
  // checkpoint. INVALID_ARGUMENT: of the options.
  static absl::StatusOr<std::unique_ptr<RestoreTask>> Make(RestoreTaskOptions options,
                                                           const Clock* clock,
                                                           ControlChannel* control,
                                                           checkpoint::Disk* disk);
  ~RestoreTask();

  bool RunOnce();
  int64_t NextTimerNanos() const;
  // Ends with CANCELLED, unless the tables are served already.
  void Cancel();

  bool done() const { return state_ == State::kDone; }
  const absl::Status& status() const { return status_; }
  const v1::CheckpointManifest& manifest() const { return reader_.manifest(); }
  // Names that the restored tables have now.
  std::vector<std::string> tables() const;
  RestoreTaskProgress progress() const;

 private:
  enum class State : uint8_t {
    kNew,
    kMaking,
    kViewing,
    kBeginning,
    kLoading,
    kPausing,
    kOpening,
    kDropping,
    kDone
  };
  struct Table {
    std::string name;  // in the checkpoint
    v1::TableSpec spec;
    uint64_t steps = 0, applies = 0;
    uint32_t id = 0;      // 0: not made yet
    std::string make_id;  // of the request that is to make it
  };
  struct Part {
    ShardAddress at;
    bool begun = false, done = false;
    uint64_t read_bytes = 0;
    uint64_t groups = 0;
    std::vector<uint32_t> checked, partitions;
  };

  RestoreTask(RestoreTaskOptions options, const Clock* clock, ControlChannel* control,
              checkpoint::CheckpointReader reader);
  absl::Status ChooseTables();
  template <typename Response, typename Request, typename F>
  void Send(const std::string& address, const char* method, const Request& request,
            int64_t timeout_ms, F on_answer);
  void MakeNext();
  void OnMade(size_t table, const absl::StatusOr<v1::CreateTableResponse>& response);
  void DropServedThenMake(size_t table);
  void Renew();
  bool ForgetLost(const v1::ClusterView& view);
  void AskView();
  void OnView(absl::StatusOr<v1::GetViewResponse> response);
  void Begin(size_t part);
  void Ask(size_t part);
  absl::Status CheckParts() const;
  void Open();
  // Retries from the view, if that may help; otherwise ends.
  void Fail(const absl::Status& status);
  void FailChange(const absl::Status& status);
  bool MayRepeat(const absl::Status& status);
  void GoOn();
  void Pause();
  void End(absl::Status status);
  // Drops the tables in drops_; then makes tables or is done.
  void DropNext();

  const RestoreTaskOptions options_;
  const Clock* const clock_;
  ControlChannel& control_;
  const checkpoint::CheckpointReader reader_;
  State state_ = State::kNew;
  absl::Status status_;
  int tries_ = 0;
  int64_t resume_ns_ = 0;  // of kPausing
  RandomIds ids_;
  uint64_t call_ = 0;  // grows with each try: answers of an earlier one count no more
  uint64_t restore_ = 0;
  std::string open_id_;           // of the request that has them served, once it may have been sent
  int64_t renew_ns_ = INT64_MAX;  // when the coordinator is asked again to keep the tables
  int64_t renew_each_ns_ = 0;
  std::vector<uint32_t> drops_;  // ids that this has made and that are not to be
  std::vector<Table> tables_;
  std::vector<Part> parts_;
  uint32_t partitions_ = 0;  // of the cluster
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_RESTORE_TASK_H_
