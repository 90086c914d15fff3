// Answers to the records of lanes: replies, writes of pulls, slots that are returned, latencies.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_LANE_ANSWERS_H_
#define VERBENA_SERVER_EXECUTOR_LANE_ANSWERS_H_

#include <cstdint>
#include <vector>

#include "proto/wire/operations.h"
#include "rdma/lane/shard_lane.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"

namespace verbena::server {

struct ShardCore;

class LaneAnswers {
 public:
  explicit LaneAnswers(ShardCore* core) : core_(*core) { samples_.reserve(kCompletionBudget); }

  // Answers from here on go to this lane, until the next call; null: none.
  void Begin(Lane* lane);
  void Reply(Lane* lane, const rdma::ShardLane::Answer& answer);
  // Writes the view, then replies.
  void Write(Lane* lane, const shard::ChunkView& view, const rdma::RemoteMemory& destination,
             rdma::ShardLane::Answer answer);
  // To every group. Returns the slot.
  void Refuse(Lane* lane, const rdma::ShardLane::Arrival& arrival, ReplyStatus status);
  void ReturnSlot(Lane* lane, uint32_t slot);
  // The request waits in the engine, without its slot.
  void Defer(Lane* lane, uint32_t operation, uint32_t slot);
  // When a lane's share of waiting requests is used up, pulls that have waited for long are
  // returned: the worker may not wait for them any more, and may need the lane for something else.
  void RelieveDeferred(Lane* lane, int64_t now);
  // Gives pins of writes that have ended back.
  void Unpin(Lane* lane, const std::vector<uint64_t>& cookies);
  // Counts the latencies of answers since the last call.
  void FlushSamples();

 private:
  struct Sample {
    int64_t arrived_ns;
    wire::Latency latency;
  };

  // Makes the chunk's memory ready to be written from. False: the pull was answered with an error.
  bool Registered(Lane* lane, const shard::ChunkView& chunk, rdma::ShardLane::Answer* answer);
  void SlotFreed(Lane* lane, uint32_t slot);
  // The operation ends: its latency is counted with the next clock reading.
  void Answered(Lane* lane, uint32_t operation);

  ShardCore& core_;
  Lane* answering_ = nullptr;
  std::vector<Sample> samples_;
  uint64_t unregistered_block_ = 0;  // the last one whose registration failed: logged once
};

// A refusal, or another answer without content, to the whole record. Returns the slot.
rdma::ShardLane::Answer AnswerTo(const rdma::ShardLane::Arrival& record, ReplyStatus status);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_LANE_ANSWERS_H_
