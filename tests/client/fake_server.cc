// The fake cluster's servers: lanes, dense tables, and the end of a step.
#include <algorithm>
#include <cstring>

#include "proto/wire/record_check.h"
#include "shard/codec/codec.h"
#include "tests/client/fake_cluster.h"
#include "verbena/half.h"

namespace verbena::test {
namespace {

template <typename T>
T FromBytes(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

bool PushesChunk(RecordType type) {
  return type == RecordType::kPush || type == RecordType::kAssign;
}

}  // namespace

FakeServer::FakeServer(std::unique_ptr<rdma::Endpoint> endpoint, const Clock* clock,
                       uint64_t incarnation, std::string host)
    : endpoint_(std::move(endpoint)),
      clock_(clock),
      incarnation_(incarnation),
      host_(std::move(host)) {
  config.small_slots = 16;
  config.large_slots = 2;
  config.large_slot_bytes = 4096 + 4096;
  config.operations = 16;
  lane_address_ = *endpoint_->Listen();
}

absl::StatusOr<v1::OpenLaneResponse> FakeServer::OpenLane(const v1::OpenLaneRequest& request) {
  if (!open_status.ok()) return open_status;
  if (request.server_incarnation() != incarnation_) {
    return absl::FailedPreconditionError("another incarnation lives here");
  }
  rdma::ShardLane::Params params;
  params.lane = next_lane_++;
  params.generation = params.lane;
  params.incarnation = request.incarnation();
  params.config = config;
  v1::OpenLaneResponse response;
  response.set_lane(params.lane);
  response.set_generation(params.generation);
  std::string token(16, '\0');
  std::memcpy(token.data(), &params.lane, sizeof(params.lane));
  response.set_token(token);
  params.protocol = protocol;
  granted_[params.lane] = params;
  response.set_protocol(protocol);
  response.set_transport(std::string(endpoint_->transport()));
  response.set_transport_reason("a test");
  response.set_address(lane_address_);
  last_open = request;
  if (request.offers(0).transport() == "broken") {
    response.set_transport("broken");
    response.set_address("sim:nowhere/1");
  }
  response.set_small_slots(config.small_slots);
  response.set_small_slot_bytes(config.small_slot_bytes);
  response.set_large_slots(config.large_slots);
  response.set_large_slot_bytes(config.large_slot_bytes);
  response.set_operations(config.operations);
  return response;
}

void FakeServer::Accept(const rdma::ConnectionEvent& event) {
  const auto hello = ParseHello(event.private_data);
  uint32_t id = 0;
  if (hello.ok()) std::memcpy(&id, hello->token, sizeof(id));
  const auto it = granted_.find(id);
  if (it == granted_.end()) return endpoint_->Reject(event.connection, "unknown token");
  auto lane = rdma::ShardLane::Accept(endpoint_.get(), event.connection, *hello, it->second);
  if (!lane.ok()) return;
  by_connection_[event.connection] = id;
  lanes_[id] = *std::move(lane);
  ++lanes_opened;
}

bool FakeServer::RunOnce() {
  bool worked = false;
  std::vector<rdma::ConnectionEvent> events(8);
  const size_t n = endpoint_->PollEvents(absl::MakeSpan(events));
  for (size_t i = 0; i < n; ++i) {
    worked = true;
    if (events[i].kind == rdma::ConnectionEvent::Kind::kRequest) {
      Accept(events[i]);
    } else if (const auto it = by_connection_.find(events[i].connection);
               it != by_connection_.end()) {
      lanes_[it->second]->OnEvent(events[i]);
    }
  }
  std::vector<rdma::Completion> completions(32);
  const size_t c = endpoint_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < c; ++i) {
    worked = true;
    const auto it = by_connection_.find(completions[i].connection);
    if (it == by_connection_.end()) continue;
    Held held;
    held.lane = it->second;
    std::vector<uint64_t> written;
    if (!lanes_[held.lane]->OnCompletion(completions[i], &held.arrival, &written)) continue;
    held.payload.assign(held.arrival.payload.begin(), held.arrival.payload.end());
    Note(held);
    held_.push_back(std::move(held));
  }
  for (auto& [id, lane] : lanes_) worked |= lane->RunOnce();
  if (silent) return worked;
  // An answered record may have let an earlier one proceed.
  for (size_t i = 0; i < held_.size();) {
    if (lanes_[held_[i].lane]->state() != rdma::ShardLane::State::kOpen || Handle(&held_[i])) {
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
      i = 0;
      worked = true;
    } else {
      ++i;
    }
  }
  return worked;
}

uint64_t FakeServer::CommittedOf(uint32_t table, uint32_t partition) const {
  if (hold_commits) return 0;
  const auto it = ended_.find({table, partition});
  return it == ended_.end() ? 0 : it->second;
}

ReplyStatus FakeServer::Apply(const Record& record, size_t group, float value, uint64_t* version) {
  const Group& g = record.groups[group];
  const std::pair<uint32_t, uint32_t> key(record.header.table, g.partition);
  if (!Mine(g)) return ReplyStatus::kWrongEpoch;
  const bool chunk = PushesChunk(record.header.type);
  if (chunk) homes_[{key.first, g.index}] = g.partition;
  // Odd tables are async (FakeCluster::AddTable).
  if (record.header.table % 2 == 1) {
    uint64_t& last = last_[key];
    if (g.sequence <= last) return ReplyStatus::kDuplicate;
    if (g.sequence > last + 1) return ReplyStatus::kSequenceGap;
    last = g.sequence;
    if (chunk) applied[{key.first, g.index}] += value;
    return ReplyStatus::kOk;
  }
  const uint64_t committed = CommittedOf(key.first, key.second);
  *version = committed;
  if (g.sequence < committed) return ReplyStatus::kDuplicate;
  std::set<uint32_t>& arrived = indices_[{key.first, key.second, g.sequence}];
  if (record.header.type == RecordType::kEndStep) {
    if (arrived.size() < g.count) return ReplyStatus::kTooEarly;
    if (clipped.count(key.first) > 0) {
      measured_[key] = std::max(measured_[key], g.sequence + 1);
      return ReplyStatus::kOk;
    }
    ended_[key] = std::max(ended_[key], g.sequence + 1);
    if (!hold_commits) open_.erase(key);
    return ReplyStatus::kOk;
  }
  if (g.sequence > committed) return ReplyStatus::kWrongStep;
  if (!arrived.insert(g.index).second) return ReplyStatus::kDuplicate;
  applied[{key.first, g.index}] += value;
  open_[key].chunks.emplace_back(g.index, value);
  return ReplyStatus::kOk;
}

float FakeServer::FirstOf(const Held& held) {
  const ElementType type = held.arrival.record.header.dtype;
  const bool narrow = type == ElementType::kBf16 || type == ElementType::kF16;
  if (held.payload.size() < (narrow ? sizeof(uint16_t) : sizeof(float))) return 0;
  if (!narrow) return FromBytes<float>(held.payload.data());
  const auto bits = FromBytes<uint16_t>(held.payload.data());
  return type == ElementType::kBf16 ? FloatFromBFloat16(bits) : FloatFromHalf(bits);
}

std::vector<std::byte> FakeServer::Parameters(const Record& record) {
  const Group& g = record.groups[0];
  const ElementType type = record.header.dtype;
  const std::pair<uint32_t, uint32_t> chunk(record.header.table, g.index);
  if (const auto it = stored.find(chunk); it != stored.end()) return it->second;
  const float value = applied[chunk];
  const uint16_t bits =
      type == ElementType::kBf16 ? BFloat16FromFloat(value) : HalfFromFloat(value);
  if (InBlocks(type)) {
    const std::vector<float> values(g.count, value);
    std::vector<std::byte> blocks(PayloadBytes(type, g.count));
    codec::Encode(shard::BestIsa(), type, values.data(), nullptr, blocks.data(), g.count);
    return blocks;
  }
  const uint32_t each = ElementBytes(type);
  std::vector<std::byte> bytes(size_t{g.count} * each);
  for (uint32_t i = 0; i < g.count; ++i) {
    std::memcpy(&bytes[size_t{i} * each],
                each == sizeof(float) ? static_cast<const void*>(&value) : &bits, each);
  }
  return bytes;
}

Seen FakeServer::SeenOf(const Held& held, const Group& g, float value) const {
  const RecordHeader& h = held.arrival.record.header;
  return {
      h.type, h.table,   g.partition,        g.index, g.epoch, g.sequence, g.count, h.min_version,
      value,  held.lane, clock_->NowNanos(), {},      h.bags};
}

void FakeServer::Note(const Held& held) {
  const RecordHeader& h = held.arrival.record.header;
  const bool keyed = h.type == RecordType::kPushRows || h.type == RecordType::kLookup ||
                     h.type == RecordType::kLookupBags || h.type == RecordType::kPrefetch;
  const float value = FirstOf(held);
  const std::byte* key = held.payload.data();
  for (const Group& g : held.arrival.record.group_span()) {
    Seen s = SeenOf(held, g, value);
    if (keyed && g.count > 0) {
      s.keys.resize(g.count);
      std::memcpy(s.keys.data(), key, g.count * sizeof(uint64_t));
      key += g.count * sizeof(uint64_t);
    }
    seen.push_back(std::move(s));
  }
}

rdma::ShardLane::Answer FakeServer::AnswerTo(const Held& held) const {
  rdma::ShardLane::Answer answer;
  answer.operation = held.arrival.record.header.operation;
  answer.group_count = held.arrival.record.header.group_count;
  answer.return_slot = !held.slot_returned;
  answer.slot = held.arrival.slot;
  return answer;
}

bool FakeServer::Refuse(Held* held) {
  if (!refuse) return false;
  const Group& g = held->arrival.record.groups[0];
  const auto status = refuse(SeenOf(*held, g, FirstOf(*held)));
  if (!status) return false;
  // Its worker settles it with an empty push, which nothing refuses.
  if (*status == ReplyStatus::kNonFinite && g.count == 0) return false;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  answer.status = *status;
  answer.version = reply_version;
  lanes_[held->lane]->SendReply(answer);
  return true;
}

bool FakeServer::AtVersion(Held* held, uint64_t* version) {
  const RecordHeader& h = held->arrival.record.header;
  // Pulls and awaits of async tables never wait.
  *version = h.table % 2 == 1 ? h.min_version : UINT64_MAX;
  for (const Group& g : held->arrival.record.group_span()) {
    if (h.table % 2 == 0) *version = std::min(*version, CommittedOf(h.table, g.partition));
  }
  if (*version >= h.min_version) return true;
  if (!held->slot_returned) lanes_[held->lane]->ReturnSlot(held->arrival.slot);
  held->slot_returned = true;
  return false;
}

void FakeServer::Write(Held* held, const std::shared_ptr<rdma::MemoryBlock>& block,
                       const rdma::ShardLane::Answer& answer) {
  const RecordHeader& h = held->arrival.record.header;
  outgoing_.push_back(block);
  lanes_[held->lane]->WriteAndReply(
      {block->data(), static_cast<uint32_t>(block->size()), block.get()},
      {h.destination, h.destination_key}, 0, answer);
}

bool FakeServer::HandleSetOptimizer(Held* held) {
  const Record& record = held->arrival.record;
  std::vector<NamedValue> values;
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  if (!CopyNamedValues(held->payload, &values).ok()) answer.status = ReplyStatus::kMalformed;
  std::vector<ReplyStatus> statuses;
  for (const Group& g : record.group_span()) {
    const uint32_t table = record.header.table;
    uint64_t& last = last_[{table, g.partition}];
    const bool numbered = table % 2 == 1 && g.sequence > 0;
    ReplyStatus status = ReplyStatus::kOk;
    if (numbered && g.sequence <= last) status = ReplyStatus::kDuplicate;
    if (numbered && g.sequence > last + 1) status = ReplyStatus::kSequenceGap;
    if (status == ReplyStatus::kOk) {
      if (numbered) last = g.sequence;
      if (!values.empty()) changed.push_back({table, g.partition, values[0], g.sequence});
    }
    statuses.push_back(status);
    answer.status = std::max(answer.status, status);
    answer.version = g.sequence;
  }
  answer.group_status = statuses;
  lanes_[held->lane]->SendReply(answer);
  return true;
}

bool FakeServer::Handle(Held* held) {
  const Record& record = held->arrival.record;
  const RecordHeader& h = record.header;
  if (hold && hold(SeenOf(*held, record.groups[0], FirstOf(*held)))) return false;
  if (Refuse(held) || RefuseStrangers(held)) return true;
  if (h.type == RecordType::kPushRows) return HandleRows(held);
  if (h.type == RecordType::kLookup) return HandleLookup(held);
  if (h.type == RecordType::kLookupBags) return HandleBags(held);
  if (h.type == RecordType::kPrefetch) return HandlePrefetch(held);
  if (h.type == RecordType::kScan) return HandleScan(held);
  if (h.type == RecordType::kNorms) return HandleNorms(held);
  if (h.type == RecordType::kTotals) return HandleTotals(held);
  if (h.type == RecordType::kSetOptimizer) return HandleSetOptimizer(held);
  rdma::ShardLane* lane = lanes_[held->lane].get();
  rdma::ShardLane::Answer answer = AnswerTo(*held);
  const bool push = PushesChunk(h.type);
  if (push || h.type == RecordType::kEndStep) {
    if (push && hold_pushes) return false;
    const float value = FirstOf(*held);
    std::vector<ReplyStatus> statuses;
    if (push && !held->payload.empty()) {
      if (held->payload.size() != PayloadBytes(h.dtype, record.groups[0].count)) {
        answer.status = ReplyStatus::kMalformed;
        lane->SendReply(answer);
        return true;
      }
      pushed[{h.table, record.groups[0].index}] = held->payload;
    }
    for (size_t i = 0; i < h.group_count; ++i) {
      statuses.push_back(Apply(record, i, value, &answer.version));
      if (statuses.back() != ReplyStatus::kOk && answer.status == ReplyStatus::kOk) {
        answer.status = statuses.back();
      }
    }
    answer.group_status = statuses;
    lane->SendReply(answer);
    return true;
  }
  if (h.type == RecordType::kPull && h.table % 2 == 1 &&
      record.groups[0].sequence > last_[{h.table, record.groups[0].partition}]) {
    answer.status = ReplyStatus::kSequenceGap;
    lane->SendReply(answer);
    return true;
  }
  uint64_t version = 0;
  if (!AtVersion(held, &version)) return false;
  answer = AnswerTo(*held);
  answer.version = h.type == RecordType::kPull ? reply_pull_version.value_or(version) : version;
  if (h.type == RecordType::kAwait) {
    lane->SendReply(answer);
    return true;
  }
  const std::vector<std::byte> parameters = Parameters(record);
  auto block = *rdma::MemoryBlock::Allocate(parameters.size(), "out");
  std::copy(parameters.begin(), parameters.end(), block->data());
  Write(held, block, answer);
  return true;
}

void FakeServer::CloseLanes(const std::string& why) {
  for (auto& [id, lane] : lanes_) lane->Close(absl::UnavailableError(why));
}

std::vector<Seen> FakeServer::Of(RecordType type) const {
  std::vector<Seen> result;
  std::copy_if(seen.begin(), seen.end(), std::back_inserter(result),
               [&](const Seen& s) { return s.type == type; });
  return result;
}

}  // namespace verbena::test
