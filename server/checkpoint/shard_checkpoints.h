// The checkpoints of one shard: takes pieces from the engine, has the file thread write them, and
// answers the calls of server/checkpoint/checkpoint_task.h.
//
// A save is
//     writing  --(all pieces are written)-->  finishing  --(files are durable)-->  finished
//     any  --(an error, or no call for too long)-->  failed
// and is forgotten when its caller ends it, or has not called for too long, once no piece is in
// flight.
//
// **Thread safety**: one owner thread, the shard's. `io` runs closures on one other thread, in
// order, and is stopped before this is destroyed.
//
// Invariants:
//  1. At most kPiecesOut pieces of a save wait to be written, so that memory stays bounded and a
//     slow disk delays only the save.
//  2. The memory of a piece is the engine's; it is released only after the writing thread is done
//     with it.
#ifndef VERBENA_SERVER_CHECKPOINT_SHARD_CHECKPOINTS_H_
#define VERBENA_SERVER_CHECKPOINT_SHARD_CHECKPOINTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/shard_writer.h"
#include "server/executor/inbox.h"
#include "server/nanoseconds.h"
#include "shard/engine.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

// The shortest time in ns for which a shard continues an operation without a call for it. Their
// callers poll all the time.
inline constexpr int64_t kLeastPatienceNanos = 1000 * kNanosPerMilli;

struct ShardCheckpointsOptions {
  uint32_t shard = 0;
  checkpoint::Disk* disk = nullptr;  // null: this shard saves nothing
  // Null: closures run at once.
  std::function<void(Inbox::Closure)> io;
  std::function<void(const std::string&)> log;
};

class ShardCheckpoints {
 public:
  static constexpr uint32_t kPiecesOut = 8;
  static constexpr uint32_t kPieceBytes = 1 << 20;

  // The shard's state when a checkpoint begins.
  struct World {
    std::shared_ptr<shard::Engine> engine;
    const v1::ClusterView* view = nullptr;
    uint64_t incarnation = 0;
  };
  using Reply = absl::AnyInvocable<void(absl::StatusOr<v1::WaitCheckpointResponse>)>;

  ShardCheckpoints(ShardCheckpointsOptions options, const Clock* clock, Inbox* inbox);
  ~ShardCheckpoints();

  absl::StatusOr<v1::BeginCheckpointResponse> Begin(const v1::BeginCheckpointRequest& request,
                                                    const World& world);
  // The reply may run at once, or in RunOnce().
  void Wait(const v1::WaitCheckpointRequest& request, Reply reply);
  absl::Status End(const v1::EndCheckpointRequest& request);

  // Returns whether there was anything to do.
  bool RunOnce();
  int64_t NextTimerNanos() const;

 private:
  struct Waiter {
    int64_t due_ns;
    Reply reply;
  };
  struct Save {
    uint64_t id = 0;
    std::shared_ptr<shard::Engine> engine;
    std::shared_ptr<ShardWriter> writer;  // the io thread's
    uint64_t bytes_per_second = 0;
    int64_t next_piece_ns = 0;
    int64_t patience_ns = 0;
    int64_t gives_up_ns = 0;
    uint32_t out = 0;
    uint64_t taken_bytes = 0;
    uint32_t waiting = 0;  // partitions that are not at their step
    bool finishing = false, ended = false;
    absl::Status status;
    v1::WaitCheckpointResponse result;  // when result.done()
    std::vector<Waiter> waiters;
  };

  // `status`, with a list of the saves in progress here.
  absl::Status WithCheckpoints(const absl::Status& status) const;
  absl::StatusOr<std::vector<ShardWriter::Table>> TablesOf(
      const v1::BeginCheckpointRequest& request, const World& world) const;
  void Io(Inbox::Closure closure);
  bool TakePieces(Save* save, int64_t now);
  void WritePiece(Save* save, const shard::CheckpointPiece& piece);
  void Written(uint64_t id, uint64_t piece, const absl::Status& status);
  bool Advance(Save* save);
  void Finished(uint64_t id, absl::StatusOr<v1::WaitCheckpointResponse> result);
  void Fail(Save* save, absl::Status status);
  void GiveUp(Save* save, absl::Status status);
  bool AnswerWaiters(Save* save, int64_t now);
  void Log(const std::string& text) const {
    if (options_.log) options_.log(text);
  }

  const ShardCheckpointsOptions options_;
  const Clock* const clock_;
  Inbox* const inbox_;
  int64_t looked_ns_ = 0;  // when pieces were taken last
  std::map<uint64_t, Save> saves_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_CHECKPOINT_SHARD_CHECKPOINTS_H_
