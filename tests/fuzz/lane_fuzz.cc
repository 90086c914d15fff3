// Both ends of a lane against a peer without rules. The input is a script of the actions of the
// peer and of the caller; the accounting of receives and sends must hold throughout.
#include <algorithm>
#include <deque>
#include <memory>

#include "rdma/lane/shard_lane.h"
#include "rdma/lane/worker_lane.h"
#include "tests/fuzz/fuzz.h"
#include "tests/rdma/scripted_endpoint.h"

namespace verbena::fuzz {
namespace {

using rdma::Completion;
using rdma::ConnectionEvent;
using rdma::LaneConfig;
using rdma::ScriptedEndpoint;
using rdma::ShardLane;
using rdma::WorkerLane;

constexpr uint32_t kLane = 5;
constexpr uint32_t kGeneration = 7;
constexpr uint64_t kIncarnation = 99;

LaneConfig Config() {
  LaneConfig config;
  config.small_slots = 3;
  config.large_slots = 1;
  config.large_slot_bytes = 8192;
  config.operations = 4;
  return config;
}

// Writes of the lane that have not completed, oldest first; reliable connections complete in order.
class Outstanding {
 public:
  explicit Outstanding(ScriptedEndpoint* endpoint) : endpoint_(endpoint) {}
  size_t size() {
    for (; seen_ < endpoint_->writes.size(); ++seen_) writes_.push_back(endpoint_->writes[seen_]);
    return writes_.size();
  }
  // Completes the oldest signaled write, and the unsignaled writes before it.
  template <typename OnCompletion>
  void Complete(OnCompletion on_completion, bool ok) {
    while (size() > 0) {
      const ScriptedEndpoint::Write write = writes_.front();
      writes_.pop_front();
      if (write.signaled || !ok) return on_completion(ScriptedEndpoint::Sent(write, ok));
    }
  }

 private:
  ScriptedEndpoint* endpoint_;
  size_t seen_ = 0;
  std::deque<ScriptedEndpoint::Write> writes_;
};

class ShardScript {
 public:
  explicit ShardScript(Input input) : input_(input), outstanding_(&endpoint_) {
    ShardLane::Params params;
    params.lane = kLane;
    params.generation = kGeneration;
    params.incarnation = kIncarnation;
    params.config = Config();
    lane_ = *ShardLane::Accept(&endpoint_, ScriptedEndpoint::kConnection, {{}, 0x1000, 1}, params);
    lane_->OnEvent(ScriptedEndpoint::Event(ConnectionEvent::Kind::kEstablished));
  }

  void Run() {
    for (int steps = 0; !input_.empty() && steps < 256; ++steps) {
      Step(input_.Take<uint8_t>());
      FUZZ_CHECK(outstanding_.size() <= Config().shard_sends());
      if (lane_->state() == ShardLane::State::kOpen) {
        FUZZ_CHECK(endpoint_.receives == Config().shard_receives());
      }
      FUZZ_CHECK(lane_->state() == ShardLane::State::kOpen || endpoint_.closed);
    }
    lane_->Close(absl::CancelledError("end of input"));
    lane_->RunOnce();
    std::vector<uint64_t> abandoned;
    lane_->TakeAbandoned(&abandoned);
    written_.insert(written_.end(), abandoned.begin(), abandoned.end());
    std::sort(written_.begin(), written_.end());
    FUZZ_CHECK(written_.size() == next_cookie_ - 1);
    FUZZ_CHECK(std::adjacent_find(written_.begin(), written_.end()) == written_.end());
  }

 private:
  void Step(uint8_t action) {
    const uint32_t slot = action >> 4;
    switch (action & 7) {
      case 0:
      case 1:
        return Arrive(slot);
      case 2:
        return Deliver(endpoint_.Receive(input_.Take<uint32_t>()));
      case 3:
        return Answer(slot);
      case 4:
        return outstanding_.Complete([this](const Completion& c) { Deliver(c); }, true);
      case 5:
        if (!held_.empty() && held_.front().slot_held) {
          held_.front().slot_held = false;
          lane_->ReturnSlot(held_.front().slot);
        }
        return;
      case 6:
        if (slot == 15) {
          lane_->OnEvent(ScriptedEndpoint::Event(ConnectionEvent::Kind::kLost,
                                                 absl::UnavailableError("lost")));
        } else if (slot == 14) {
          outstanding_.Complete([this](const Completion& c) { Deliver(c); }, false);
        }
        return;
      case 7:
        lane_->RunOnce();
        return;
    }
  }
  // A good record with one piece of it overwritten by the input.
  void Arrive(uint32_t slot) {
    RecordHeader header = {};
    header.magic = kRecordMagic;
    header.version = kProtocolVersion;
    header.type = RecordType::kPull;
    header.generation = kGeneration;
    header.incarnation = kIncarnation;
    header.operation = input_.Take<uint8_t>() % 8;
    header.group_count = 1;
    header.dtype = ElementType::kF32;
    const uint8_t at = input_.Take<uint8_t>();
    if (at < sizeof(header)) {
      reinterpret_cast<uint8_t*>(&header)[at] = input_.Take<uint8_t>();
    }
    slot %= Config().slots() + 1;
    if (slot < Config().slots()) {
      std::memcpy(endpoint_.exposed[0]->data() + Config().slot_offset(slot), &header,
                  sizeof(header));
    }
    Deliver(endpoint_.Receive(RequestImm{kLane, slot, kGeneration}.Encode()));
  }
  void Deliver(const Completion& completion) {
    if (!lane_->OnCompletion(completion, &arrival_, &written_)) return;
    FUZZ_CHECK(lane_->state() == ShardLane::State::kOpen);
    for (const Held& held : held_) {
      FUZZ_CHECK(held.operation != arrival_.record.header.operation);
      FUZZ_CHECK(!held.slot_held || held.slot != arrival_.slot);
    }
    held_.push_back({arrival_.record.header.operation, arrival_.slot,
                     arrival_.record.header.group_count, true});
  }
  void Answer(uint32_t how) {
    if (held_.empty()) return;
    const Held held = held_.front();
    held_.pop_front();
    ShardLane::Answer answer;
    answer.operation = held.operation;
    answer.group_count = held.group_count;
    answer.return_slot = held.slot_held;
    answer.slot = held.slot;
    if (how % 2 == 0) return lane_->SendReply(answer);
    const auto& block = endpoint_.exposed[0];
    lane_->WriteAndReply({block->data(), 64, block.get()}, {1, 2}, next_cookie_++, answer);
  }

  struct Held {
    uint32_t operation;
    uint32_t slot;
    uint16_t group_count;
    bool slot_held;
  };
  Input input_;
  ScriptedEndpoint endpoint_;
  Outstanding outstanding_;
  std::unique_ptr<ShardLane> lane_;
  ShardLane::Arrival arrival_;
  std::deque<Held> held_;
  std::vector<uint64_t> written_;
  uint64_t next_cookie_ = 1;
};

class WorkerScript {
 public:
  explicit WorkerScript(Input input) : input_(input), outstanding_(&endpoint_) {
    rdma::LaneTicket ticket;
    ticket.lane = kLane;
    ticket.generation = kGeneration;
    ticket.incarnation = kIncarnation;
    ticket.address = "scripted";
    ticket.config = Config();
    lane_ = *WorkerLane::Open(&endpoint_, ticket);
    buffer_ = *rdma::MemoryBlock::Allocate(8192, "fuzz");
    lane_->OnEvent(ScriptedEndpoint::Event(ConnectionEvent::Kind::kEstablished));
    LaneGrant grant = {kGrantMagic, kGeneration, 0x1000, 1, {}};
    std::memcpy(Mailbox(Config().operations), &grant, sizeof(grant));
    Receive(ReplyImm{ImmKind::kGrant, Config().operations, kGeneration}.Encode());
  }

  void Run() {
    for (int steps = 0; !input_.empty() && steps < 256; ++steps) {
      Step(input_.Take<uint8_t>());
      FUZZ_CHECK(outstanding_.size() <= Config().worker_sends());
      if (lane_->state() == WorkerLane::State::kOpen) {
        FUZZ_CHECK(endpoint_.receives == Config().worker_receives());
      } else {
        FUZZ_CHECK(endpoint_.closed && !lane_->error().ok());
      }
    }
    // The answered and the unanswered requests together are exactly the posted ones.
    std::vector<uint64_t> all = lane_->Unanswered();
    FUZZ_CHECK(std::is_sorted(all.begin(), all.end()));
    FUZZ_CHECK(all.size() == lane_->unanswered_count() && all.size() <= Config().operations);
    for (const WorkerLane::Answer& answer : answers_) all.push_back(answer.cookie);
    std::sort(all.begin(), all.end());
    FUZZ_CHECK(all.size() == next_cookie_ - 1);
    for (size_t i = 0; i < all.size(); ++i) FUZZ_CHECK(all[i] == i + 1);
  }

 private:
  std::byte* Mailbox(uint32_t index) {
    return endpoint_.exposed[0]->data() + index * kMailboxEntryBytes;
  }
  void Receive(uint32_t immediate) { lane_->OnCompletion(endpoint_.Receive(immediate), &answers_); }
  void Step(uint8_t action) {
    const uint32_t index = action >> 4;
    switch (action & 7) {
      case 0:
      case 1:
        return Post(index);
      case 2:
        return Receive(input_.Take<uint32_t>());
      case 3:
        return Reply(index);
      case 4:
        return outstanding_.Complete(
            [this](const Completion& c) { lane_->OnCompletion(c, &answers_); }, true);
      case 5:
        return Receive(ReplyImm{ImmKind::kCredit, index % 5, kGeneration}.Encode());
      case 6:
        if (index == 15) {
          lane_->OnEvent(ScriptedEndpoint::Event(ConnectionEvent::Kind::kLost,
                                                 absl::UnavailableError("lost")));
        }
        return;
      case 7:
        lane_->RunOnce();
        return;
    }
  }
  void Post(uint32_t how) {
    constexpr uint32_t kBytes[] = {0, 64, 2000, 8000, 8192};
    const Group group = {};
    WorkerLane::Request request;
    request.header.type = RecordType::kPush;
    request.groups = absl::MakeConstSpan(&group, 1);
    request.payload = {buffer_->data(), kBytes[how % 5], buffer_.get()};
    request.cookie = next_cookie_;
    const bool can_post = lane_->CanPost(1, kBytes[how % 5]);
    const bool posted = lane_->Post(request).ok();
    FUZZ_CHECK(posted == can_post);
    if (posted) ++next_cookie_;
  }
  // A good reply, but for one byte taken from the input.
  void Reply(uint32_t index) {
    verbena::Reply reply = {};
    reply.magic = kReplyMagic;
    reply.generation = kGeneration;
    reply.operation = index % 5;
    reply.group_count = 1;
    const uint8_t slot = input_.Take<uint8_t>();
    if (slot < 8) {
      reply.flags = kReplyReturnsSlot;
      reply.slot = slot % 5;
    }
    const uint8_t at = input_.Take<uint8_t>();
    if (at < 40) reinterpret_cast<uint8_t*>(&reply)[at] = input_.Take<uint8_t>();
    std::memcpy(Mailbox(index % 5), &reply, sizeof(reply));
    Receive(ReplyImm{ImmKind::kReply, index % 5, kGeneration}.Encode());
  }

  Input input_;
  ScriptedEndpoint endpoint_;
  Outstanding outstanding_;
  std::unique_ptr<WorkerLane> lane_;
  std::shared_ptr<rdma::MemoryBlock> buffer_;
  std::vector<WorkerLane::Answer> answers_;
  uint64_t next_cookie_ = 1;
};

}  // namespace

std::vector<std::string> Seeds() {
  // The first byte picks the end. Shard: arrive in slots 0 and 1, answer, complete, again. Worker:
  // a small record completes and is answered; a large one is answered first.
  std::string shard("\0", 1);
  std::string worker("\1", 1);
  for (int i = 0; i < 8; ++i) {
    shard += std::string("\x00\x01\xff\x03\x10\x02\xff\x05\x13\x04\x04", 11);
    worker += std::string("\x10\x04\x03\x00\xff\x30\x03\x03\xff\x04", 10);
  }
  return {shard, worker};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::fuzz;
  Input input(data, size);
  if (input.Take<uint8_t>() % 2 == 0) {
    ShardScript(input).Run();
  } else {
    WorkerScript(input).Run();
  }
  return 0;
}
