// Records to the engine, its answers to the lanes.
#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/record_check.h"
#include "server/executor/shard_executor_impl.h"

namespace verbena::server {

using rdma::ShardLane;

namespace {

bool OfServers(RecordType type) {
  return type == RecordType::kReplicate || type == RecordType::kBeacon;
}

absl::string_view Text(std::string_view text) { return {text.data(), text.size()}; }

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

ShardExecutor::Impl::Kind ShardExecutor::Impl::KindOf(RecordType type) {
  switch (type) {
    case RecordType::kPush:
    case RecordType::kPushRows:
      return Kind::kPush;
    case RecordType::kPull:
    case RecordType::kLookup:
    case RecordType::kLookupBags:
      return Kind::kPull;
    default:
      return Kind::kOther;
  }
}

void ShardExecutor::Impl::Dispatch(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  const rdma::LaneConfig& config = lane->lane->params().config;
  if (header.operation >= lane->operations.size() || record.slot >= config.slots() ||
      lane->operations[header.operation].kind != Kind::kNone) {
    // The lane checks the first two; a peer that reuses an operation breaks the protocol.
    Close(lane, absl::InvalidArgumentError("operation used again before it was answered"));
    return;
  }
  if (OfServers(header.type) != lane->peer.server) {
    return Close(lane, absl::InvalidArgumentError(absl::StrCat(
                           "record.type is ", static_cast<uint32_t>(header.type), " (",
                           Text(RecordTypeName(header.type)), "); allowed on a ",
                           lane->peer.server ? "server's lane: replicate, beacon"
                                             : "worker's lane: all but replicate, beacon")));
  }
  Operation& operation = lane->operations[header.operation];
  operation = {.arrived_ns = now_ns,
               .kind = KindOf(header.type),
               .parked = false,
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
  switch (header.type) {
    case RecordType::kPush:
      return Push(lane, record);
    case RecordType::kPull:
      return Pull(lane, record);
    case RecordType::kEndStep:
    case RecordType::kAwait:
      return Groups(lane, record);
    case RecordType::kNorms:
      return Norms(lane, record);
    case RecordType::kTotals:
      return Totals(lane, record);
    case RecordType::kPushRows:
      return PushRows(lane, record);
    case RecordType::kLookup:
    case RecordType::kLookupBags:
      return Lookup(lane, record);
    case RecordType::kIntent:
      return Intend(lane, record);
    case RecordType::kScan:
      return Scan(lane, record);
    case RecordType::kReplicate:
      return Replicate(lane, record);
    case RecordType::kBeacon:
      return Beacon(lane, record);
  }
  Close(lane, absl::InvalidArgumentError("unknown record type"));
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

void ShardExecutor::Impl::Push(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  shard::PushRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.group = record.record.groups[0];
  request.dtype = header.dtype;
  request.payload = record.payload;
  const shard::PushOutcome outcome = lane->engine->Push(request);
  if (outcome.no_room) return WaitForRoom(lane, record);
  if (outcome.deferred) return ReturnSlot(lane, record.slot);
  if (!outcome.held) Reply(lane, AnswerAndSlot(outcome.answer, header.operation, record.slot));
}

void ShardExecutor::Impl::Park(Lane* lane, uint32_t operation, uint32_t slot) {
  lane->operations[operation].parked = true;
  ++lane->parked;
  ReturnSlot(lane, slot);
}

void ShardExecutor::Impl::RelieveParked(Lane* lane, int64_t now) {
  const uint32_t most = std::max(lane->lane->params().config.operations / 2, 1u);
  // Workers leave some of these to awaits.
  if (lane->parked < most - most / 4) return;
  lane->engine->ReturnReads(lane->id, [&](uint32_t operation) {
    return lane->operations[operation].arrived_ns + kLongParkedNanos <= now;
  });
}

void ShardExecutor::Impl::Pull(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  shard::PullRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.group = record.record.groups[0];
  request.dtype = header.dtype;
  request.min_version = header.min_version;
  request.destination = header.destination;
  request.destination_key = header.destination_key;
  request.may_park = MayPark(*lane);
  OnPullOutcome(lane, record, lane->engine->Pull(request));
}

void ShardExecutor::Impl::OnPullOutcome(Lane* lane, const ShardLane::Arrival& record,
                                        const shard::PullOutcome& outcome) {
  const RecordHeader& header = record.record.header;
  if (outcome.kind == shard::PullOutcome::Kind::kParked) {
    return Park(lane, header.operation, record.slot);
  }
  ShardLane::Answer answer = AnswerAndSlot(outcome.answer, header.operation, record.slot);
  answer.group_count = header.group_count;
  answer.group_status = outcome.group_status;
  // A scan that is at its end writes nothing.
  if (outcome.kind == shard::PullOutcome::Kind::kAnswer || outcome.view.bytes == 0) {
    return Reply(lane, answer);
  }
  WriteOut(lane, outcome.view, {header.destination, header.destination_key}, answer);
}

void ShardExecutor::Impl::Groups(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  const bool await = header.type == RecordType::kAwait;
  shard::GroupsRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  request.min_version = header.min_version;
  request.may_park = MayPark(*lane);
  const shard::GroupsOutcome outcome =
      await ? lane->engine->Await(request) : lane->engine->EndStep(request);
  if (outcome.parked) return Park(lane, header.operation, record.slot);
  ReplyToGroups(lane, record, outcome);
}

void ShardExecutor::Impl::ReplyToGroups(Lane* lane, const ShardLane::Arrival& record,
                                        const shard::GroupsOutcome& outcome) {
  if (outcome.no_room) return WaitForRoom(lane, record);
  if (outcome.deferred) return ReturnSlot(lane, record.slot);
  const RecordHeader& header = record.record.header;
  ShardLane::Answer answer = AnswerAndSlot(outcome.answer, header.operation, record.slot);
  answer.group_count = header.group_count;
  answer.group_status = outcome.group_status;
  Reply(lane, answer);
}

void ShardExecutor::Impl::Norms(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  shard::NormsRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  request.destination = header.destination;
  request.destination_key = header.destination_key;
  request.may_park = MayPark(*lane);
  OnPullOutcome(lane, record, lane->engine->Norms(request));
}

void ShardExecutor::Impl::Totals(Lane* lane, const ShardLane::Arrival& record) {
  const RecordHeader& header = record.record.header;
  shard::GroupsRequest request;
  request.token = {lane->id, header.operation, record.slot};
  request.worker = lane->peer.incarnation;
  request.table = header.table;
  request.groups = record.record.group_span();
  const shard::NormTotals totals = {std::bit_cast<double>(header.destination),
                                    std::bit_cast<double>(header.destination_key)};
  ReplyToGroups(lane, record, lane->engine->Totals(request, totals));
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
  if (operation.kind == Kind::kPush || operation.kind == Kind::kPull) {
    samples.push_back({operation.arrived_ns, operation.kind});
  }
  if (operation.parked) --lane->parked;
  operation.kind = Kind::kNone;
  operation.parked = false;
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
    for (const std::string& error : engine->TakeColdErrors()) Log(error);
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
    (sample.kind == Kind::kPush ? counters.push_latency : counters.pull_latency)
        .Add(now_ns - sample.arrived_ns);
  }
  samples.clear();
}

}  // namespace verbena::server
