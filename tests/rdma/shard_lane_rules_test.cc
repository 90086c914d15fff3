// Behaviour of a lane's shard end when its peer, or its own completions, break a rule or come in an
// unusual order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rdma/lane/shard_lane.h"
#include "tests/rdma/lane_rules.h"
#include "tests/rdma/scripted_endpoint.h"

namespace verbena::rdma {
namespace {

using Catch::Matchers::Contains;
using Kind = ConnectionEvent::Kind;

struct ShardRig {
  ScriptedEndpoint endpoint;
  std::unique_ptr<ShardLane> lane;
  ShardLane::Arrival arrival;
  std::vector<uint64_t> written;

  ShardRig() {
    LaneHello hello = {};
    hello.mailbox_address = 0x10000;
    hello.mailbox_key = 9;
    ShardLane::Params params;
    params.lane = kLane;
    params.generation = kGeneration;
    params.incarnation = kIncarnation;
    params.config = SmallConfig();
    lane = *ShardLane::Accept(&endpoint, ScriptedEndpoint::kConnection, hello, params);
    REQUIRE(endpoint.receives == SmallConfig().shard_receives());
    REQUIRE(endpoint.writes.empty());
    lane->OnEvent(ScriptedEndpoint::Event(Kind::kEstablished));
    REQUIRE(endpoint.writes.size() == 1);  // the grant
    endpoint.writes.clear();
  }

  static RecordHeader Header(RecordType type, uint32_t operation) {
    RecordHeader header = {};
    header.magic = kRecordMagic;
    header.version = kProtocolVersion;
    header.type = type;
    header.generation = kGeneration;
    header.operation = operation;
    header.incarnation = kIncarnation;
    header.group_count = 1;
    header.dtype = ElementType::kF32;
    return header;
  }
  void Fill(uint32_t slot, const RecordHeader& header) {
    std::byte* to = endpoint.exposed[0]->data() + SmallConfig().slot_offset(slot);
    std::memcpy(to, &header, sizeof(header));
    std::memset(to + sizeof(header), 0, sizeof(Group));
  }
  bool Arrive(uint32_t immediate) {
    return lane->OnCompletion(endpoint.Receive(immediate), &arrival, &written);
  }
  bool Pull(uint32_t slot, uint32_t operation) {
    Fill(slot, Header(RecordType::kPull, operation));
    return Arrive(RequestImm{kLane, slot, kGeneration}.Encode());
  }
  void Sent(const ScriptedEndpoint::Write& write, bool ok = true) {
    CHECK_FALSE(lane->OnCompletion(ScriptedEndpoint::Sent(write, ok), &arrival, &written));
  }
  static ShardLane::Answer AnswerOf(uint32_t operation, uint32_t slot) {
    ShardLane::Answer answer;
    answer.operation = operation;
    answer.return_slot = true;
    answer.slot = slot;
    return answer;
  }
};

TEST_CASE("shard lane: a peer that breaks the rules loses its lane and gets no other reply") {
  ShardRig rig;
  RecordHeader header = ShardRig::Header(RecordType::kPull, 0);
  RequestImm imm{kLane, 0, kGeneration};
  std::string expected;
  SECTION("another lane's number") {
    imm.lane = kLane + 1;
    expected = "immediate for lane 6";
  }
  SECTION("a slot that was never granted") {
    imm.slot = 3;
    expected = "slot 3; granted: 3";
  }
  SECTION("a retired generation in the immediate") {
    imm.generation = kGeneration - 1;
    expected = "immediate of generation";
  }
  SECTION("a retired generation in the header") {
    header.generation -= 0x1000;
    expected = "record.generation is";
  }
  SECTION("another worker's incarnation") {
    header.incarnation = 78;
    expected = "record.incarnation is 78; allowed: 77";
  }
  SECTION("an operation beyond the granted ones") {
    header.operation = 4;
    expected = "record.operation is 4; allowed: less than 4";
  }
  SECTION("a slot it has not got back") {
    REQUIRE(rig.Pull(0, 1));
    expected = "slot 0, which it does not hold";
  }
  SECTION("an operation it has no reply to") {
    REQUIRE(rig.Pull(1, 0));
    expected = "operation 0, which is in use";
  }
  rig.Fill(imm.slot < 3 ? imm.slot : 0, header);
  CHECK_FALSE(rig.Arrive(imm.Encode()));
  CHECK(rig.lane->state() == ShardLane::State::kClosing);
  CHECK(rig.lane->error().code() == absl::StatusCode::kInvalidArgument);
  CHECK_THAT(Message(rig.lane->error()), Contains(expected) && Contains("lane 5 of worker 77"));
  CHECK(rig.endpoint.closed);
  CHECK(rig.endpoint.writes.empty());
  CHECK(rig.lane->RunOnce());
  CHECK(rig.lane->state() == ShardLane::State::kDead);
  CHECK_FALSE(rig.lane->RunOnce());
}

TEST_CASE("shard lane: the receive is posted again before the credit returns") {
  ShardRig rig;
  REQUIRE(rig.Pull(0, 0));
  CHECK(rig.endpoint.receives == SmallConfig().shard_receives());
  CHECK(rig.endpoint.writes.empty());
  rig.lane->ReturnSlot(0);
  REQUIRE(rig.endpoint.writes.size() == 1);
  CHECK(rig.endpoint.writes[0].bytes.empty());
  CHECK(ReplyImm::Decode(rig.endpoint.writes[0].immediate).kind == ImmKind::kCredit);
}

TEST_CASE("shard lane: the last answer and refusals wake the worker") {
  ShardRig rig;
  auto& writes = rig.endpoint.writes;
  REQUIRE(rig.Pull(0, 0));
  REQUIRE(rig.Pull(1, 1));
  REQUIRE(rig.Pull(2, 2));
  SECTION("answered one by one") {
    rig.lane->SendReply(ShardRig::AnswerOf(0, 0));
    ShardLane::Answer refused = ShardRig::AnswerOf(1, 1);
    refused.status = ReplyStatus::kNotReady;
    rig.lane->SendReply(refused);
    rig.lane->SendReply(ShardRig::AnswerOf(2, 2));
    REQUIRE(writes.size() == 3);
    CHECK(writes[0].wakes == Wakes::kImpatientPeer);
    CHECK(writes[1].wakes == Wakes::kPeer);  // asked again, before others are answered
    CHECK(writes[2].wakes == Wakes::kPeerAtLast);
    CHECK(rig.endpoint.woken.empty());
  }
  SECTION("together: once") {
    rig.lane->BeginAnswers();
    rig.lane->SendReply(ShardRig::AnswerOf(0, 0));
    rig.lane->SendReply(ShardRig::AnswerOf(1, 1));
    rig.lane->SendReply(ShardRig::AnswerOf(2, 2));
    for (const auto& write : writes) CHECK(write.wakes == Wakes::kNobody);
    CHECK(rig.endpoint.woken.empty());
    rig.lane->EndAnswers();
    CHECK(rig.endpoint.woken == std::vector<Wakes>{Wakes::kPeerAtLast});
  }
  SECTION("together, not all") {
    rig.lane->BeginAnswers();
    rig.lane->SendReply(ShardRig::AnswerOf(0, 0));
    rig.lane->EndAnswers();
    CHECK(rig.endpoint.woken == std::vector<Wakes>{Wakes::kImpatientPeer});
    // Nothing was answered, nobody is woken.
    rig.lane->BeginAnswers();
    rig.lane->EndAnswers();
    CHECK(rig.endpoint.woken.size() == 1);
    rig.lane->BeginAnswers();
    ShardLane::Answer refused = ShardRig::AnswerOf(1, 1);
    const ReplyStatus status = ReplyStatus::kWrongEpoch;
    refused.group_status = absl::MakeConstSpan(&status, 1);
    rig.lane->SendReply(refused);
    rig.lane->EndAnswers();
    CHECK(rig.endpoint.woken.back() == Wakes::kPeer);
  }
}

TEST_CASE("shard lane: a reply waits for the completion of the one before it") {
  // The worker may use an operation again before the acknowledgement of its reply is here; the
  // reply's memory must not change, and the send queue must not grow.
  ShardRig rig;
  REQUIRE(rig.Pull(0, 2));
  rig.lane->SendReply(ShardRig::AnswerOf(2, 0));
  REQUIRE(rig.endpoint.writes.size() == 1);
  REQUIRE(rig.Pull(0, 2));
  ShardLane::Answer second = ShardRig::AnswerOf(2, 0);
  second.version = 42;
  const Segment data = {rig.endpoint.exposed[0]->data(), 128, rig.endpoint.exposed[0].get()};
  rig.lane->WriteAndReply(data, {0x5000, 3}, 1001, second);
  CHECK(rig.endpoint.writes.size() == 1);

  rig.Sent(rig.endpoint.writes[0]);
  REQUIRE(rig.endpoint.writes.size() == 3);
  CHECK(rig.endpoint.writes[1].remote.address == 0x5000);
  CHECK_FALSE(rig.endpoint.writes[1].signaled);
  CHECK(rig.endpoint.writes[1].more);  // one doorbell for both
  CHECK_FALSE(rig.endpoint.writes[2].more);
  Reply reply = {};
  std::memcpy(&reply, rig.endpoint.writes[2].bytes.data(), rig.endpoint.writes[2].bytes.size());
  CHECK(reply.version == 42);
  CHECK(rig.written.empty());
  rig.Sent(rig.endpoint.writes[2]);
  CHECK(rig.written == std::vector<uint64_t>{1001});
  CHECK(rig.lane->state() == ShardLane::State::kOpen);
}

TEST_CASE("shard lane: a credit waits for the completion of the one before it") {
  ShardRig rig;
  REQUIRE(rig.Pull(1, 0));
  rig.lane->ReturnSlot(1);
  REQUIRE(rig.Pull(1, 1));
  rig.lane->ReturnSlot(1);
  REQUIRE(rig.endpoint.writes.size() == 1);
  rig.Sent(rig.endpoint.writes[0]);
  CHECK(rig.endpoint.writes.size() == 2);
}

TEST_CASE("shard lane: cookies of data writes come back once, even if the lane is lost") {
  ShardRig rig;
  const Segment data = {rig.endpoint.exposed[0]->data(), 64, rig.endpoint.exposed[0].get()};
  REQUIRE(rig.Pull(0, 0));
  rig.lane->WriteAndReply(data, {0x5000, 3}, 10, ShardRig::AnswerOf(0, 0));  // flushed
  REQUIRE(rig.Pull(0, 0));
  rig.lane->WriteAndReply(data, {0x5000, 3}, 11, ShardRig::AnswerOf(0, 0));  // waiting
  REQUIRE(rig.Pull(0, 1));
  rig.lane->WriteAndReply(data, {0x5000, 3}, 12, ShardRig::AnswerOf(1, 0));  // never completes
  REQUIRE(rig.Pull(0, 2));
  rig.endpoint.next_write = absl::FailedPreconditionError("in error");
  rig.lane->WriteAndReply(data, {0x5000, 3}, 13, ShardRig::AnswerOf(2, 0));  // never posted
  rig.lane->OnEvent(ScriptedEndpoint::Event(Kind::kLost, absl::UnavailableError("peer gone")));
  rig.lane->WriteAndReply(data, {0x5000, 3}, 14, ShardRig::AnswerOf(3, 0));  // too late
  CHECK(rig.lane->error() == absl::UnavailableError("peer gone"));
  rig.Sent(rig.endpoint.writes[0], false);
  rig.Sent(rig.endpoint.writes[1], false);
  CHECK(rig.written == std::vector<uint64_t>{10});
  std::vector<uint64_t> abandoned;
  rig.lane->TakeAbandoned(&abandoned);
  CHECK(abandoned.empty());  // not dead yet
  REQUIRE(rig.lane->RunOnce());
  rig.lane->TakeAbandoned(&abandoned);
  std::sort(abandoned.begin(), abandoned.end());
  CHECK(abandoned == std::vector<uint64_t>{11, 12, 13, 14});
  rig.lane->TakeAbandoned(&abandoned);
  CHECK(abandoned.size() == 4);
}

TEST_CASE("shard lane: a configuration that cannot work rejects the connection") {
  ScriptedEndpoint endpoint;
  ShardLane::Params params;
  params.config.operations = 0;
  auto lane = ShardLane::Accept(&endpoint, ScriptedEndpoint::kConnection, {}, params);
  CHECK_THAT(Message(lane.status()), Contains("lane.operations is 0; allowed: 1..65536"));
  CHECK(endpoint.rejected);
  CHECK_FALSE(endpoint.destroyed);
}

}  // namespace
}  // namespace verbena::rdma
