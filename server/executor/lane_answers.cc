#include "server/executor/lane_answers.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/executor/shard_core.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

// After this time a waiting request is returned if its lane can defer no more.
constexpr int64_t kLongDeferredNanos = 1'000'000'000;

}  // namespace

ShardLane::Answer AnswerTo(const ShardLane::Arrival& record, ReplyStatus status) {
  ShardLane::Answer answer;
  answer.operation = record.record.header.operation;
  answer.status = status;
  answer.group_count = record.record.header.group_count;
  answer.return_slot = true;
  answer.slot = record.slot;
  return answer;
}

void LaneAnswers::Begin(Lane* lane) {
  if (lane == answering_) return;
  if (answering_ != nullptr) answering_->lane->EndAnswers();
  answering_ = lane;
  if (lane != nullptr) lane->lane->BeginAnswers();
}

void LaneAnswers::Unpin(Lane* lane, const std::vector<uint64_t>& cookies) {
  for (const uint64_t pin : cookies) lane->engine->Unpin(pin);
}

void LaneAnswers::Defer(Lane* lane, uint32_t operation, uint32_t slot) {
  lane->operations[operation].deferred = true;
  ++lane->deferred;
  ReturnSlot(lane, slot);
}

void LaneAnswers::RelieveDeferred(Lane* lane, int64_t now) {
  const uint32_t most = std::max(lane->lane->params().config.operations / 2, 1u);
  // Workers leave some of these to awaits.
  if (lane->deferred < most - most / 4) return;
  lane->engine->ReturnReads(lane->id, [&](uint32_t operation) {
    return lane->operations[operation].arrived_ns + kLongDeferredNanos <= now;
  });
}

void LaneAnswers::SlotFreed(Lane* lane, uint32_t slot) {
  const bool large = slot >= lane->lane->params().config.small_slots;
  if (lane->slots_held[large] > 0) --lane->slots_held[large];
}

void LaneAnswers::ReturnSlot(Lane* lane, uint32_t slot) {
  SlotFreed(lane, slot);
  lane->lane->ReturnSlot(slot);
  core_.lanes.Usable(lane);
}

void LaneAnswers::Answered(Lane* lane, uint32_t index) {
  LaneOperation& operation = lane->operations[index];
  if (operation.latency != wire::Latency::kOther) {
    samples_.push_back({operation.arrived_ns, operation.latency});
  }
  if (operation.deferred) --lane->deferred;
  operation.in_use = false;
  operation.deferred = false;
}

void LaneAnswers::Reply(Lane* lane, const ShardLane::Answer& answer) {
  Answered(lane, answer.operation);
  if (answer.return_slot) SlotFreed(lane, answer.slot);
  lane->lane->SendReply(answer);
  core_.lanes.Usable(lane);
}

void LaneAnswers::Refuse(Lane* lane, const ShardLane::Arrival& record, ReplyStatus status) {
  Reply(lane, AnswerTo(record, status));
}

bool LaneAnswers::Registered(Lane* lane, const shard::ChunkView& chunk, ShardLane::Answer* answer) {
  const rdma::MemoryBlock& root = SlabAllocator::BlockOf(chunk.buffer)->root();
  if (root.id() == lane->registered_block) return true;
  rdma::Endpoint* endpoint = core_.transports.links()[lane->transport].endpoint.get();
  // The slab is ours; only the interface to it is const.
  const absl::Status status =
      endpoint->Register(const_cast<rdma::MemoryBlock&>(root).shared_from_this());
  if (status.ok()) {
    lane->registered_block = root.id();
    return true;
  }
  // The worker retries until its deadline; the lane and its other records continue.
  if (unregistered_block_ != root.id()) {
    unregistered_block_ = root.id();
    core_.Log(absl::StrCat("pulls over ", std::string(endpoint->transport()),
                           " are refused: ", status.message()));
  }
  lane->engine->Unpin(chunk.pin);
  answer->status = ReplyStatus::kResourceExhausted;
  answer->version = 0;
  Reply(lane, *answer);
  return false;
}

void LaneAnswers::Write(Lane* lane, const shard::ChunkView& chunk,
                        const rdma::RemoteMemory& destination, ShardLane::Answer answer) {
  if (!Registered(lane, chunk, &answer)) return;
  Answered(lane, answer.operation);
  if (answer.return_slot) SlotFreed(lane, answer.slot);
  const rdma::Segment data = {chunk.buffer.data, chunk.bytes, SlabAllocator::BlockOf(chunk.buffer)};
  lane->lane->WriteAndReply(data, destination, chunk.pin, answer);
  core_.lanes.Usable(lane);
}

void LaneAnswers::FlushSamples() {
  if (samples_.empty()) return;
  core_.ReadClock();
  for (const Sample& sample : samples_) {
    (sample.latency == wire::Latency::kPush ? core_.counters.push_latency
                                            : core_.counters.pull_latency)
        .Add(core_.now_ns - sample.arrived_ns);
  }
  samples_.clear();
}

}  // namespace verbena::server
