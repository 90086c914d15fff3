// Records about rows from a peer: their keys, and the bags and weights of a lookup of bags.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/proto/record_slot.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

// A record about rows of `dim` numbers, the keys of each group given.
struct RowsRecord {
  explicit RowsRecord(RecordType type, const std::vector<std::vector<uint64_t>>& by_group,
                      uint32_t dim = 2) {
    std::vector<uint64_t> all;
    std::vector<Group> groups;
    for (const auto& some : by_group) {
      groups.push_back(GroupOf(static_cast<uint32_t>(some.size())));
      all.insert(all.end(), some.begin(), some.end());
    }
    header = PushHeader(0);
    header.type = type;
    header.group_count = static_cast<uint16_t>(by_group.size());
    const bool bags = type == RecordType::kLookupBags;
    const bool bare = type == RecordType::kLookup || type == RecordType::kPrefetch;
    const uint64_t bytes = bare          ? all.size() * 8
                           : bags        ? BagPayloadBytes(all.size())
                           : all.empty() ? 0
                                         : KeyBytes(all.size()) + all.size() * dim * 4;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    header.bags = bags ? 3 : 0;
    slot.Put(header, groups);
    std::byte* payload = slot.data() + PayloadOffset(header.group_count);
    std::copy(all.begin(), all.end(), reinterpret_cast<uint64_t*>(payload));
    for (uint32_t i = 0; bags && i < all.size(); ++i) {
      const BagUse use = {i % 3, static_cast<float>(i)};
      std::memcpy(payload + KeyBytes(all.size()) + i * sizeof(use), &use, sizeof(use));
    }
  }
  absl::Status Check() {
    absl::Span<const std::byte> payload;
    absl::Status status = slot.Check(&record, &payload);
    if (status.ok()) status = CopyKeys(record, payload, &keys);
    if (status.ok() && header.type == RecordType::kLookupBags) {
      status = CopyBagUses(record, payload, &uses);
    }
    return status;
  }
  Slot slot;
  RecordHeader header;
  Record record;
  std::vector<uint64_t> keys;
  std::vector<BagUse> uses;
};

TEST_CASE("keys are copied out, group after group") {
  for (const RecordType type : {RecordType::kPushRows, RecordType::kAssignRows, RecordType::kLookup,
                                RecordType::kPrefetch}) {
    RowsRecord rows(type, {{3, 5, UINT64_MAX}, {}, {1}});
    INFO(rows.Check());
    REQUIRE(rows.Check().ok());
    CHECK(rows.keys == std::vector<uint64_t>{3, 5, UINT64_MAX, 1});
    std::memset(rows.slot.data(), 0xff, 4096);
    CHECK(rows.keys[3] == 1);
  }
  CHECK(RowsRecord(RecordType::kPushRows, {{}, {}}).Check().ok());  // settles, and pushes nothing
}

TEST_CASE("an inconsistent record about rows is refused") {
  const auto refused = [](RecordType type, const std::vector<std::vector<uint64_t>>& keys,
                          const std::function<void(RecordHeader*)>& change = {}) {
    RowsRecord rows(type, keys);
    if (change) change(&rows.header);
    std::memcpy(rows.slot.data(), &rows.header, sizeof(rows.header));
    const absl::Status status = rows.Check();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    return Message(status);
  };
  CHECK_THAT(refused(RecordType::kPushRows, {{1, 2}, {7, 7}}),
             Contains("record.keys[3] is 7; allowed: more than the key before it in its group, 7"));
  CHECK_THAT(refused(RecordType::kLookup, {{2, 1}}), Contains("record.keys[1] is 1"));
  CHECK_THAT(refused(RecordType::kLookup, {{}}), Contains("payload_bytes is 0; allowed: 8 for"));
  CHECK_THAT(refused(RecordType::kLookup, {{1}}, [](auto* h) { h->payload_bytes = 12; }),
             Contains("payload_bytes is 12; allowed: 8 for each of the groups' 1 keys"));
  constexpr RecordType kPrefetch = RecordType::kPrefetch;
  CHECK_THAT(refused(kPrefetch, {{2}, {4, 4}}), Contains("record.keys[2] is 4"));
  CHECK_THAT(refused(kPrefetch, {{}, {}}), Contains("payload_bytes is 0; allowed: 8 for"));
  CHECK_THAT(refused(kPrefetch, {{1, 2}}, [](auto* h) { h->payload_bytes = 64; }),
             Contains("payload_bytes is 64; allowed: 8 for each of the groups' 2 keys"));
  CHECK_THAT(refused(kPrefetch, {{1}}, [](auto* h) { h->dtype = ElementType::kBf16; }),
             Contains("dtype is 2; allowed: 0 (none), 1 (f32)"));
  CHECK_THAT(
      refused(RecordType::kAssignRows, {{1}}, [](auto* h) { h->dtype = ElementType::kBf16; }),
      Contains("dtype is 2; allowed: 1 (f32) for assignment of rows"));
  CHECK_THAT(refused(RecordType::kAssignRows, {{1}, {2, 2}}), Contains("record.keys[2] is 2"));
  CHECK_THAT(refused(RecordType::kPushRows, {{1}}, [](auto* h) { h->payload_bytes = 64; }),
             Contains("payload_bytes is 64; allowed: 64 for the groups' 1 keys and as many rows"));
  CHECK_THAT(refused(RecordType::kPushRows, {{1, 2}}, [](auto* h) { h->payload_bytes += 4; }),
             Contains("payload_bytes is 84; allowed: 64 for the groups' 2 keys"));
  CHECK_THAT(refused(RecordType::kPushRows, {{1}}, [](auto* h) { h->dtype = ElementType::kNone; }),
             Contains("dtype is 0; allowed: 1 (f32)"));
  CHECK_THAT(refused(RecordType::kPushRows, {{}}, [](auto* h) { h->payload_bytes = 4; }),
             Contains("payload_bytes is 4; allowed: 0"));
}

TEST_CASE("keys of a lookup of bags may repeat, and their bags and weights are copied out") {
  RowsRecord rows(RecordType::kLookupBags, {{3, 3, 5, UINT64_MAX, UINT64_MAX}, {}, {1}});
  INFO(rows.Check());
  REQUIRE(rows.Check().ok());
  CHECK(rows.keys == std::vector<uint64_t>{3, 3, 5, UINT64_MAX, UINT64_MAX, 1});
  std::memset(rows.slot.data(), 0xff, 4096);
  REQUIRE(rows.uses.size() == 6);
  for (uint32_t i = 0; i < 6; ++i) {
    CHECK(rows.uses[i].bag == i % 3);
    CHECK(rows.uses[i].weight == float(i));
  }
}

TEST_CASE("an inconsistent lookup of bags is refused, and so are bags in any other record") {
  const auto check = [](RecordType type, const std::vector<std::vector<uint64_t>>& keys,
                        const std::function<void(RecordHeader*)>& change = {}) {
    RowsRecord rows(type, keys);
    if (change) change(&rows.header);
    std::memcpy(rows.slot.data(), &rows.header, sizeof(rows.header));
    const absl::Status status = rows.Check();
    return status.ok() ? "accepted" : Message(status);
  };
  constexpr RecordType kBags = RecordType::kLookupBags;
  CHECK_THAT(
      check(kBags, {{3, 2}}),
      Contains("record.keys[1] is 2; allowed: not less than the key before it in its group"));
  CHECK_THAT(check(kBags, {{3}, {2, 1}}), Contains("record.keys[2] is 1"));
  CHECK_THAT(check(kBags, {{}}), Contains("payload_bytes is 0; allowed: 0 for the groups' 0 keys"));
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->payload_bytes = 64; }),
             Contains("payload_bytes is 64; allowed: 72 for the groups' 1 keys, at least one"));
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->payload_bytes += 8; }), Contains("is 80"));
  // The keys are in bags 0, 1 and 2.
  CHECK_THAT(check(kBags, {{1, 1, 1}}, [](auto* h) { h->bags = 2; }),
             Contains("record.uses[2].bag is 2; allowed: less than 2"));
  CHECK(check(kBags, {{1}}, [](auto* h) { h->bags = kMaxBags; }) == "accepted");
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->bags = kMaxBags + 1; }),
             Contains("record.bags is 2097153; allowed: 1..2097152 for a lookup of bags"));
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->bags = 0; }), Contains("record.bags is 0"));
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->dtype = ElementType::kBf16; }),
             Contains("dtype is 2; allowed: 1 (f32)"));
  CHECK_THAT(check(kBags, {{1}}, [](auto* h) { h->flags = kRecordReference; }),
             Contains("flags is 1"));
  for (const RecordType other : {RecordType::kPushRows, RecordType::kLookup}) {
    CHECK_THAT(check(other, {{1}}, [](auto* h) { h->bags = 1; }),
               Contains("record.bags is 1; allowed: 0"));
  }
  CHECK_THAT(check(RecordType::kLookup, {{1, 1}}), Contains("allowed: more than the key before"));
}

}  // namespace
}  // namespace verbena::test
