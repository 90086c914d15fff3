// The restores of one shard: the file thread reads a checkpoint in windows, and this shard's part
// goes to the engine.
//
// A restore is
//     loading  --(the last window is loaded, all checksums are right)-->  finishing
//     finishing  --(the engine, and replicas, have everything)-->  finished
//     any  --(an error, or no call for too long)-->  failed
// The table is not served until the coordinator's view reports that all shards have finished.
//
// **Thread safety**: one owner thread, the shard's. `io` as for ShardCheckpoints.
//
// Invariants:
//  1. At most kWindows windows of a restore are read and not loaded.
#ifndef VERBENA_SERVER_CHECKPOINT_SHARD_RESTORES_H_
#define VERBENA_SERVER_CHECKPOINT_SHARD_RESTORES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/restore_reader.h"
#include "server/checkpoint/shard_checkpoints.h"
#include "server/executor/inbox.h"
#include "shard/engine.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

class ShardRestores {
 public:
  static constexpr uint32_t kWindows = 8;
  using Reply = absl::AnyInvocable<void(absl::StatusOr<v1::WaitRestoreResponse>)>;

  ShardRestores(ShardCheckpointsOptions options, const Clock* clock, Inbox* inbox);
  ~ShardRestores();

  absl::Status Begin(const v1::BeginRestoreRequest& request, const ShardCheckpoints::World& world);
  // The view has changed. A restore fails if its partitions have come or gone: the data read for
  // them are incomplete.
  void Follow(const ShardCheckpoints::World& world);
  // The reply may run at once, or in RunOnce().
  void Wait(const v1::WaitRestoreRequest& request, Reply reply);

  bool RunOnce();
  int64_t NextTimerNanos() const;

 private:
  struct Waiter {
    int64_t due_ns;
    Reply reply;
  };
  // State of the io thread.
  struct Source {
    RestoreRead wanted;
    std::unique_ptr<RestoreReader> reader;
  };
  struct Read {
    absl::Status status;
    bool end = false;
    uint64_t read_bytes = 0;
    RestoreWindow window;
    shard::RowsLoaded loaded;  // of the window
    // At the end.
    uint64_t groups = 0;
    std::vector<uint32_t> checked;
  };
  struct Restore {
    std::shared_ptr<shard::Engine> engine;
    std::shared_ptr<Source> source;
    std::vector<shard::RestoreRequest> tables;
    bool state = true;
    std::map<uint32_t, uint64_t> epochs;  // of the partitions that are ours
    uint32_t asked = 0;                   // windows that are being read
    std::deque<Read> windows;             // read, not loaded
    std::vector<RestoreWindow> spent;     // loaded: their memory is used again
    bool read_all = false, finished = false;
    int64_t retry_ns = 0;  // replicas lag behind: not before
    int64_t patience_ns = 0;
    int64_t gives_up_ns = 0;
    absl::Status status;
    uint64_t read_bytes = 0;
    uint64_t groups = 0;
    std::vector<uint32_t> checked;
    std::vector<Waiter> waiters;
  };

  std::map<uint32_t, uint64_t> EpochsOfOurs(const ShardCheckpoints::World& world) const;
  void Io(Inbox::Closure closure);
  void Ask(uint64_t id, Restore* restore);
  bool Load(Restore* restore, int64_t now);
  static void AtEnd(Restore* restore, Read* read);
  absl::Status LoadWindow(const Restore& restore, Read* read) const;
  bool Finish(Restore* restore, int64_t now);
  bool AnswerWaiters(Restore* restore, int64_t now);

  const ShardCheckpointsOptions options_;
  const Clock* const clock_;
  Inbox* const inbox_;
  std::map<uint64_t, Restore> restores_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_SHARD_RESTORES_H_
