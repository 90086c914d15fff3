#include "tests/rdma/lane_world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr uint32_t kGeneration = 0xabc123;
constexpr uint64_t kIncarnation = 900;
constexpr size_t kBatch = 16;

// The shard's status for record `id`, which the worker expects.
ReplyStatus StatusOf(uint64_t id, uint32_t group) {
  return static_cast<ReplyStatus>((id + group) % (kMaxReplyStatus + 1));
}

}  // namespace

void FillPattern(uint64_t id, std::byte* to, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = PatternByte(id, i);
}

bool IsPattern(uint64_t id, const std::byte* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != PatternByte(id, i)) return false;
  }
  return true;
}

LaneServer::LaneServer(Endpoint* endpoint, const LaneConfig& config, uint64_t seed)
    : endpoint_(endpoint), config_(config), random_(seed) {
  address_ = *endpoint->Listen();
  // An area for each write-out that can be unfinished: answered and not yet reported.
  source_ = *MemoryBlock::Allocate(4096 * size_t{config.large_slot_bytes} / 16, "test-source");
}

LaneTicket LaneServer::Grant(uint32_t lane) {
  LaneTicket ticket;
  ticket.lane = lane;
  ticket.generation = kGeneration + lane;
  ticket.incarnation = kIncarnation + lane;
  std::memcpy(ticket.token, &lane, sizeof(lane));
  ticket.address = address_;
  ticket.config = config_;
  granted_[lane] = ticket;
  return ticket;
}

void LaneServer::OnEvent(const ConnectionEvent& event) {
  if (event.kind != ConnectionEvent::Kind::kRequest) {
    const auto it = connections_.find(event.connection);
    if (it != connections_.end()) lanes_[it->second]->OnEvent(event);
    return;
  }
  auto hello = ParseHello(event.private_data);
  if (!hello.ok()) return endpoint_->Reject(event.connection, hello.status().ToString());
  uint32_t number;
  std::memcpy(&number, hello->token, sizeof(number));
  const LaneTicket& ticket = granted_.at(number);
  auto lane = ShardLane::Accept(endpoint_, event.connection, *hello,
                                {number, ticket.generation, ticket.incarnation, config_});
  if (!lane.ok()) {
    violations_.push_back(lane.status().ToString());
    return;
  }
  connections_[event.connection] = number;
  lanes_[number] = *std::move(lane);
}

void LaneServer::Written(const std::vector<uint64_t>& cookies) {
  for (uint64_t cookie : cookies) {
    if (cookies_.erase(cookie) != 1) violations_.push_back("a cookie came back twice");
  }
}

void LaneServer::OnCompletion(const Completion& completion) {
  const auto it = connections_.find(completion.connection);
  if (it == connections_.end()) return;
  written_.clear();
  const bool arrived = lanes_[it->second]->OnCompletion(completion, &arrival_, &written_);
  Written(written_);
  if (arrived) OnArrival(it->second);
}

void LaneServer::CheckPayload(const Pending& pending) {
  if (!IsPattern(pending.group.sequence, pending.payload.data(), pending.payload.size())) {
    violations_.push_back(absl::StrCat("payload of record ", pending.group.sequence, " is wrong"));
  }
}

// Until RunOnce() finds the lane closing, no peer has changed the payloads of its records.
void LaneServer::CheckHeld(uint32_t number) {
  if (lanes_[number]->state() == ShardLane::State::kOpen) return;
  for (Pending& pending : pending_) {
    if (pending.lane != number || !pending.holds_slot) continue;
    CheckPayload(pending);
    pending.holds_slot = false;
  }
}

void LaneServer::OnArrival(uint32_t lane) {
  Pending pending;
  pending.lane = lane;
  pending.header = arrival_.record.header;
  pending.group = arrival_.record.groups[0];
  pending.slot = arrival_.slot;
  pending.holds_slot = true;
  pending.payload = arrival_.payload;
  // Half of the records give their slot back at once and wait without it (deferred), the others
  // keep it and their payload is looked at when they are answered.
  if (Below(&random_, 2) == 0) {
    CheckPayload(pending);
    pending.holds_slot = false;
    lanes_[lane]->ReturnSlot(pending.slot);
  }
  pending_.push_back(pending);
}

void LaneServer::AnswerOne() {
  const size_t pick = Below(&random_, pending_.size());
  const Pending pending = pending_[pick];
  pending_[pick] = pending_.back();
  pending_.pop_back();
  ShardLane* lane = lanes_[pending.lane].get();
  if (pending.holds_slot && lane->state() == ShardLane::State::kOpen) CheckPayload(pending);
  const uint64_t id = pending.group.sequence;
  std::vector<ReplyStatus> statuses;
  for (uint32_t i = 0; i < pending.header.group_count; ++i) statuses.push_back(StatusOf(id, i));
  ShardLane::Answer answer;
  answer.operation = pending.header.operation;
  answer.status = StatusOf(id, 0);
  answer.group_status = statuses;
  answer.group_count = pending.header.group_count;
  answer.version = id * 3;
  answer.return_slot = pending.holds_slot;
  answer.slot = pending.slot;
  if (pending.header.type != RecordType::kPull) return lane->SendReply(answer);

  const uint64_t cookie = next_cookie_++;
  const size_t stride = config_.large_slot_bytes;
  std::byte* data = source_->data() + (cookie % (source_->size() / stride)) * stride;
  FillPattern(id, data, pending.group.count);
  cookies_.insert(cookie);
  lane->WriteAndReply({data, pending.group.count, source_.get()},
                      {pending.header.destination, pending.header.destination_key}, cookie, answer);
}

void LaneServer::Pump() {
  ConnectionEvent events[kBatch];
  Completion completions[kBatch];
  const size_t event_count = endpoint_->PollEvents(absl::MakeSpan(events));
  for (size_t i = 0; i < event_count; ++i) OnEvent(events[i]);
  const size_t count = endpoint_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < count; ++i) OnCompletion(completions[i]);
  for (auto& [number, lane] : lanes_) {
    CheckHeld(number);
    if (!lane->RunOnce()) continue;
    written_.clear();
    lane->TakeAbandoned(&written_);
    Written(written_);
  }
  for (uint64_t n = Below(&random_, 4); answering_ && n > 0 && !pending_.empty(); --n) AnswerOne();
  // Answers to a lane that has died meanwhile give their cookies back there.
  for (auto& [number, lane] : lanes_) {
    written_.clear();
    lane->TakeAbandoned(&written_);
    Written(written_);
  }
}

ShardLane* LaneServer::lane(uint32_t number) {
  const auto it = lanes_.find(number);
  return it == lanes_.end() ? nullptr : it->second.get();
}

bool LaneServer::LanesDead() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& entry) {
    return entry.second->state() == ShardLane::State::kDead;
  });
}

LaneUser::LaneUser(Endpoint* endpoint, const LaneTicket& ticket, uint64_t seed)
    : random_(seed), area_bytes_(ticket.config.large_slot_bytes) {
  auto lane = WorkerLane::Open(endpoint, ticket);
  if (!lane.ok()) {
    Violation(lane.status().ToString());
    return;
  }
  lane_ = *std::move(lane);
  buffer_ = *MemoryBlock::Allocate(area_bytes_ * ticket.config.operations, "test-buffer");
  for (size_t i = 0; i < ticket.config.operations; ++i) free_areas_.push_back(i * area_bytes_);
}

void LaneUser::PostSome(uint32_t count) {
  const LaneConfig& config = lane_->ticket().config;
  const uint32_t largest = (config.large_slot_bytes - PayloadOffset(1)) / 4;
  for (; count > 0 && !free_areas_.empty(); --count) {
    Expected expected;
    expected.type = static_cast<RecordType>(1 + Below(&random_, 4));
    expected.offset = free_areas_.back();
    const bool data = expected.type == RecordType::kPush || expected.type == RecordType::kPull;
    if (data) {
      // Small, medium and as large as it gets.
      const uint32_t limits[] = {16, 256, 1024, largest};
      expected.bytes = 4 * (1 + static_cast<uint32_t>(Below(&random_, limits[Below(&random_, 4)])));
    } else {
      expected.groups = 1 + static_cast<uint32_t>(Below(&random_, kMaxGroups));
    }
    const bool push = expected.type == RecordType::kPush;
    std::optional<RemoteMemory> reference;
    if (push && Below(&random_, 4) != 0) {
      reference = lane_->Refer(buffer_, buffer_->data() + expected.offset, expected.bytes);
    }
    if (!lane_->CanPost(expected.groups, push && !reference ? expected.bytes : 0)) return;
    const uint64_t id = next_id_;
    std::vector<Group> groups(expected.groups, Group{});
    groups[0].sequence = id;
    groups[0].count = expected.bytes / (push ? 4 : 1);
    WorkerLane::Request request;
    request.header.type = expected.type;
    request.header.dtype = data ? ElementType::kF32 : ElementType::kNone;
    request.groups = groups;
    request.cookie = id;
    std::byte* const area = buffer_->data() + expected.offset;
    if (push) {
      FillPattern(id, area, expected.bytes);
      request.payload = {area, expected.bytes, buffer_.get()};
      request.reference = reference;
    } else if (data) {
      std::memset(area, 0xee, expected.bytes);
      auto remote = lane_->Expose(buffer_);
      if (!remote.ok()) return;
      request.header.destination = remote->address + expected.offset;
      request.header.destination_key = remote->key;
    }
    const absl::Status posted = lane_->Post(request);
    if (!posted.ok()) {
      if (!absl::IsFailedPrecondition(posted)) Violation(posted.ToString());
      return;
    }
    free_areas_.pop_back();
    expected_[id] = expected;
    ++next_id_;
  }
}

void LaneUser::RunOnce() {
  // Dead: unanswered records are no longer read either.
  if (lane_->RunOnce()) std::memset(buffer_->data(), 0xdd, buffer_->size());
}

void LaneUser::OnCompletion(const Completion& completion) {
  answers_.clear();
  lane_->OnCompletion(completion, &answers_);
  for (const WorkerLane::Answer& answer : answers_) OnAnswer(answer);
}

void LaneUser::OnAnswer(const WorkerLane::Answer& answer) {
  const uint64_t id = answer.cookie;
  const auto it = expected_.find(id);
  if (it == expected_.end() || !answered_.insert(id).second) {
    return Violation(absl::StrCat("record ", id, " was answered twice, or never posted"));
  }
  const Expected& expected = it->second;
  if (answer.reply.version != id * 3) Violation(absl::StrCat("record ", id, ": another's reply"));
  for (uint32_t i = 0; i < expected.groups; ++i) {
    if (answer.reply.group_status[i] != StatusOf(id, i)) {
      Violation(absl::StrCat("record ", id, ": status of group ", i));
    }
  }
  std::byte* const area = buffer_->data() + expected.offset;
  if (expected.type == RecordType::kPull && !IsPattern(id, area, expected.bytes)) {
    Violation(absl::StrCat("record ", id, ": pulled bytes are not there with the reply"));
  }
  // The buffer is ours again: a transport that still read it would deliver this.
  std::memset(area, 0xdd, area_bytes_);
  free_areas_.push_back(expected.offset);
  expected_.erase(it);
}

bool LaneUser::Accounted() const {
  std::vector<uint64_t> unanswered = lane_->Unanswered();
  if (!std::is_sorted(unanswered.begin(), unanswered.end())) return false;
  if (unanswered.size() != lane_->unanswered_count()) return false;
  std::set<uint64_t> all = answered_;
  for (uint64_t id : unanswered) {
    if (!all.insert(id).second) return false;
  }
  return all.size() == posted() && (all.empty() || *all.rbegin() == posted());
}

LaneWorld::LaneWorld(Endpoint* workers, Endpoint* shard, const LaneConfig& config, uint32_t lanes,
                     uint64_t seed, std::function<void()> advance)
    : workers_(workers), server_(shard, config, seed * 7919 + 1), advance_(std::move(advance)) {
  for (uint32_t i = 0; i < lanes; ++i) {
    users_.push_back(std::make_unique<LaneUser>(workers, server_.Grant(i), seed * 104729 + i));
  }
}

void LaneWorld::Step(uint32_t posts) {
  advance_();
  server_.Pump();
  ConnectionEvent events[kBatch];
  Completion completions[kBatch];
  const auto user_of = [this](ConnectionId connection) -> LaneUser* {
    for (auto& user : users_) {
      if (user->lane()->connection() == connection) return user.get();
    }
    return nullptr;
  };
  const size_t event_count = workers_->PollEvents(absl::MakeSpan(events));
  for (size_t i = 0; i < event_count; ++i) {
    if (LaneUser* user = user_of(events[i].connection)) user->OnEvent(events[i]);
  }
  const size_t count = workers_->Poll(absl::MakeSpan(completions));
  for (size_t i = 0; i < count; ++i) {
    if (LaneUser* user = user_of(completions[i].connection)) user->OnCompletion(completions[i]);
  }
  for (auto& user : users_) {
    user->RunOnce();
    if (posts > 0) user->PostSome(posts);
  }
}

bool LaneWorld::StepUntil(const std::function<bool()>& done, uint32_t posts, uint64_t steps) {
  for (uint64_t i = 0; i < steps; ++i) {
    if (done()) return true;
    Step(posts);
  }
  return done();
}

bool LaneWorld::AllOpen() {
  return std::all_of(users_.begin(), users_.end(), [](const auto& user) {
    return user->lane()->state() == WorkerLane::State::kOpen;
  });
}

bool LaneWorld::AllAnswered() {
  return server_.Idle() && std::all_of(users_.begin(), users_.end(), [](const auto& user) {
           return user->answered() == user->posted();
         });
}

bool LaneWorld::AllDead() {
  return server_.LanesDead() && std::all_of(users_.begin(), users_.end(), [](const auto& user) {
           return user->lane()->state() == WorkerLane::State::kDead;
         });
}

std::vector<std::string> LaneWorld::Violations() const {
  std::vector<std::string> all = server_.violations();
  for (const auto& user : users_) {
    all.insert(all.end(), user->violations().begin(), user->violations().end());
  }
  return all;
}

size_t LaneWorld::memory_bytes() const {
  size_t bytes = server_.memory_bytes();
  for (const auto& user : users_) bytes += user->memory_bytes();
  return bytes;
}

}  // namespace verbena::rdma
