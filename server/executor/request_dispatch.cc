#include "server/executor/request_dispatch.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/operations.h"
#include "server/executor/shard_core.h"
#include "shard/cold_events.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

// "replicate, beacon": the requests on lanes of servers, or of workers.
std::string Allowed(bool between_servers) {
  std::string names;
  for (const wire::OperationTraits& operation : wire::kOperations) {
    if (operation.between_servers != between_servers) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ", Text(operation.name));
  }
  return names;
}

ShardLane::Answer AnswerOf(const shard::Answer& answer, uint32_t operation) {
  ShardLane::Answer out;
  out.operation = operation;
  out.status = answer.status;
  out.detail = answer.detail;
  out.version = answer.version;
  out.applies = answer.applies;
  return out;
}

ShardLane::Answer AnswerAndSlot(const shard::Answer& answer, uint32_t operation, uint32_t slot) {
  ShardLane::Answer out = AnswerOf(answer, operation);
  out.return_slot = true;
  out.slot = slot;
  return out;
}

}  // namespace

bool RequestDispatch::Poll(size_t transport) {
  TransportLink& link = core_.transports.links()[transport];
  size_t total = 0;
  while (total < kCompletionBudget) {
    const size_t n = link.endpoint->Poll(absl::MakeSpan(completions_));
    if (n == 0) break;
    total += n;
    core_.ReadClock();
    for (size_t i = 0; i < n; ++i) {
      Lane* lane = core_.lanes.Find(&link, completions_[i].connection);
      if (lane == nullptr) {  // a link's, or of a connection that was refused or is destroyed
        core_.peer_links->OnCompletion(transport, completions_[i]);
        continue;
      }
      core_.answers.Begin(lane);
      const bool arrived = lane->lane->OnCompletion(completions_[i], &arrival_, &written_);
      if (!written_.empty()) {
        core_.answers.Unpin(lane, written_);
        written_.clear();
      }
      if (!core_.lanes.Usable(lane)) continue;
      if (arrived) Dispatch(lane, arrival_);
    }
    core_.answers.Begin(nullptr);
    DrainEngine();
    core_.answers.FlushSamples();
    if (n < completions_.size()) break;
  }
  return total > 0;
}

void RequestDispatch::Dispatch(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  const rdma::LaneConfig& config = lane->lane->params().config;
  if (header.operation >= lane->operations.size() || record.slot >= config.slots() ||
      lane->operations[header.operation].in_use) {
    // The lane checks the first two; a peer that reuses an operation breaks the protocol.
    core_.lanes.Close(lane,
                      absl::InvalidArgumentError("operation used again before it was answered"));
    return;
  }
  const wire::OperationTraits& traits = wire::OperationOf(header.type);
  if (traits.between_servers != lane->peer.server) {
    return core_.lanes.Close(
        lane, absl::InvalidArgumentError(absl::StrCat(
                  "record.type is ", static_cast<uint32_t>(header.type), " (", Text(traits.name),
                  "); allowed on a ", lane->peer.server ? "server's lane: " : "worker's lane: ",
                  Allowed(lane->peer.server))));
  }
  LaneOperation& operation = lane->operations[header.operation];
  operation = {.arrived_ns = core_.now_ns,
               .in_use = true,
               .latency = traits.latency,
               .deferred = false,
               .group_count = header.group_count};
  const bool large = record.slot >= config.small_slots;
  const uint32_t capacity = large ? config.large_slots : config.small_slots;
  ++lane->slots_held[large];
  if (lane->slots_held[large] == capacity || lane->lane->unanswered_count() == config.operations) {
    ++core_.counters.credit_stalls;
  }
  Handle(lane, record);
}

void RequestDispatch::Handle(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  if (header.type == RecordType::kPull && header.bags != 0) return AnswerAsFollower(lane, record);
  if (core_.replication->leases().active() && !lane->peer.server &&
      !core_.copies.MayAnswer(record.record)) {
    return core_.answers.Refuse(lane, record, ReplyStatus::kNotReady);
  }
  if (core_.waiting.IsBehind(record.record)) return core_.waiting.Add(lane, record);
  if (header.type == RecordType::kReplicate) return core_.copies.Replicate(lane, record);
  if (header.type == RecordType::kBeacon) return core_.copies.Beacon(lane, record);
  Act(lane, record, HandleByEngine(lane, record));
}

shard::Outcome RequestDispatch::HandleByEngine(Lane* lane, const ShardLane::Arrival& record) {
  const shard::Request request = {.token = {lane->id, record.record.header.operation, record.slot},
                                  .worker = lane->peer.incarnation,
                                  .record = record.record,
                                  .payload = record.payload,
                                  .may_park = MayDefer(*lane)};
  return shard::HandleRequest(lane->engine.get(), request, &scratch_);
}

void RequestDispatch::AnswerAsFollower(Lane* lane, const ShardLane::Arrival& record) {
  if (!core_.copies.IsFresh(record.record)) {
    ++core_.counters.follower_redirects;
    return core_.answers.Refuse(lane, record, ReplyStatus::kNotReady);
  }
  const shard::Outcome outcome = HandleByEngine(lane, record);
  ++(outcome.kind == shard::Outcome::Kind::kWrite ? core_.counters.follower_pulls
                                                  : core_.counters.follower_redirects);
  Act(lane, record, outcome);
}

void RequestDispatch::Act(Lane* lane, const ShardLane::Arrival& record,
                          const shard::Outcome& outcome) {
  using OutcomeKind = shard::Outcome::Kind;
  const RecordHeader& header = record.record.header;
  switch (outcome.kind) {
    case OutcomeKind::kHeld:
      return;
    case OutcomeKind::kReplicating:
      return core_.answers.ReturnSlot(lane, record.slot);
    case OutcomeKind::kDeferred:
      return core_.answers.Defer(lane, header.operation, record.slot);
    case OutcomeKind::kNoRoom:
      return core_.waiting.Add(lane, record);
    case OutcomeKind::kMalformed:
      return core_.lanes.Close(lane, outcome.malformed);
    case OutcomeKind::kAnswer:
    case OutcomeKind::kWrite:
      break;
  }
  ShardLane::Answer answer = AnswerAndSlot(outcome.answer, header.operation, record.slot);
  answer.group_count = header.group_count;
  answer.group_status = outcome.group_status;
  if (outcome.kind == OutcomeKind::kAnswer) return core_.answers.Reply(lane, answer);
  core_.answers.Write(lane, outcome.view, {header.destination, header.destination_key}, answer);
}

bool RequestDispatch::DrainEngine() {
  if (core_.engine == nullptr) return false;
  bool worked = false;
  // An answer can enable another (a dead lane releases resources that others waited for).
  while (core_.engine->TakeEvents(&engine_events_)) {
    worked = true;
    for (size_t i = 0; i < engine_events_.size(); ++i) OnEngineEvent(engine_events_[i]);
    engine_events_.clear();
  }
  core_.answers.Begin(nullptr);
  if (core_.options.cold_store != nullptr) {
    for (const std::string& error : core_.engine->cold().TakeErrors()) core_.Log(error);
  }
  return worked;
}

void RequestDispatch::OnEngineEvent(const shard::Event& event) {
  using EventKind = shard::Event::Kind;
  Lane* lane = event.token.lane < core_.lanes.all().size()
                   ? core_.lanes.all()[event.token.lane].get()
                   : nullptr;
  // The lane closed while these events were being handled: the engine had already handed out this
  // event before it forgot the lane. Only its pin needs care.
  if (lane == nullptr || lane->closing || lane->engine != core_.engine) {
    if (event.kind == EventKind::kPullReady) core_.engine->Unpin(event.view.pin);
    return;
  }
  core_.answers.Begin(lane);
  const uint32_t operation = event.token.operation;
  ShardLane::Answer answer = AnswerOf(event.answer, operation);
  answer.group_count = lane->operations[operation].group_count;
  switch (event.kind) {
    case EventKind::kPushDone:
      return core_.answers.Reply(lane, AnswerAndSlot(event.answer, operation, event.token.slot));
    case EventKind::kPullReady:
      if (!core_.replication->leases().MayReadAll(core_.now_ns)) {
        core_.engine->Unpin(event.view.pin);
        answer.status = ReplyStatus::kNotReady;
        return core_.answers.Reply(lane, answer);
      }
      return core_.answers.Write(lane, event.view, {event.destination, event.destination_key},
                                 answer);
    case EventKind::kAwaitDone:
      if (!core_.replication->leases().MayReadAll(core_.now_ns))
        answer.status = ReplyStatus::kNotReady;
      return core_.answers.Reply(lane, answer);
    case EventKind::kPullFailed:
      return core_.answers.Reply(lane, answer);
    case EventKind::kReplicated:
      answer.group_status = *event.group_status;
      return core_.answers.Reply(lane, answer);
  }
}

}  // namespace verbena::server
