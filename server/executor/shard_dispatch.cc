// Records to the engine, its answers to the lanes.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"
#include "server/executor/shard_executor_impl.h"
#include "shard/cold_events.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

// "replicate, beacon": what comes on lanes of servers, or of workers.
std::string Allowed(bool between_servers) {
  std::string names;
  for (const wire::OperationTraits& operation : wire::kOperations) {
    if (operation.between_servers != between_servers) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", Text(operation.name));
  }
  return names;
}

}  // namespace

ShardExecutor::Impl::Lane* ShardExecutor::Impl::FindLane(Link* link,
                                                         rdma::ConnectionId connection) {
  if (connection == link->last_connection) return link->last_lane;
  const auto it = link->by_connection.find(static_cast<uint32_t>(connection));
  if (it == link->by_connection.end()) return nullptr;
  link->last_connection = connection;
  link->last_lane = it->second;
  return it->second;
}

bool ShardExecutor::Impl::PollCompletions(size_t transport) {
  Link& link = links[transport];
  size_t total = 0;
  while (total < kCompletionBudget) {
    const size_t n = link.endpoint->Poll(absl::MakeSpan(completions));
    if (n == 0) break;
    total += n;
    ReadClock();
    for (size_t i = 0; i < n; ++i) {
      Lane* lane = FindLane(&link, completions[i].connection);
      if (lane == nullptr) {  // a link's, or of a connection that was refused or is destroyed
        peer_links->OnCompletion(transport, completions[i]);
        continue;
      }
      Answering(lane);
      const bool arrived = lane->lane->OnCompletion(completions[i], &arrival, &written);
      if (!written.empty()) {
        Unpin(lane, written);
        written.clear();
      }
      if (!Usable(lane)) continue;
      if (arrived) Dispatch(lane, arrival);
    }
    Answering(nullptr);
    DrainEngine();
    FlushSamples();
    if (n < completions.size()) break;
  }
  return total > 0;
}

void ShardExecutor::Impl::Answering(Lane* lane) {
  if (lane == answering) return;
  if (answering != nullptr) answering->lane->EndAnswers();
  answering = lane;
  if (lane != nullptr) lane->lane->BeginAnswers();
}

void ShardExecutor::Impl::Unpin(Lane* lane, const std::vector<uint64_t>& cookies) {
  for (const uint64_t pin : cookies) lane->engine->Unpin(pin);
}

void ShardExecutor::Impl::Dispatch(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  const rdma::LaneConfig& config = lane->lane->params().config;
  if (header.operation >= lane->operations.size() || record.slot >= config.slots() ||
      lane->operations[header.operation].in_use) {
    // The lane checks the first two; a peer that reuses an operation breaks the protocol.
    Close(lane, absl::InvalidArgumentError("operation used again before it was answered"));
    return;
  }
  const wire::OperationTraits& traits = wire::OperationOf(header.type);
  if (traits.between_servers != lane->peer.server) {
    return Close(lane,
                 absl::InvalidArgumentError(absl::StrCat(
                     "record.type is ", static_cast<uint32_t>(header.type), " (", Text(traits.name),
                     "); allowed on a ", lane->peer.server ? "server's lane: " : "worker's lane: ",
                     Allowed(lane->peer.server))));
  }
  Operation& operation = lane->operations[header.operation];
  operation = {.arrived_ns = now_ns,
               .in_use = true,
               .latency = traits.latency,
               .deferred = false,
               .group_count = header.group_count};
  const bool large = record.slot >= config.small_slots;
  const uint32_t capacity = large ? config.large_slots : config.small_slots;
  ++lane->slots_held[large];
  if (lane->slots_held[large] == capacity || lane->lane->unanswered_count() == config.operations) {
    ++counters.credit_stalls;
  }
  Handle(lane, record);
}

void ShardExecutor::Impl::Handle(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  if (replication->leases().active() && !lane->peer.server && !MayAnswer(record.record)) {
    return Refuse(lane, record, ReplyStatus::kNotReady);
  }
  if (IsBehindWaiting(record.record)) return WaitForRoom(lane, record);
  if (header.type == RecordType::kReplicate) return Replicate(lane, record);
  if (header.type == RecordType::kBeacon) return Beacon(lane, record);
  const shard::Request request = {.token = {lane->id, header.operation, record.slot},
                                  .worker = lane->peer.incarnation,
                                  .record = record.record,
                                  .payload = record.payload,
                                  .may_park = MayDefer(*lane)};
  Act(lane, record, shard::HandleRequest(lane->engine.get(), request, &scratch));
}

namespace {

ShardLane::Answer AnswerOf(const shard::Answer& answer, uint32_t operation) {
  ShardLane::Answer out;
  out.operation = operation;
  out.status = answer.status;
  out.detail = answer.detail;
  out.version = answer.version;
  return out;
}

ShardLane::Answer AnswerAndSlot(const shard::Answer& answer, uint32_t operation, uint32_t slot) {
  ShardLane::Answer out = AnswerOf(answer, operation);
  out.return_slot = true;
  out.slot = slot;
  return out;
}

}  // namespace

void ShardExecutor::Impl::Act(Lane* lane, const ShardLane::Arrival& record,
                              const shard::Outcome& outcome) {
  using OutcomeKind = shard::Outcome::Kind;
  const RecordHeader& header = record.record.header;
  switch (outcome.kind) {
    case OutcomeKind::kHeld:
      return;
    case OutcomeKind::kReplicating:
      return ReturnSlot(lane, record.slot);
    case OutcomeKind::kDeferred:
      return Defer(lane, header.operation, record.slot);
    case OutcomeKind::kNoRoom:
      return WaitForRoom(lane, record);
    case OutcomeKind::kMalformed:
      return Close(lane, outcome.malformed);
    case OutcomeKind::kAnswer:
    case OutcomeKind::kWrite:
      break;
  }
  ShardLane::Answer answer = AnswerAndSlot(outcome.answer, header.operation, record.slot);
  answer.group_count = header.group_count;
  answer.group_status = outcome.group_status;
  if (outcome.kind == OutcomeKind::kAnswer) return Reply(lane, answer);
  WriteOut(lane, outcome.view, {header.destination, header.destination_key}, answer);
}

void ShardExecutor::Impl::Defer(Lane* lane, uint32_t operation, uint32_t slot) {
  lane->operations[operation].deferred = true;
  ++lane->deferred;
  ReturnSlot(lane, slot);
}

void ShardExecutor::Impl::RelieveDeferred(Lane* lane, int64_t now) {
  const uint32_t most = std::max(lane->lane->params().config.operations / 2, 1u);
  // Workers leave some of these to awaits.
  if (lane->deferred < most - most / 4) return;
  lane->engine->ReturnReads(lane->id, [&](uint32_t operation) {
    return lane->operations[operation].arrived_ns + kLongDeferredNanos <= now;
  });
}

void ShardExecutor::Impl::SlotFreed(Lane* lane, uint32_t slot) {
  const bool large = slot >= lane->lane->params().config.small_slots;
  if (lane->slots_held[large] > 0) --lane->slots_held[large];
}

void ShardExecutor::Impl::ReturnSlot(Lane* lane, uint32_t slot) {
  SlotFreed(lane, slot);
  lane->lane->ReturnSlot(slot);
  Usable(lane);
}

void ShardExecutor::Impl::Answered(Lane* lane, uint32_t index) {
  Operation& operation = lane->operations[index];
  if (operation.latency != wire::Latency::kOther) {
    samples.push_back({operation.arrived_ns, operation.latency});
  }
  if (operation.deferred) --lane->deferred;
  operation.in_use = false;
  operation.deferred = false;
}

void ShardExecutor::Impl::Reply(Lane* lane, const ShardLane::Answer& answer) {
  Answered(lane, answer.operation);
  if (answer.return_slot) SlotFreed(lane, answer.slot);
  lane->lane->SendReply(answer);
  Usable(lane);
}

bool ShardExecutor::Impl::Registered(Lane* lane, const shard::ChunkView& chunk,
                                     ShardLane::Answer* answer) {
  const rdma::MemoryBlock& root = SlabAllocator::BlockOf(chunk.buffer)->root();
  if (root.id() == lane->registered_block) return true;
  rdma::Endpoint* endpoint = links[lane->transport].endpoint.get();
  // The slab is ours; only the interface to it is const.
  const absl::Status status =
      endpoint->Register(const_cast<rdma::MemoryBlock&>(root).shared_from_this());
  if (status.ok()) {
    lane->registered_block = root.id();
    return true;
  }
  // The worker retries until its deadline; the lane and its other records continue.
  if (unregistered_block != root.id()) {
    unregistered_block = root.id();
    Log(absl::StrCat("pulls over ", std::string(endpoint->transport()),
                     " are refused: ", status.message()));
  }
  lane->engine->Unpin(chunk.pin);
  answer->status = ReplyStatus::kResourceExhausted;
  answer->version = 0;
  Reply(lane, *answer);
  return false;
}

void ShardExecutor::Impl::WriteOut(Lane* lane, const shard::ChunkView& chunk,
                                   const rdma::RemoteMemory& destination,
                                   ShardLane::Answer answer) {
  if (!Registered(lane, chunk, &answer)) return;
  Answered(lane, answer.operation);
  if (answer.return_slot) SlotFreed(lane, answer.slot);
  const rdma::Segment data = {chunk.buffer.data, chunk.bytes, SlabAllocator::BlockOf(chunk.buffer)};
  lane->lane->WriteAndReply(data, destination, chunk.pin, answer);
  Usable(lane);
}

bool ShardExecutor::Impl::DrainEngine() {
  if (engine == nullptr) return false;
  bool worked = false;
  // An answer can enable another (a dead lane releases resources that others waited for).
  while (engine->TakeEvents(&engine_events)) {
    worked = true;
    for (size_t i = 0; i < engine_events.size(); ++i) OnEngineEvent(engine_events[i]);
    engine_events.clear();
  }
  Answering(nullptr);
  if (options.cold_store != nullptr) {
    for (const std::string& error : engine->cold().TakeErrors()) Log(error);
  }
  return worked;
}

void ShardExecutor::Impl::OnEngineEvent(const shard::Event& event) {
  using EventKind = shard::Event::Kind;
  Lane* lane = event.token.lane < lanes.size() ? lanes[event.token.lane].get() : nullptr;
  // The lane closed while these events were being handled: the engine had already handed out this
  // event before it forgot the lane. Only its pin needs care.
  if (lane == nullptr || lane->closing || lane->engine != engine) {
    if (event.kind == EventKind::kPullReady) engine->Unpin(event.view.pin);
    return;
  }
  Answering(lane);
  const uint32_t operation = event.token.operation;
  ShardLane::Answer answer = AnswerOf(event.answer, operation);
  answer.group_count = lane->operations[operation].group_count;
  switch (event.kind) {
    case EventKind::kPushDone:
      return Reply(lane, AnswerAndSlot(event.answer, operation, event.token.slot));
    case EventKind::kPullReady:
      if (!replication->leases().MayReadAll(now_ns)) {
        engine->Unpin(event.view.pin);
        answer.status = ReplyStatus::kNotReady;
        return Reply(lane, answer);
      }
      return WriteOut(lane, event.view, {event.destination, event.destination_key}, answer);
    case EventKind::kAwaitDone:
      if (!replication->leases().MayReadAll(now_ns)) answer.status = ReplyStatus::kNotReady;
      return Reply(lane, answer);
    case EventKind::kPullFailed:
      return Reply(lane, answer);
    case EventKind::kReplicated:
      answer.group_status = *event.group_status;
      return Reply(lane, answer);
  }
}

void ShardExecutor::Impl::FlushSamples() {
  if (samples.empty()) return;
  ReadClock();
  for (const Sample& sample : samples) {
    (sample.latency == wire::Latency::kPush ? counters.push_latency : counters.pull_latency)
        .Add(now_ns - sample.arrived_ns);
  }
  samples.clear();
}

}  // namespace verbena::server
