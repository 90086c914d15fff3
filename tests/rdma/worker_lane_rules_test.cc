// Behaviour of a lane's worker end when its peer, or its own completions, break a rule or come in
// an unusual order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rdma/lane/worker_lane.h"
#include "tests/rdma/lane_rules.h"
#include "tests/rdma/scripted_endpoint.h"

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;
using Kind = ConnectionEvent::Kind;

struct WorkerRig {
  ScriptedEndpoint endpoint;
  std::unique_ptr<WorkerLane> lane;
  std::vector<WorkerLane::Answer> answers;
  std::shared_ptr<MemoryBlock> buffer;

  explicit WorkerRig(bool open = true) {
    LaneTicket ticket;
    ticket.lane = kLane;
    ticket.generation = kGeneration;
    ticket.incarnation = kIncarnation;
    ticket.address = "scripted";
    ticket.config = SmallConfig();
    lane = *WorkerLane::Open(&endpoint, ticket);
    buffer = *MemoryBlock::Allocate(1 << 20, "test");
    REQUIRE(endpoint.receives == SmallConfig().worker_receives());
    lane->OnEvent(ScriptedEndpoint::Event(Kind::kEstablished));
    CHECK(lane->state() == WorkerLane::State::kGranting);
    CHECK_FALSE(lane->CanPost(1, 0));
    if (open) Grant({kGrantMagic, kGeneration, 0x100000, 4, {}});
  }

  std::byte* Mailbox(uint32_t index) {
    return endpoint.exposed[0]->data() + index * kMailboxEntryBytes;
  }
  void Receive(ImmKind kind, uint32_t index, uint32_t generation = kGeneration) {
    lane->OnCompletion(endpoint.Receive(ReplyImm{kind, index, generation}.Encode()), &answers);
  }
  void Grant(const LaneGrant& grant) {
    std::memcpy(Mailbox(SmallConfig().operations), &grant, sizeof(grant));
    Receive(ImmKind::kGrant, SmallConfig().operations);
  }
  absl::Status Post(RecordType type, uint32_t payload_bytes, uint64_t cookie, size_t groups = 1) {
    const std::vector<Group> group(groups, Group{});
    WorkerLane::Request request;
    request.header.type = type;
    request.groups = group;
    if (payload_bytes > 0) request.payload = {buffer->data(), payload_bytes, buffer.get()};
    request.cookie = cookie;
    return lane->Post(request);
  }
  RecordHeader Posted(size_t index) const {
    RecordHeader header;
    std::memcpy(&header, endpoint.writes.at(index).bytes.data(), sizeof(header));
    return header;
  }
  uint32_t SlotOf(size_t index) const {
    return RequestImm::Decode(endpoint.writes.at(index).immediate).slot;
  }
  Reply ReplyTo(size_t index) const {
    Reply reply = {};
    reply.magic = kReplyMagic;
    reply.generation = kGeneration;
    reply.operation = Posted(index).operation;
    reply.flags = kReplyReturnsSlot;
    reply.slot = static_cast<uint16_t>(SlotOf(index));
    reply.group_count = Posted(index).group_count;
    return reply;
  }
  void Deliver(const Reply& reply, uint32_t operation) {
    std::memcpy(Mailbox(operation), &reply, sizeof(reply));
    Receive(ImmKind::kReply, operation);
  }
  void Sent(size_t index) {
    lane->OnCompletion(ScriptedEndpoint::Sent(endpoint.writes.at(index)), &answers);
  }
};

TEST_CASE("worker lane: a record travels as one write, small payloads in its first segment") {
  WorkerRig rig;
  std::memset(rig.buffer->data(), 0x5a, rig.buffer->size());
  REQUIRE(rig.Post(RecordType::kPush, 64, 1).ok());
  REQUIRE(rig.Post(RecordType::kPush, 65536, 2).ok());
  REQUIRE(rig.Post(RecordType::kEndStep, 0, 3, 3).ok());
  REQUIRE(rig.endpoint.writes.size() == 3);
  CHECK(rig.endpoint.writes[0].segment_bytes == std::vector<size_t>{128 + 64});
  CHECK(rig.endpoint.writes[1].segment_bytes == std::vector<size_t>{128, 65536});
  CHECK(rig.endpoint.writes[2].segment_bytes == std::vector<size_t>{192});
  CHECK(rig.SlotOf(1) == 2);  // the large one
  CHECK(rig.endpoint.writes[1].remote.address == 0x100000 + 2 * 4096);
  CHECK(rig.Posted(0).incarnation == kIncarnation);
  CHECK(rig.Posted(1).payload_bytes == 65536);
  for (size_t i = 96; i < 128; ++i) CHECK(rig.endpoint.writes[0].bytes[i] == std::byte{0});
  const uint64_t key = rig.endpoint.writes[0].remote.key;
  CHECK(key == 4);
}

TEST_CASE("worker lane: a record's prefix is copied before its payload, and counts as part of it") {
  WorkerRig rig;
  std::memset(rig.buffer->data(), 0x5a, rig.buffer->size());
  const std::vector<std::byte> prefix(128, std::byte{0x17});
  const Group group = {};
  WorkerLane::Request request;
  request.header.type = RecordType::kReplicate;
  request.groups = absl::MakeConstSpan(&group, 1);
  request.prefix = prefix;
  REQUIRE(rig.lane->Post(request).ok());
  request.payload = {rig.buffer->data(), 64, rig.buffer.get()};
  REQUIRE(rig.lane->Post(request).ok());
  request.payload.bytes = 65536 - 128;
  REQUIRE(rig.lane->Post(request).ok());
  CHECK(rig.endpoint.writes[0].segment_bytes == std::vector<size_t>{128 + 128});
  CHECK(rig.endpoint.writes[1].segment_bytes == std::vector<size_t>{128 + 128 + 64});
  CHECK(rig.endpoint.writes[2].segment_bytes == std::vector<size_t>{128 + 128, 65536 - 128});
  CHECK(rig.Posted(0).payload_bytes == 128);
  CHECK(rig.Posted(1).payload_bytes == 128 + 64);
  CHECK(rig.Posted(2).payload_bytes == 65536);
  CHECK(rig.lane->counters().payload_bytes == 128 + 192 + 65536);
  for (size_t i = 0; i < 3; ++i) {
    const std::vector<std::byte>& bytes = rig.endpoint.writes[i].bytes;
    CHECK(std::equal(prefix.begin(), prefix.end(), bytes.begin() + 128));
    CHECK(std::all_of(bytes.begin() + 256, bytes.end(),
                      [](std::byte byte) { return byte == std::byte{0x5a}; }));
  }
}

TEST_CASE("worker lane: a prefix with an invalid length is refused") {
  WorkerRig rig;
  const std::vector<std::byte> bytes(8192);
  const Group group = {};
  WorkerLane::Request request;
  request.groups = absl::MakeConstSpan(&group, 1);
  for (const size_t length : {size_t{1}, size_t{100}, size_t{4096}}) {
    request.prefix = absl::MakeConstSpan(bytes.data(), length);
    const absl::Status status = rig.lane->Post(request);
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(Message(status), Contains("record prefix of " + std::to_string(length) + " bytes"));
  }
  CHECK(rig.endpoint.writes.empty());
}

TEST_CASE("worker lane: records larger than the slots, or without a free slot, are refused") {
  WorkerRig rig;
  CHECK(rig.Post(RecordType::kPush, 1 << 18, 1).code() == absl::StatusCode::kInvalidArgument);
  CHECK(rig.Post(RecordType::kEndStep, 0, 1, kMaxGroups + 1).code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(rig.Post(RecordType::kEndStep, 0, 1, 0).code() == absl::StatusCode::kInvalidArgument);
  WorkerLane::Request outside;
  const Group group = {};
  outside.groups = absl::MakeConstSpan(&group, 1);
  outside.payload = {rig.buffer->data() + rig.buffer->size() - 32, 64, rig.buffer.get()};
  CHECK(rig.lane->Post(outside).code() == absl::StatusCode::kInvalidArgument);

  CHECK(rig.Post(RecordType::kPush, 65536, 1).ok());
  CHECK_FALSE(rig.lane->CanPost(1, 65536));
  CHECK(rig.lane->CanPost(1, 64));
  const absl::Status full = rig.Post(RecordType::kPush, 65536, 2);
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(Message(full), Contains("lane 5 has no free slot"));
  CHECK(rig.lane->counters().credit_stalls == 1);
  CHECK(rig.lane->state() == WorkerLane::State::kOpen);
}

TEST_CASE("worker lane: operations run out without replies, and come back with them") {
  WorkerRig rig;
  for (uint64_t i = 0; i < 4; ++i) {
    REQUIRE(rig.Post(RecordType::kPull, 0, i).ok());
    rig.Sent(i);
    rig.Receive(ImmKind::kCredit, rig.SlotOf(i));  // deferred: holds no slot
  }
  const absl::Status full = rig.Post(RecordType::kPull, 0, 4);
  CHECK(full.code() == absl::StatusCode::kResourceExhausted);
  CHECK_THAT(Message(full), Contains("no free operation"));
  CHECK(rig.lane->Unanswered() == std::vector<uint64_t>{0, 1, 2, 3});
  Reply reply = rig.ReplyTo(1);
  reply.flags = 0;
  reply.slot = 0;
  rig.Deliver(reply, reply.operation);
  REQUIRE(rig.answers.size() == 1);
  CHECK(rig.answers[0].cookie == 1);
  CHECK(rig.Post(RecordType::kPull, 0, 4).ok());
  CHECK(rig.lane->Unanswered() == std::vector<uint64_t>{0, 2, 3, 4});
  CHECK(rig.endpoint.receives == SmallConfig().worker_receives());
}

TEST_CASE("worker lane: an answer waits until the payload it gathered is no longer read") {
  WorkerRig rig;
  REQUIRE(rig.Post(RecordType::kPush, 65536, 1).ok());
  rig.Deliver(rig.ReplyTo(0), rig.Posted(0).operation);
  CHECK(rig.answers.empty());
  CHECK_FALSE(rig.lane->CanPost(1, 65536));  // the slot's staging, too
  CHECK(rig.lane->Unanswered().size() == 1);
  rig.Sent(0);
  REQUIRE(rig.answers.size() == 1);
  CHECK(rig.lane->CanPost(1, 65536));

  // A payload that was copied does not wait; its slot does.
  REQUIRE(rig.Post(RecordType::kPush, 64, 2).ok());
  REQUIRE(rig.Post(RecordType::kPush, 64, 3).ok());
  rig.Deliver(rig.ReplyTo(1), rig.Posted(1).operation);
  CHECK(rig.answers.size() == 2);
  CHECK_FALSE(rig.lane->CanPost(1, 64));
  rig.Sent(1);
  CHECK(rig.lane->CanPost(1, 64));
}

TEST_CASE("worker lane: a probe is an empty write, one at a time, beside a full set of records") {
  WorkerRig rig;
  for (uint64_t i = 0; i < 2; ++i) REQUIRE(rig.Post(RecordType::kPull, 0, i).ok());
  const size_t records = rig.endpoint.writes.size();
  rig.lane->Probe();
  rig.lane->Probe();
  REQUIRE(rig.endpoint.writes.size() == records + 1);
  CHECK(rig.endpoint.writes.back().bytes.empty());
  CHECK_FALSE(rig.endpoint.writes.back().has_immediate);
  rig.Sent(records);
  CHECK(rig.answers.empty());
  CHECK(rig.lane->unanswered_count() == 2);
  rig.lane->Probe();
  CHECK(rig.endpoint.writes.size() == records + 2);
}

TEST_CASE("worker lane: a malformed reply closes the lane with the reason") {
  WorkerRig rig;
  REQUIRE(rig.Post(RecordType::kPull, 0, 1).ok());
  REQUIRE(rig.Post(RecordType::kPull, 0, 2).ok());
  rig.Sent(0);
  rig.Sent(1);
  Reply reply = rig.ReplyTo(0);
  uint32_t operation = reply.operation;
  std::string expected;
  SECTION("magic") {
    reply.magic ^= 1;
    expected = "reply.magic is 0x31505257; allowed: 0x31505256";
  }
  SECTION("generation") {
    reply.generation -= 0x1000;
    expected = "reply.generation is";
  }
  SECTION("operation") {
    reply.operation ^= 1;
    expected = "reply.operation is";
  }
  SECTION("status") {
    reply.status = static_cast<ReplyStatus>(99);
    expected = "reply.status is 99; allowed: 0..";
  }
  SECTION("group status") {
    reply.group_status[0] = static_cast<ReplyStatus>(kMaxReplyStatus + 1);
    expected = "reply.group_status[0] is ";
  }
  SECTION("group count") {
    reply.group_count = 2;
    expected = "reply.group_count is 2; allowed: 1, as in its request";
  }
  SECTION("slot that does not exist") {
    reply.slot = 3;
    expected = "reply.slot is 3";
  }
  SECTION("slot that is not the shard's") {
    reply.slot = 2;
    expected = "reply.slot is 2; allowed: one the shard holds";
  }
  SECTION("an operation that is not in use") {
    operation = 3;
    expected = "operation 3, which is not in use";
  }
  rig.Deliver(reply, operation);
  CHECK(rig.answers.empty());
  CHECK(rig.lane->state() == WorkerLane::State::kClosing);
  CHECK_THAT(Message(rig.lane->error()), Contains(expected) && Contains("lane 5"));
  CHECK(rig.endpoint.closed);
  CHECK(rig.lane->Unanswered() == std::vector<uint64_t>{1, 2});
  CHECK(rig.lane->RunOnce());
  CHECK(rig.lane->state() == WorkerLane::State::kDead);
  // Late completions of a closed lane change nothing.
  rig.Deliver(rig.ReplyTo(0), rig.Posted(0).operation);
  CHECK(rig.answers.empty());
}

TEST_CASE("worker lane: invalid immediates close the lane") {
  WorkerRig rig;
  REQUIRE(rig.Post(RecordType::kPull, 0, 1).ok());
  SECTION("a credit for a slot it holds") { rig.Receive(ImmKind::kCredit, 2); }
  SECTION("a credit for a slot that does not exist") { rig.Receive(ImmKind::kCredit, 200); }
  SECTION("an unknown kind") { rig.Receive(static_cast<ImmKind>(3), 0); }
  SECTION("a retired generation") { rig.Receive(ImmKind::kCredit, rig.SlotOf(0), kGeneration + 1); }
  SECTION("a second grant") { rig.Grant({kGrantMagic, kGeneration, 0x200000, 5, {}}); }
  CHECK(rig.lane->state() == WorkerLane::State::kClosing);
  CHECK_THAT(Message(rig.lane->error()), Contains("the shard sent"));
}

TEST_CASE("worker lane: a malformed grant closes the lane") {
  WorkerRig rig(/*open=*/false);
  SECTION("magic") { rig.Grant({0, kGeneration, 0x100000, 4, {}}); }
  SECTION("generation") { rig.Grant({kGrantMagic, kGeneration + 1, 0x100000, 4, {}}); }
  SECTION("a ring that wraps around") { rig.Grant({kGrantMagic, kGeneration, ~0ull, 4, {}}); }
  CHECK(rig.lane->state() == WorkerLane::State::kClosing);
  CHECK_THAT(Message(rig.lane->error()), Contains("malformed grant: grant."));
}

TEST_CASE("worker lane: dead only when the transport reports the connection dead") {
  WorkerRig rig;
  rig.endpoint.dead_after_close = false;
  REQUIRE(rig.Post(RecordType::kPush, 65536, 1).ok());
  rig.lane->OnEvent(ScriptedEndpoint::Event(Kind::kLost, absl::UnavailableError("peer gone")));
  CHECK(rig.lane->state() == WorkerLane::State::kClosing);
  CHECK_FALSE(rig.lane->RunOnce());
  CHECK(rig.Post(RecordType::kPull, 0, 2).code() == absl::StatusCode::kFailedPrecondition);
  rig.endpoint.dead_after_close = true;
  CHECK(rig.lane->RunOnce());
  CHECK(rig.lane->state() == WorkerLane::State::kDead);
  CHECK(rig.lane->error() == absl::UnavailableError("peer gone"));
  CHECK(rig.lane->Unanswered() == std::vector<uint64_t>{1});
  rig.lane.reset();
  CHECK(rig.endpoint.destroyed);
}

TEST_CASE("a block larger than the transport exposes at once is exposed in pieces that overlap") {
  WorkerRig rig;
  rig.endpoint.most_exposed = 8192;
  const auto block = *MemoryBlock::Allocate(40'000, "large");
  const size_t before = rig.endpoint.exposed.size();
  // Every range of half the limit lies in one piece, and names the block's own address.
  for (const size_t offset : {0, 4095, 4096, 8000, 20'480, 35'904}) {
    const auto memory = rig.lane->Expose(block, block->data() + offset, 4096);
    INFO(offset << " " << memory.status());
    REQUIRE(memory.ok());
    CHECK(memory->address == reinterpret_cast<uint64_t>(block->data()));
    const auto& [begin, bytes] = rig.endpoint.ranges.at(memory->key - 1);
    CHECK(begin <= offset);
    CHECK(offset + 4096 <= begin + bytes);
    CHECK(bytes <= 8192);
  }
  CHECK(rig.endpoint.exposed.size() - before == 4);  // each piece once, and only those in use
  CHECK(rig.lane->Expose(block, block->data(), 8193).status().code() ==
        absl::StatusCode::kInvalidArgument);
  CHECK(rig.lane->Expose(block).status().code() == absl::StatusCode::kInvalidArgument);
  rig.lane->Forget(block->id());
  CHECK(rig.endpoint.unexposed == 4);
  // A smaller block is one piece, at any range.
  const auto small = *MemoryBlock::Allocate(8192, "small");
  CHECK(rig.lane->Expose(small, small->data() + 4000, 4192)->key == rig.lane->Expose(small)->key);
}

TEST_CASE("a range outside every piece is exposed with the whole block, where the transport can") {
  WorkerRig rig;
  rig.endpoint.pieces = {8192, 4096};
  const auto block = *MemoryBlock::Allocate(40'000, "large");
  const auto part = rig.lane->Expose(block, block->data(), 4096);
  const auto whole = rig.lane->Expose(block);
  REQUIRE(part.ok());
  REQUIRE(whole.ok());
  CHECK(part->key != whole->key);
  CHECK(rig.endpoint.ranges.at(part->key - 1) == std::pair<size_t, size_t>(0, 8192));
  CHECK(rig.endpoint.ranges.at(whole->key - 1) == std::pair<size_t, size_t>(0, 40'000));
  CHECK(rig.lane->Expose(block, block->data() + 100, 12'000)->key == whole->key);
  CHECK(rig.lane->Expose(block, block->data() + 39'000, 1000)->key != whole->key);
  rig.lane->Forget(block->id());
  CHECK(rig.endpoint.unexposed == 3);
}

TEST_CASE("a closed lane refuses to expose memory temporarily: its records go to another lane") {
  WorkerRig rig;
  rig.lane->Close(absl::UnavailableError("test"));
  CHECK(IsNotNow(rig.lane->Expose(*MemoryBlock::Allocate(64, "late")).status()));
}

}  // namespace
}  // namespace verbena::rdma
