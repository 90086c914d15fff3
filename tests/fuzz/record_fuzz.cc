// A slot's content, as a worker may have written it, against CopyRecord(). The input is the slot.
#include <initializer_list>
#include <memory>

#include "proto/spec/optimizer_values.h"
#include "proto/wire/record_check.h"
#include "tests/fuzz/fuzz.h"

namespace verbena::fuzz {
namespace {

constexpr RecordLimits kLimits = {7, 99, 64, /*references=*/true};

std::string Request(RecordType type, uint16_t groups, uint32_t elements) {
  RecordHeader header = {};
  header.magic = kRecordMagic;
  header.version = kProtocolVersion;
  header.type = type;
  header.generation = kLimits.generation;
  header.incarnation = kLimits.incarnation;
  header.group_count = groups;
  header.dtype = ElementType::kF32;
  header.payload_bytes = elements * 4;
  std::string bytes = BytesOf(header);
  for (uint32_t i = 0; i < groups; ++i) {
    Group group = {};
    group.partition = i;
    group.count = elements;
    bytes += BytesOf(group);
  }
  bytes.resize(PayloadOffset(groups) + header.payload_bytes);
  return bytes;
}

std::string Pull(ElementType dtype) {
  std::string bytes = Request(RecordType::kPull, 1, 0);
  bytes[offsetof(RecordHeader, dtype)] = static_cast<char>(dtype);
  return bytes;
}

std::string PullOfFollower(uint32_t staleness_ms) {
  std::string bytes = Pull(ElementType::kF32);
  std::memcpy(bytes.data() + offsetof(RecordHeader, bags), &staleness_ms, sizeof(staleness_ms));
  return bytes;
}

std::string State(RecordType type, uint8_t array, uint32_t elements) {
  std::string bytes = Request(type, 1, elements);
  bytes[offsetof(RecordHeader, array)] = static_cast<char>(array);
  return bytes;
}

std::string Reference(uint32_t elements) {
  std::string bytes = Request(RecordType::kPush, 1, elements).substr(0, PayloadOffset(1));
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.flags = kRecordReference;
  header.destination = 0x7f0000001000;
  header.destination_key = 3;
  return BytesOf(header) + bytes.substr(sizeof(header));
}

// Rows of two numbers; each group's keys are 0, 1, 2 ... In bags: key i is in bag i % 4.
std::string Rows(RecordType type, uint16_t groups, uint32_t keys,
                 ElementType dtype = ElementType::kF32) {
  const bool push = type == RecordType::kPushRows || type == RecordType::kAssignRows,
             bags = type == RecordType::kLookupBags;
  std::string bytes = Request(RecordType::kAwait, groups, keys).substr(0, PayloadOffset(groups));
  const uint64_t count = uint64_t{groups} * keys;
  std::string payload;
  for (uint64_t i = 0; i < count; ++i) payload += BytesOf(i % keys);
  if ((push || bags) && count > 0) {
    payload.resize(KeyBytes(count) + (push ? count * RowBytes(dtype, 2) : 0));
  }
  for (uint64_t i = 0; bags && i < count; ++i) payload += BytesOf(BagUse{uint32_t(i % 4), 0.5f});
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.type = type;
  header.dtype = dtype;
  header.bags = bags ? 4 : 0;
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  return BytesOf(header) + bytes.substr(sizeof(header)) + payload;
}

std::string Totals(uint16_t groups) {
  std::string record = Request(RecordType::kTotals, groups, 0).substr(0, PayloadOffset(groups));
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  header.payload_bytes = sizeof(TotalsPayload);
  std::memcpy(record.data(), &header, sizeof(header));
  return record + BytesOf(TotalsPayload{{1, 2}, {}});
}

std::string SetOptimizer(uint16_t groups, std::initializer_list<std::string> names) {
  std::string record =
      Request(RecordType::kSetOptimizer, groups, 0).substr(0, PayloadOffset(groups));
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  header.payload_bytes = static_cast<uint32_t>(names.size() * sizeof(NamedValue));
  std::memcpy(record.data(), &header, sizeof(header));
  for (const std::string& name : names) {
    NamedValue value = {};
    name.copy(value.name, sizeof(value.name));
    value.value = 0.5;
    record += BytesOf(value);
  }
  return record;
}

std::string Replicate(ReplicaKind kind, uint32_t offset, uint32_t bytes, uint32_t total) {
  std::string record = Request(RecordType::kReplicate, 1, 0).substr(0, PayloadOffset(1));
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  header.payload_bytes = sizeof(ReplicaHeader) + bytes;
  std::memcpy(record.data(), &header, sizeof(header));
  Group group = {};
  group.sequence = 1;
  std::memcpy(record.data() + sizeof(header), &group, sizeof(group));
  ReplicaHeader replica = {};
  replica.kind = kind;
  replica.part_offset = offset;
  replica.total_bytes = total;
  return record + BytesOf(replica) + std::string(bytes, 'x');
}

}  // namespace

std::vector<std::string> Seeds() {
  return {Request(RecordType::kPush, 1, 0),
          Request(RecordType::kPush, 1, 1),
          Request(RecordType::kPush, 1, 100),
          Request(RecordType::kPull, 1, 0),
          Request(RecordType::kEndStep, 3, 0),
          Request(RecordType::kAwait, kMaxGroups, 0),
          Rows(RecordType::kPushRows, 3, 5),
          Rows(RecordType::kPushRows, 1, 0),
          Rows(RecordType::kLookup, 2, 9),
          Request(RecordType::kScan, 1, 0),
          Request(RecordType::kNorms, 5, 0),
          Totals(kMaxGroups),
          SetOptimizer(3, {"rate", "decoupled_weight_decay"}),
          SetOptimizer(kMaxSetOptimizerGroups, {}),
          Request(RecordType::kBeacon, 9, 0),
          Replicate(ReplicaKind::kDense, 64, 64, 128),
          Replicate(ReplicaKind::kSettle, 0, 0, 0),
          Reference(65536),
          Rows(RecordType::kLookupBags, 3, 7),
          Rows(RecordType::kLookupBags, 1, 1),
          Rows(RecordType::kPushRows, 3, 5, ElementType::kInt8),
          Rows(RecordType::kPushRows, 2, 4, ElementType::kBf16),
          Rows(RecordType::kLookup, 2, 9, ElementType::kE4m3),
          Rows(RecordType::kPrefetch, 3, 4),
          Request(RecordType::kAssign, 1, 0),
          Request(RecordType::kAssign, 1, 100),
          Rows(RecordType::kAssignRows, 3, 5),
          State(RecordType::kPullState, 1, 0),
          State(RecordType::kPullState, 255, 0),
          State(RecordType::kAssignState, 1, 0),
          State(RecordType::kAssignState, 2, 100),
          Pull(ElementType::kInt8),
          Pull(ElementType::kE5m2),
          PullOfFollower(1),
          PullOfFollower(UINT32_MAX)};
}

}  // namespace verbena::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena;
  // A slot of exactly this size, so that AddressSanitizer sees one byte too many.
  const std::unique_ptr<std::byte[]> slot(new std::byte[size]);
  if (size > 0) std::memcpy(slot.get(), data, size);
  Record record;
  absl::Span<const std::byte> payload;
  const absl::Status status = CopyRecord(slot.get(), size, fuzz::kLimits, &record, &payload);
  if (!status.ok()) {
    FUZZ_CHECK(!status.message().empty());
    return 0;
  }
  const RecordHeader& h = record.header;
  FUZZ_CHECK(h.operation < fuzz::kLimits.operations);
  FUZZ_CHECK(h.group_count >= 1 && h.group_count <= kMaxGroups);
  const bool elsewhere = h.flags == kRecordReference;
  const bool chunk = h.type == RecordType::kPush || h.type == RecordType::kAssign ||
                     h.type == RecordType::kAssignState;
  const bool state = h.type == RecordType::kPullState || h.type == RecordType::kAssignState;
  FUZZ_CHECK(state == (h.array != 0));
  FUZZ_CHECK(!elsewhere || (chunk && h.payload_bytes > 0));
  FUZZ_CHECK(payload.size() == (elsewhere ? 0 : h.payload_bytes));
  FUZZ_CHECK(payload.data() >= slot.get() && payload.data() + payload.size() <= slot.get() + size);
  const bool bags = h.type == RecordType::kLookupBags;
  const bool rows = h.type == RecordType::kPushRows || h.type == RecordType::kLookup ||
                    h.type == RecordType::kPrefetch || h.type == RecordType::kAssignRows || bags;
  // A pull may ask a follower.
  FUZZ_CHECK(bags ? h.bags >= 1 && h.bags <= kMaxBags : h.bags == 0 || h.type == RecordType::kPull);
  if (h.type == RecordType::kReplicate) {
    ReplicaHeader replica;
    absl::Span<const std::byte> rest;
    if (!CopyReplicaHeader(record, payload, &replica, &rest).ok()) return 0;
    FUZZ_CHECK(rest.size() + sizeof(replica) == payload.size());
    FUZZ_CHECK(replica.part_offset + rest.size() <= replica.total_bytes);
    return 0;
  }
  const bool sets = h.type == RecordType::kSetOptimizer;
  FUZZ_CHECK(chunk || h.type == RecordType::kTotals || rows || sets || payload.empty());
  if (sets) {
    std::vector<NamedValue> values;
    FUZZ_CHECK(h.group_count <= kMaxSetOptimizerGroups);
    const absl::Status copied = CopyNamedValues(payload, &values);
    FUZZ_CHECK(copied.ok() || !copied.message().empty());
    FUZZ_CHECK(values.size() <= kMaxNamedValues);
    for (const NamedValue& value : values) FUZZ_CHECK(!copied.ok() || !NameOf(value).empty());
  }
  if (rows) {
    uint64_t count = 0;
    for (const Group& group : record.group_span()) count += group.count;
    std::vector<uint64_t> keys;
    const absl::Status copied = CopyKeys(record, payload, &keys);
    FUZZ_CHECK(copied.ok() || !copied.message().empty());
    FUZZ_CHECK(!copied.ok() || keys.size() == count);
    std::vector<BagUse> uses;
    if (bags && CopyBagUses(record, payload, &uses).ok()) {
      FUZZ_CHECK(uses.size() == count);
      for (const BagUse& use : uses) FUZZ_CHECK(use.bag < h.bags);
    }
    if (count > 0 && h.type == RecordType::kPushRows) FUZZ_CHECK(payload.size() > KeyBytes(count));
  }
  if (h.type == RecordType::kPush) {
    FUZZ_CHECK(h.payload_bytes == PayloadBytes(h.dtype, record.groups[0].count));
  }
  // Parameters have no signs alone.
  if (h.type == RecordType::kPull) {
    FUZZ_CHECK(h.dtype >= ElementType::kF32 && h.dtype <= ElementType::kE5m2);
  }
  if (h.type == RecordType::kNorms || h.type == RecordType::kTotals) {
    for (const Group& group : record.group_span()) FUZZ_CHECK(group.index < kNormKinds);
    FUZZ_CHECK(h.type == RecordType::kNorms || payload.size() == sizeof(TotalsPayload));
  }
  unsigned sum = 0;
  for (std::byte b : payload) sum += static_cast<unsigned>(b);
  for (const Group& group : record.group_span()) sum += group.count;
  return sum == 0xffffffff ? 1 : 0;  // so that the reads are made
}
