// Records and replies from a peer are taken only when every field makes sense.
#include "proto/wire/record_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/wire/operations.h"
#include "tests/proto/record_slot.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a push is copied out, its payload stays in the slot") {
  Slot slot;
  slot.Put(PushHeader(100), {GroupOf(100)});
  Record record;
  absl::Span<const std::byte> payload;
  REQUIRE(slot.Check(&record, &payload).ok());
  CHECK(payload.data() == slot.data() + PayloadOffset(1));
  CHECK(payload.size() == 400);
  // Checked values do not change when the peer writes again.
  std::memset(slot.data(), 0xff, 4096);
  CHECK(record.header.table == 3);
  CHECK(record.group_span().size() == 1);
  CHECK(record.group_span()[0].partition == 17);
  CHECK(record.group_span()[0].sequence == 9);
}

TEST_CASE("a push without elements is accepted: its buffer was released before") {
  Slot slot;
  slot.Put(PushHeader(0), {GroupOf(0)});
  Record record;
  absl::Span<const std::byte> payload;
  CHECK(slot.Check(&record, &payload).ok());
  CHECK(payload.empty());
}

TEST_CASE("an end-step may list as many groups as a small slot holds") {
  RecordHeader h = PushHeader(0);
  h.type = RecordType::kEndStep;
  h.dtype = ElementType::kNone;
  h.group_count = kMaxGroups;
  Slot slot;
  slot.Put(h, std::vector<Group>(kMaxGroups, GroupOf(1)));
  Record record;
  absl::Span<const std::byte> payload;
  REQUIRE(slot.Check(&record, &payload).ok());
  CHECK(record.group_span().size() == kMaxGroups);
  CHECK(payload.empty());
}

TEST_CASE("the type of a record determines its element types and payload size") {
  RecordHeader h = PushHeader(100);
  Slot slot;
  const auto check = [&](RecordType type, ElementType dtype, uint32_t bytes) {
    h.type = type;
    h.dtype = dtype;
    h.payload_bytes = bytes;
    slot.Put(h, {GroupOf(100)});
    const absl::Status status = slot.Check();
    return status.ok() ? "accepted" : Message(status);
  };
  CHECK(check(RecordType::kPush, ElementType::kBf16, 200) == "accepted");
  CHECK_THAT(check(RecordType::kPush, ElementType::kBf16, 400),
             Contains("payload_bytes is 400; allowed: 2 for each of the group's 100 elements"));
  CHECK_THAT(check(RecordType::kPush, ElementType::kF32, 200), Contains("allowed: 4 for each"));
  CHECK(check(RecordType::kPush, ElementType::kF16, 200) == "accepted");
  // A block of 128 numbers, of which 100 count.
  for (const auto type : {ElementType::kInt8, ElementType::kE4m3, ElementType::kE5m2}) {
    CHECK(check(RecordType::kPush, type, 132) == "accepted");
    CHECK_THAT(check(RecordType::kPush, type, 104),
               Contains("payload_bytes is 104; allowed: 132 for each 128 of the group's 100"));
    CHECK(check(RecordType::kPull, type, 0) == "accepted");
    CHECK_THAT(check(RecordType::kPull, type, 132), Contains("payload_bytes is 132; allowed: 0"));
  }
  CHECK(check(RecordType::kPush, ElementType::kSign, 20) == "accepted");
  CHECK_THAT(check(RecordType::kPush, ElementType::kSign, 132), Contains("allowed: 20 for each"));
  CHECK(check(RecordType::kPush, ElementType::kTopK, 120) == "accepted");
  CHECK_THAT(check(RecordType::kPush, ElementType::kTopK, 6),
             Contains("payload_bytes is 6; allowed: 120 for each 2048 of the group's 100"));
  for (const auto type : {ElementType::kNone, static_cast<ElementType>(9)}) {
    CHECK_THAT(check(RecordType::kPush, type, 0), Contains("8 (top_k) for push"));
  }
  for (const auto type : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    CHECK(check(RecordType::kPull, type, 0) == "accepted");
  }
  for (const auto type : {ElementType::kNone, ElementType::kSign, ElementType::kTopK}) {
    CHECK_THAT(check(RecordType::kPull, type, 0),
               Contains("allowed: 1 (f32), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), "
                        "6 (fp8_e5m2) for pull"));
  }
  CHECK(check(RecordType::kAssign, ElementType::kF16, 200) == "accepted");
  CHECK_THAT(check(RecordType::kAssign, ElementType::kF32, 200), Contains("allowed: 4 for each"));
  CHECK_THAT(check(RecordType::kAssign, ElementType::kTopK, 120), Contains("for assignment"));
  CHECK_THAT(check(RecordType::kScan, ElementType::kBf16, 0), Contains("dtype is 2; allowed: 1"));
  CHECK_THAT(check(RecordType::kEndStep, ElementType::kBf16, 0),
             Contains("dtype is 2; allowed: 0 (none), 1 (f32)"));
}

TEST_CASE("norms and totals are of one step and one kind") {
  for (const RecordType type : {RecordType::kNorms, RecordType::kTotals}) {
    RecordHeader h = PushHeader(0);
    h.type = type;
    h.dtype = ElementType::kNone;
    h.group_count = kMaxGroups;
    const bool totals = type == RecordType::kTotals;
    h.payload_bytes = totals ? sizeof(TotalsPayload) : 0;
    std::vector<Group> groups(kMaxGroups, GroupOf(0));
    for (Group& g : groups) g.index = 1;
    Slot slot;
    slot.Put(h, groups);
    CHECK(slot.Check().ok());
    groups[7].index = 0;
    slot.Put(h, groups);
    CHECK_THAT(Message(slot.Check()),
               Contains("record.groups[7] is kind 0 of step 9; allowed: that of group 0, kind 1 of "
                        "step 9"));
    groups[7].index = 1;
    groups[8].sequence = 3;
    slot.Put(h, groups);
    CHECK_THAT(Message(slot.Check()), Contains("record.groups[8] is kind 1 of step 3"));
    groups[0].index = 2;
    slot.Put(h, groups);
    CHECK_THAT(Message(slot.Check()),
               Contains("record.groups[0].index is 2; allowed: less than 2"));
    h.payload_bytes = 8;
    slot.Put(h, groups);
    CHECK_THAT(Message(slot.Check()),
               Contains(totals ? "record.payload_bytes is 8; allowed: 64 for totals"
                               : "record.payload_bytes is 8; allowed: 0 for norms"));
  }
}

TEST_CASE("a change of the optimizer has complete values with valid names") {
  RecordHeader h = PushHeader(0);
  h.type = RecordType::kSetOptimizer;
  h.dtype = ElementType::kNone;
  const auto check = [&](uint16_t groups, uint32_t bytes) {
    h.group_count = groups;
    h.payload_bytes = bytes;
    Slot slot;
    slot.Put(h, std::vector<Group>(groups, GroupOf(0)));
    const absl::Status status = slot.Check();
    return status.ok() ? "accepted" : Message(status);
  };
  CHECK(check(1, 0) == "accepted");
  CHECK(check(kMaxSetOptimizerGroups, kMaxNamedValues * sizeof(NamedValue)) == "accepted");
  CHECK_THAT(check(kMaxSetOptimizerGroups + 1, 32), Contains("group_count is 97; allowed: 1..96"));
  CHECK_THAT(check(1, 33), Contains("payload_bytes is 33; allowed: 32 for each of at most 16"));
  CHECK_THAT(check(1, 17 * 32), Contains("payload_bytes is 544; allowed: 32 for each"));
  std::vector<NamedValue> values;
  const auto copy = [&](const std::string& name) {
    NamedValue value = {};
    name.copy(value.name, sizeof(value.name));
    return CopyNamedValues({reinterpret_cast<const std::byte*>(&value), sizeof(value)}, &values);
  };
  CHECK(copy("beta1").ok());
  CHECK(copy(std::string(24, 'x')).ok());
  // A record is filled with zeros.
  const NamedValue filled[] = {{"rate", 0.5}, {}};
  CHECK(
      CopyNamedValues({reinterpret_cast<const std::byte*>(filled), sizeof(filled)}, &values).ok());
  CHECK(values.size() == 1);
  for (const std::string& name : {std::string(), std::string("Rate"), std::string("a b"),
                                  std::string("a\0b", 3), std::string("\xff")}) {
    CHECK_THAT(Message(copy(name)), Contains("values[0].name is no name; allowed: lower-case"));
  }
}

TEST_CASE("a part of a replicated value has its offset and its total") {
  RecordHeader h = PushHeader(0);
  h.type = RecordType::kReplicate;
  h.dtype = ElementType::kNone;
  h.payload_bytes = sizeof(ReplicaHeader) + 64;
  const auto check = [&](auto change) {
    ReplicaHeader replica = {};
    replica.kind = ReplicaKind::kDense;
    replica.count = 48;
    replica.total_bytes = 192;
    replica.part_offset = 128;
    Group group = GroupOf(48);
    change(&replica, &group);
    Slot slot;
    slot.Put(h, {group});
    std::memcpy(slot.data() + PayloadOffset(1), &replica, sizeof(replica));
    Record record;
    absl::Span<const std::byte> payload, data;
    const absl::Status copied = slot.Check(&record, &payload);
    if (!copied.ok()) return Message(copied);
    ReplicaHeader copy;
    const absl::Status status = CopyReplicaHeader(record, payload, &copy, &data);
    if (status.ok()) CHECK(data.size() == 64);
    return status.ok() ? std::string("accepted") : Message(status);
  };
  CHECK(check([](auto*, auto*) {}) == "accepted");
  CHECK_THAT(check([](auto* r, auto*) { r->kind = static_cast<ReplicaKind>(0); }),
             Contains("replica.kind is 0; allowed: 1..16"));
  CHECK_THAT(check([](auto* r, auto*) { r->kind = static_cast<ReplicaKind>(17); }),
             Contains("replica.kind is 17"));
  CHECK_THAT(check([](auto* r, auto*) { r->flags = 1; }), Contains("replica.flags is 1"));
  CHECK(check([](auto* r, auto*) {
          r->kind = ReplicaKind::kBegin;
          r->flags = kReplicaLearner;
        }) == "accepted");
  CHECK(check([](auto* r, auto*) {
          r->kind = ReplicaKind::kRows;
          r->flags = kReplicaToCome;
        }) == "accepted");
  CHECK_THAT(check([](auto* r, auto*) {
               r->kind = ReplicaKind::kBegin;
               r->flags = kReplicaToCome;
             }),
             Contains("replica.flags is 2; allowed: 0, 1"));
  CHECK_THAT(check([](auto* r, auto*) { r->reserved0 = 3; }), Contains("replica.reserved0 is 3"));
  CHECK(check([](auto* r, auto*) { r->assigned = 48; }) == "accepted");
  CHECK_THAT(check([](auto* r, auto*) { r->assigned = 49; }),
             Contains("replica.assigned is 49; allowed: at most the count, 48"));
  CHECK_THAT(check([](auto* r, auto*) {
               r->kind = ReplicaKind::kChunk;
               r->assigned = 1;
             }),
             Contains("replica.assigned is 1; allowed: 0"));
  CHECK_THAT(check([](auto* r, auto*) { r->array = 1; }),
             Contains("replica.array is 1; allowed: 0"));
  CHECK(check([](auto* r, auto*) {
          r->assigned = 48;
          r->array = 255;
        }) == "accepted");
  CHECK_THAT(check([](auto* r, auto*) {
               r->assigned = 48;
               r->array = 256;
             }),
             Contains("replica.array is 256; allowed: 0..255"));
  for (const uint32_t offset : {129u, 193u, UINT32_MAX}) {
    CHECK_THAT(check([&](auto* r, auto*) { r->part_offset = offset; }),
               Contains("replica.part_offset is " + std::to_string(offset)));
  }
  CHECK_THAT(check([](auto*, auto* g) { g->sequence = 0; }), Contains("replica.sequence is 0"));
  h.payload_bytes = sizeof(ReplicaHeader);
  CHECK_THAT(check([](auto*, auto*) {}), Contains("replica.part_offset is 128"));
  h.payload_bytes = sizeof(ReplicaHeader) - 1;
  CHECK_THAT(check([](auto*, auto*) {}),
             Contains("record.payload_bytes is 127; allowed: at least"));
}

TEST_CASE("a record with one field wrong is refused, and the message names it") {
  struct Case {
    const char* message;
    std::function<void(RecordHeader*, Group*)> change;
  };
  const Case cases[] = {
      {"record.magic is 0x0; allowed: 0x31524256", [](auto* h, auto*) { h->magic = 0; }},
      {"record.version is 12; allowed: 11",
       [](auto* h, auto*) { h->version = kProtocolVersion + 1; }},
      {"record.type is 0; allowed: 1 (push)",
       [](auto* h, auto*) { h->type = static_cast<RecordType>(0); }},
      {"record.type is 19", [](auto* h, auto*) { h->type = static_cast<RecordType>(19); }},
      {"record.flags is 1; allowed: 0", [](auto* h, auto*) { h->flags = 1; }},
      {"record.array is 1; allowed: 0 for push", [](auto* h, auto*) { h->array = 1; }},
      {"record.array is 0; allowed: 1..255 for assignment of state",
       [](auto* h, auto*) { h->type = RecordType::kAssignState; }},
      {"record.array is 0; allowed: 1..255 for pull of state",
       [](auto* h, auto*) { h->type = RecordType::kPullState; }},
      {"record.dtype is 2; allowed: 1 (f32) for assignment of state",
       [](auto* h, auto*) {
         h->type = RecordType::kAssignState;
         h->array = 1;
         h->dtype = ElementType::kBf16;
       }},
      {"record.payload_bytes is 400; allowed: 0 for pull of state",
       [](auto* h, auto*) {
         h->type = RecordType::kPullState;
         h->array = 255;
       }},
      {"record.bags is 1", [](auto* h, auto*) { h->bags = 1; }},
      {"record.generation is 8; allowed: 7", [](auto* h, auto*) { h->generation = 8; }},
      {"record.incarnation is 1; allowed: 1234567890123",
       [](auto* h, auto*) { h->incarnation = 1; }},
      {"record.operation is 64; allowed: less than 64", [](auto* h, auto*) { h->operation = 64; }},
      {"record.group_count is 0; allowed: 1 for push", [](auto* h, auto*) { h->group_count = 0; }},
      {"record.group_count is 2; allowed: 1 for push", [](auto* h, auto*) { h->group_count = 2; }},
      {"record.dtype is 0; allowed: 1 (f32)",
       [](auto* h, auto*) { h->dtype = ElementType::kNone; }},
      {"record.dtype is 9", [](auto* h, auto*) { h->dtype = static_cast<ElementType>(9); }},
      {"record.payload_bytes is 0; allowed: 4 for each of the group's 100 elements",
       [](auto* h, auto*) { h->payload_bytes = 0; }},
      {"record.payload_bytes is 404; allowed: 4 for each of the group's 100 elements",
       [](auto* h, auto*) { h->payload_bytes = 404; }},
      {"record.payload_bytes is 400; allowed: 4 for each of the group's 1073741924 elements",
       [](auto*, auto* g) { g->count += 1u << 30; }},
      {"record.payload_bytes is 4000; allowed: at most 3968 in this slot",
       [](auto* h, auto*) { h->payload_bytes = 4000; }},
      {"record.payload_bytes is 4294967295; allowed: at most 3968",
       [](auto* h, auto*) { h->payload_bytes = UINT32_MAX; }},
      {"record.payload_bytes is 400; allowed: 0 for pull",
       [](auto* h, auto*) { h->type = RecordType::kPull; }},
      {"record.group_count is 121; allowed: 1..120",
       [](auto* h, auto*) {
         h->type = RecordType::kAwait;
         h->payload_bytes = 0;
         h->group_count = kMaxGroups + 1;
       }},
      {"record.groups[0].admission is 1",
       [](auto* h, auto* g) {
         h->type = RecordType::kPull;
         h->payload_bytes = 0;
         g->admission = 1;
       }},
  };
  for (const Case& c : cases) {
    CAPTURE(c.message);
    RecordHeader header = PushHeader(100);
    Group group = GroupOf(100);
    c.change(&header, &group);
    Slot slot;
    slot.Put(header, {group});
    const absl::Status status = slot.Check();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK_THAT(Message(status), Contains(c.message));
  }
}

TEST_CASE("regression: pushes and assignments of all kinds may name an admission") {
  for (const auto& operation : wire::kOperations) {
    if (operation.latency != wire::Latency::kPush) continue;
    CAPTURE(operation.name);
    CHECK(operation.makes_steps);
  }
}

TEST_CASE("a pull asks a follower on lanes of a version that has this, and no other request does") {
  for (const uint32_t version : {kOldestProtocolVersion, kFollowersProtocol}) {
    for (const auto& operation : wire::kOperations) {
      if (operation.bags) continue;
      CAPTURE(version, operation.name);
      RecordHeader header = PushHeader(0);
      header.version = static_cast<uint16_t>(version);
      header.type = operation.type;
      header.bags = UINT32_MAX;
      Slot slot;
      slot.Put(header, {GroupOf(0)});
      RecordLimits limits = kLimits;
      limits.version = version;
      Record record;
      absl::Span<const std::byte> payload;
      const absl::Status status = CopyRecord(slot.data(), 4096, limits, &record, &payload);
      const bool may = operation.type == RecordType::kPull && version >= kFollowersProtocol;
      CHECK((Message(status).find("record.bags is 4294967295") == std::string::npos) == may);
      CHECK((!may || record.header.bags == UINT32_MAX));
    }
  }
}

TEST_CASE("records have the version of their lane") {
  for (const uint32_t lane : {kOldestProtocolVersion, kProtocolVersion}) {
    for (const uint32_t version : {kOldestProtocolVersion, kProtocolVersion}) {
      CAPTURE(lane, version);
      RecordHeader header = PushHeader(64);
      header.version = static_cast<uint16_t>(version);
      Slot slot;
      slot.Put(header, {GroupOf(64)});
      RecordLimits limits = kLimits;
      limits.version = lane;
      Record record;
      absl::Span<const std::byte> payload;
      CHECK(CopyRecord(slot.data(), 4096, limits, &record, &payload).ok() == (lane == version));
    }
  }
}

TEST_CASE("a payload by reference needs no space in the slot, and only pushes may have one") {
  RecordHeader header = PushHeader(1 << 20);
  header.flags = kRecordReference;
  const auto check = [&](bool references) {
    Slot slot;
    slot.Put(header, {GroupOf(header.payload_bytes / 4)});
    RecordLimits limits = kLimits;
    limits.references = references;
    Record record;
    absl::Span<const std::byte> payload;
    const absl::Status status = CopyRecord(slot.data(), 4096, limits, &record, &payload);
    CHECK(payload.empty());
    return Message(status);
  };
  CHECK(check(true) == "");
  CHECK_THAT(check(false), Contains("record.flags is 1; allowed: 0"));
  std::string allowed = "allowed: 0, 1 (payload by reference, if there is one) for push";
  SECTION("one that has none") { header.payload_bytes = 0; }
  SECTION("no push") {
    header.type = RecordType::kPushRows;
    allowed = "allowed: 0 for push of rows";
  }
  SECTION("another flag") { header.flags = 2; }
  SECTION("one more flag") { header.flags = 3; }
  CHECK_THAT(check(true), Contains(allowed));
}

TEST_CASE("nothing outside the slot is read, whatever its size and bytes are") {
  RecordHeader await = PushHeader(0);
  await.type = RecordType::kAwait;
  await.group_count = kMaxGroups;
  for (size_t bytes = 0; bytes < 4096; bytes += 31) {
    Slot slot(bytes);
    slot.Put(await, std::vector<Group>(kMaxGroups, GroupOf(1)));
    CHECK(slot.Check().ok() == (bytes >= PayloadOffset(kMaxGroups)));
    slot.Put(PushHeader(100), {GroupOf(100)});
    CHECK(slot.Check().ok() == (bytes >= PayloadOffset(1) + 400));
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    Slot slot(64 + random() % 512);
    RecordHeader header = PushHeader(100);
    reinterpret_cast<uint8_t*>(&header)[random() % sizeof(header)] ^= 1 << (random() % 8);
    slot.Put(header, {GroupOf(100)});
    Record record;
    absl::Span<const std::byte> payload;
    if (slot.Check(&record, &payload).ok() && !payload.empty()) {
      CHECK(payload.back() == std::byte{0});  // readable to its end
    }
  }
}

Reply GoodReply() {
  Reply reply = {};
  reply.magic = kReplyMagic;
  reply.generation = 7;
  reply.operation = 3;
  reply.status = ReplyStatus::kWrongEpoch;
  reply.flags = kReplyReturnsSlot;
  reply.slot = 67;
  reply.group_count = 2;
  reply.group_status[1] = ReplyStatus::kWrongEpoch;
  return reply;
}

TEST_CASE("replies are refused with the field's name") {
  CHECK(CheckReply(GoodReply(), 7, 3, 68).ok());
  const auto refused = [](std::function<void(Reply*)> change) {
    Reply reply = GoodReply();
    change(&reply);
    return Message(CheckReply(reply, 7, 3, 68));
  };
  CHECK_THAT(refused([](Reply* r) { r->magic = 1; }), Contains("reply.magic is 0x1"));
  CHECK_THAT(refused([](Reply* r) { r->generation = 6; }),
             Contains("reply.generation is 6; allowed: 7"));
  CHECK_THAT(refused([](Reply* r) { r->operation = 4; }),
             Contains("reply.operation is 4; allowed: 3"));
  CHECK_THAT(refused([](Reply* r) { r->flags = 2; }), Contains("reply.flags is 2"));
  CHECK_THAT(refused([](Reply* r) { r->slot = 68; }),
             Contains("reply.slot is 68; allowed: less than 68"));
  CHECK_THAT(refused([](Reply* r) { r->flags = 0; }), Contains("reply.slot is 67"));
  CHECK_THAT(refused([](Reply* r) { r->reserved0 = 1; }), Contains("reply.reserved0 is 1"));
  CHECK_THAT(refused([](Reply* r) { r->group_count = 0; }),
             Contains("reply.group_count is 0; allowed: 1..120"));
  CHECK_THAT(refused([](Reply* r) { r->group_count = 121; }), Contains("reply.group_count is 121"));
  CHECK_THAT(refused([](Reply* r) { r->status = static_cast<ReplyStatus>(kMaxReplyStatus + 1); }),
             Contains(absl::StrCat("; allowed: 0..", kMaxReplyStatus)));
  CHECK_THAT(refused([](Reply* r) { r->group_status[1] = static_cast<ReplyStatus>(200); }),
             Contains("reply.group_status[1] is 200"));
}

TEST_CASE("a hello may arrive padded but not cut short") {
  LaneHello hello = {};
  hello.mailbox_address = 0x1234;
  hello.token[15] = 9;
  std::string data(reinterpret_cast<const char*>(&hello), sizeof(hello));
  data.resize(56);
  auto parsed = ParseHello(data);
  REQUIRE(parsed.ok());
  CHECK(parsed->mailbox_address == 0x1234);
  CHECK(parsed->token[15] == 9);
  CHECK_THAT(Message(ParseHello(data.substr(0, 31)).status()),
             Contains("hello.size is 31; allowed: at least 32"));
}

TEST_CASE("every type and status has a name") {
  for (const wire::OperationTraits& operation : wire::kOperations) {
    CHECK_FALSE(operation.name.empty());
    CHECK(wire::FindOperation(operation.type) == &operation);
  }
  CHECK(wire::FindOperation(static_cast<RecordType>(0)) == nullptr);
  CHECK(wire::FindOperation(static_cast<RecordType>(wire::kOperations.size() + 1)) == nullptr);
  for (uint8_t status = 0; status <= kMaxReplyStatus; ++status) {
    CHECK(ReplyStatusName(static_cast<ReplyStatus>(status)) != "unknown");
  }
  CHECK(ReplyStatusName(static_cast<ReplyStatus>(kMaxReplyStatus + 1)) == "unknown");
}

}  // namespace
}  // namespace verbena::test
