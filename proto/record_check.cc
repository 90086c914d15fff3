#include "proto/record_check.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

// Out of line: only a malformed record pays for its error message.
template <typename Value>
[[gnu::cold, gnu::noinline]] absl::Status Bad(std::string_view what, std::string_view field,
                                              const Value& value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(absl::string_view(what.data(), what.size()), ".",
                   absl::string_view(field.data(), field.size()), " is ", value,
                   "; allowed: ", absl::string_view(allowed.data(), allowed.size())));
}

[[gnu::cold, gnu::noinline]] absl::Status BadHex(std::string_view what, std::string_view field,
                                                 uint64_t value, uint64_t allowed) {
  return Bad(what, field, absl::StrCat("0x", absl::Hex(value)),
             absl::StrCat("0x", absl::Hex(allowed)));
}

[[gnu::cold, gnu::noinline]] absl::Status BadNumber(std::string_view what, std::string_view field,
                                                    uint64_t value, uint64_t allowed) {
  return Bad(what, field, value, absl::StrCat(allowed));
}

[[gnu::cold, gnu::noinline]] absl::Status BadBelow(std::string_view what, std::string_view field,
                                                   uint64_t value, uint64_t limit) {
  return Bad(what, field, value, absl::StrCat("less than ", limit));
}

// Call after a copy from memory that the peer can write. The compiler then cannot assume that
// source and copy are equal, so it cannot replace a later read of the copy by a second read of the
// source.
inline void CopiedOut(const void* copy) { asm volatile("" : : "r"(copy) : "memory"); }

constexpr std::string_view kRecord = "record";
constexpr std::string_view kReply = "reply";

absl::Status CheckIdentity(const RecordHeader& h, const RecordLimits& limits) {
  if (h.magic != kRecordMagic) return BadHex(kRecord, "magic", h.magic, kRecordMagic);
  if (h.version != kWireVersion) return BadNumber(kRecord, "version", h.version, kWireVersion);
  if (h.flags != 0 && (h.flags != kRecordReference || h.type != RecordType::kPush ||
                       !limits.references || h.payload_bytes == 0)) {
    return Bad(kRecord, "flags", h.flags,
               limits.references ? "0; 1 (payload by reference) for a push that has one" : "0");
  }
  if (h.reserved0 != 0) return BadNumber(kRecord, "reserved0", h.reserved0, 0);
  if (h.bags != 0 && h.type != RecordType::kLookupBags) {
    return BadNumber(kRecord, "bags", h.bags, 0);
  }
  if (h.generation != limits.generation) {
    return BadNumber(kRecord, "generation", h.generation, limits.generation);
  }
  if (h.incarnation != limits.incarnation) {
    return BadNumber(kRecord, "incarnation", h.incarnation, limits.incarnation);
  }
  if (h.operation >= limits.operations) {
    return BadBelow(kRecord, "operation", h.operation, limits.operations);
  }
  return absl::OkStatus();
}

// Checks the dtype against the type of the record.
absl::Status CheckType(const RecordHeader& h) {
  const auto refuse = [&](const char* allowed) {
    return Bad(kRecord, "dtype", static_cast<uint32_t>(h.dtype), allowed);
  };
  switch (h.type) {
    case RecordType::kPush:
      if (h.dtype >= ElementType::kF32 && h.dtype <= ElementType::kTopK) break;
      return refuse(
          "1 (f32), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), 6 (fp8_e5m2), 7 (sign), "
          "8 (top_k) for a push");
    case RecordType::kPull:
    case RecordType::kPushRows:
    case RecordType::kLookup:
      if (h.dtype >= ElementType::kF32 && h.dtype <= ElementType::kE5m2) break;
      return refuse(
          "1 (f32), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), 6 (fp8_e5m2) for a pull, a push of "
          "rows or a lookup");
    case RecordType::kLookupBags:
    case RecordType::kScan:
      if (h.dtype == ElementType::kF32) break;
      return refuse("1 (f32) for a lookup of bags or a scan");
    default:
      if (h.dtype == ElementType::kF32 || h.dtype == ElementType::kNone) break;
      return refuse("0 (none), 1 (f32)");
  }
  return absl::OkStatus();
}

// Checks dtype, groups and payload against the type of the record.
absl::Status CheckShape(const RecordHeader& h) {
  bool payload = false;
  switch (h.type) {
    case RecordType::kPush:
    case RecordType::kReplicate:
      payload = true;
      [[fallthrough]];
    case RecordType::kPull:
    case RecordType::kScan:
      if (h.group_count != 1) {
        return Bad(kRecord, "group_count", h.group_count,
                   "1 for a push, a pull, a scan or a replicate");
      }
      break;
    case RecordType::kLookupBags:
      if (h.bags < 1 || h.bags > kMaxBags) {
        return Bad(kRecord, "bags", h.bags, absl::StrCat("1..", kMaxBags, " for a lookup of bags"));
      }
      [[fallthrough]];
    case RecordType::kPushRows:
    case RecordType::kLookup:
    case RecordType::kIntent:
      payload = true;
      break;
    case RecordType::kEndStep:
    case RecordType::kAwait:
    case RecordType::kNorms:
    case RecordType::kTotals:
    case RecordType::kBeacon:
      break;
    default:
      return Bad(
          kRecord, "type", static_cast<uint32_t>(h.type),
          "1 (push), 2 (pull), 3 (end-step), 4 (await), 5 (push of rows), 6 (lookup), "
          "7 (scan), 8 (norms), 9 (totals), 10 (replicate), 11 (beacon), 12 (lookup of bags), "
          "13 (intent)");
  }
  if (h.group_count < 1 || h.group_count > kMaxGroups) {
    return Bad(kRecord, "group_count", h.group_count, absl::StrCat("1..", kMaxGroups));
  }
  if (const absl::Status s = CheckType(h); !s.ok()) return s;
  // A push without a payload settles a push whose buffer was released; it contributes zero.
  if (!payload && h.payload_bytes != 0) {
    return Bad(kRecord, "payload_bytes", h.payload_bytes,
               "0 unless it is a push, a lookup, an intent or a replicate");
  }
  return absl::OkStatus();
}

// All groups must have the same step and the same kind of norm.
absl::Status CheckNorms(const RecordHeader& h, const Group* groups) {
  for (uint32_t i = 0; i < h.group_count; ++i) {
    if (groups[i].index >= kNormKinds) {
      return BadBelow(kRecord, absl::StrCat("groups[", i, "].index"), groups[i].index, kNormKinds);
    }
    if (groups[i].index != groups[0].index || groups[i].sequence != groups[0].sequence) {
      return Bad(
          kRecord, absl::StrCat("groups[", i, "]"),
          absl::StrCat("kind ", groups[i].index, " of step ", groups[i].sequence),
          absl::StrCat("that of group 0, kind ", groups[0].index, " of step ", groups[0].sequence));
    }
  }
  return absl::OkStatus();
}

// Checks the payload's size against the counts of the groups.
absl::Status CheckPayload(const RecordHeader& h, const Group* groups) {
  uint64_t count = 0;
  for (uint32_t i = 0; i < h.group_count; ++i) count += groups[i].count;
  const uint64_t bytes = h.payload_bytes;
  switch (h.type) {
    case RecordType::kPush:
      if (bytes == PayloadBytes(h.dtype, count)) return absl::OkStatus();
      return Bad(kRecord, "payload_bytes", bytes,
                 InBlocks(h.dtype)
                     ? absl::StrCat(CodecBlockBytes(h.dtype), " for each ", CodecBlock(h.dtype),
                                    " of the group's ", count, " elements, or less of them")
                     : absl::StrCat(ElementBytes(h.dtype), " for each of the group's ", count,
                                    " elements"));
    case RecordType::kPushRows: {
      // The number of elements in a row depends on the table, which is not known here.
      const uint64_t rows = bytes - std::min(KeyBytes(count), bytes);
      if (count == 0 ? bytes == 0 : rows > 0 && rows % (count * kRowMultiple) == 0) {
        return absl::OkStatus();
      }
      return Bad(
          kRecord, "payload_bytes", bytes,
          absl::StrCat(count == 0 ? 0 : KeyBytes(count), " for the groups' ", count,
                       " keys and as many rows of ", kRowMultiple, " bytes or a multiple of that"));
    }
    case RecordType::kLookup:
    case RecordType::kIntent:
      if (count > 0 && bytes == count * sizeof(uint64_t)) return absl::OkStatus();
      return Bad(kRecord, "payload_bytes", bytes,
                 absl::StrCat("8 for each of the groups' ", count, " keys, at least one"));
    case RecordType::kLookupBags:
      if (count > 0 && bytes == BagPayloadBytes(count)) return absl::OkStatus();
      return Bad(kRecord, "payload_bytes", bytes,
                 absl::StrCat(BagPayloadBytes(count), " for the groups' ", count,
                              " keys, at least one, and 8 for each"));
    case RecordType::kReplicate:
      if (bytes >= sizeof(ReplicaHeader)) return absl::OkStatus();
      return Bad(kRecord, "payload_bytes", bytes,
                 absl::StrCat("at least ", sizeof(ReplicaHeader), " for a replicate"));
    case RecordType::kNorms:
    case RecordType::kTotals:
      return CheckNorms(h, groups);
    default:
      return absl::OkStatus();
  }
}

}  // namespace

absl::Status CopyRecord(const std::byte* slot, size_t slot_bytes, const RecordLimits& limits,
                        Record* record, absl::Span<const std::byte>* payload) {
  if (slot_bytes < sizeof(RecordHeader)) {
    return Bad(kRecord, "slot_bytes", slot_bytes, absl::StrCat("at least ", sizeof(RecordHeader)));
  }
  std::memcpy(&record->header, slot, sizeof(RecordHeader));
  CopiedOut(&record->header);
  const RecordHeader& h = record->header;
  if (absl::Status s = CheckIdentity(h, limits); !s.ok()) return s;
  if (absl::Status s = CheckShape(h); !s.ok()) return s;

  const uint32_t offset = PayloadOffset(h.group_count);
  if (offset > slot_bytes) {
    return Bad(kRecord, "group_count", h.group_count,
               absl::StrCat("as many as fit the slot's ", slot_bytes, " bytes"));
  }
  const bool elsewhere = h.flags == kRecordReference;
  if (!elsewhere && h.payload_bytes > slot_bytes - offset) {
    return Bad(kRecord, "payload_bytes", h.payload_bytes,
               absl::StrCat("at most ", slot_bytes - offset, " in this slot"));
  }
  std::memcpy(record->groups, slot + sizeof(RecordHeader), h.group_count * sizeof(Group));
  CopiedOut(record->groups);
  for (uint32_t i = 0; i < h.group_count; ++i) {
    if (record->groups[i].reserved != 0) {
      return BadNumber(kRecord, absl::StrCat("groups[", i, "].reserved"),
                       record->groups[i].reserved, 0);
    }
  }
  if (absl::Status s = CheckPayload(h, record->groups); !s.ok()) return s;
  *payload = absl::MakeConstSpan(slot + offset, elsewhere ? 0 : h.payload_bytes);
  return absl::OkStatus();
}

absl::Status CopyKeys(const Record& record, absl::Span<const std::byte> payload,
                      std::vector<uint64_t>* keys) {
  uint64_t count = 0;
  for (const Group& group : record.group_span()) count += group.count;
  if (count * sizeof(uint64_t) > payload.size()) {
    return Bad(kRecord, "payload_bytes", payload.size(),
               absl::StrCat("at least 8 for each of ", count, " keys"));
  }
  keys->resize(count);
  if (count > 0) std::memcpy(keys->data(), payload.data(), count * sizeof(uint64_t));
  CopiedOut(keys->data());
  const bool repeat = record.header.type == RecordType::kLookupBags;
  const uint64_t* key = keys->data();
  for (const Group& group : record.group_span()) {
    for (uint32_t i = 1; i < group.count; ++i) {
      if (key[i - 1] < key[i] || (repeat && key[i - 1] == key[i])) continue;
      return Bad(kRecord, absl::StrCat("keys[", key + i - keys->data(), "]"), key[i],
                 absl::StrCat(repeat ? "not less" : "more",
                              " than the key before it in its group, ", key[i - 1]));
    }
    key += group.count;
  }
  return absl::OkStatus();
}

absl::Status CopyBagUses(const Record& record, absl::Span<const std::byte> payload,
                         std::vector<BagUse>* uses) {
  uint64_t count = 0;
  for (const Group& group : record.group_span()) count += group.count;
  if (BagPayloadBytes(count) > payload.size()) {
    return Bad(kRecord, "payload_bytes", payload.size(),
               absl::StrCat("at least ", BagPayloadBytes(count), " for ", count, " keys"));
  }
  uses->resize(count);
  const std::byte* from = payload.data() + KeyBytes(count);
  if (count > 0) std::memcpy(uses->data(), from, count * sizeof(BagUse));
  CopiedOut(uses->data());
  const uint32_t bags = record.header.bags;
  for (size_t i = 0; i < uses->size(); ++i) {
    if ((*uses)[i].bag < bags) continue;
    return BadBelow(kRecord, absl::StrCat("uses[", i, "].bag"), (*uses)[i].bag, bags);
  }
  return absl::OkStatus();
}

absl::Status CopyReplicaHeader(const Record& record, absl::Span<const std::byte> payload,
                               ReplicaHeader* header, absl::Span<const std::byte>* data) {
  constexpr std::string_view kReplica = "replica";
  if (payload.size() < sizeof(*header)) {
    return Bad(kRecord, "payload_bytes", payload.size(),
               absl::StrCat("at least ", sizeof(*header)));
  }
  std::memcpy(header, payload.data(), sizeof(*header));
  CopiedOut(header);
  const ReplicaHeader& h = *header;
  const auto kind = static_cast<uint32_t>(h.kind);
  if (kind < 1 || kind > kMaxReplicaKind) {
    return Bad(kReplica, "kind", kind, absl::StrCat("1..", kMaxReplicaKind));
  }
  const bool rows = h.kind == ReplicaKind::kSlice || h.kind == ReplicaKind::kRows;
  const uint8_t flags = h.kind == ReplicaKind::kBegin ? kReplicaLearner : rows ? kReplicaToCome : 0;
  if ((h.flags & ~flags) != 0) {
    return Bad(kReplica, "flags", static_cast<uint32_t>(h.flags),
               flags == 0 ? "0" : absl::StrCat("0, ", static_cast<uint32_t>(flags)));
  }
  if (h.reserved0 != 0) return BadNumber(kReplica, "reserved0", h.reserved0, 0);
  for (const uint8_t byte : h.reserved1) {
    if (byte != 0) return BadNumber(kReplica, "reserved1", byte, 0);
  }
  const uint64_t bytes = payload.size() - sizeof(h);
  if (h.part_offset > h.total_bytes || bytes > h.total_bytes - h.part_offset ||
      (bytes == 0 && h.total_bytes > 0)) {
    return Bad(kReplica, "part_offset", h.part_offset,
               absl::StrCat("at most ", h.total_bytes, " (total_bytes) less the ", bytes,
                            " bytes of this part, which are none only if total_bytes is 0"));
  }
  if (record.groups[0].sequence == 0) return Bad(kReplica, "sequence", 0, "1 or more");
  *data = payload.subspan(sizeof(h));
  return absl::OkStatus();
}

absl::Status CheckReply(const Reply& reply, uint32_t generation, uint32_t operation,
                        uint32_t slots) {
  if (reply.magic != kReplyMagic) return BadHex(kReply, "magic", reply.magic, kReplyMagic);
  if (reply.generation != generation) {
    return BadNumber(kReply, "generation", reply.generation, generation);
  }
  if (reply.operation != operation) {
    return BadNumber(kReply, "operation", reply.operation, operation);
  }
  if (static_cast<uint8_t>(reply.status) > kMaxReplyStatus) {
    return Bad(kReply, "status", static_cast<uint32_t>(reply.status),
               absl::StrCat("0..", kMaxReplyStatus));
  }
  if ((reply.flags & ~kReplyReturnsSlot) != 0) {
    return Bad(kReply, "flags", static_cast<uint32_t>(reply.flags), "0, 1 (returns its slot)");
  }
  if (reply.reserved0 != 0) return BadNumber(kReply, "reserved0", reply.reserved0, 0);
  if (reply.group_count < 1 || reply.group_count > kMaxGroups) {
    return Bad(kReply, "group_count", reply.group_count, absl::StrCat("1..", kMaxGroups));
  }
  if (reply.flags == 0 ? reply.slot != 0 : reply.slot >= slots) {
    return BadBelow(kReply, "slot", reply.slot, reply.flags == 0 ? 1 : slots);
  }
  for (uint32_t i = 0; i < reply.group_count; ++i) {
    if (static_cast<uint8_t>(reply.group_status[i]) > kMaxReplyStatus) {
      return Bad(kReply, absl::StrCat("group_status[", i, "]"),
                 static_cast<uint32_t>(reply.group_status[i]),
                 absl::StrCat("0..", kMaxReplyStatus));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LaneHello> ParseHello(std::string_view private_data) {
  // A longer text is valid: librdmacm pads the peer's data (rdma_get_cm_event(3)).
  if (private_data.size() < sizeof(LaneHello)) {
    return Bad("hello", "size", private_data.size(),
               absl::StrCat("at least ", sizeof(LaneHello), " bytes"));
  }
  LaneHello hello;
  std::memcpy(&hello, private_data.data(), sizeof(hello));
  return hello;
}

absl::Status CheckGrant(const LaneGrant& grant, uint32_t generation, size_t ring_bytes) {
  if (grant.magic != kGrantMagic) return BadHex("grant", "magic", grant.magic, kGrantMagic);
  if (grant.generation != generation) {
    return BadNumber("grant", "generation", grant.generation, generation);
  }
  if (grant.ring_address > UINT64_MAX - ring_bytes) {
    return Bad(
        "grant", "ring_address", grant.ring_address,
        absl::StrCat("at most ", UINT64_MAX - ring_bytes, " for a ring of ", ring_bytes, " bytes"));
  }
  return absl::OkStatus();
}

std::string_view RecordTypeName(RecordType type) {
  switch (type) {
    case RecordType::kPush:
      return "push";
    case RecordType::kPull:
      return "pull";
    case RecordType::kEndStep:
      return "end-step";
    case RecordType::kAwait:
      return "await";
    case RecordType::kPushRows:
      return "push of rows";
    case RecordType::kLookup:
      return "lookup";
    case RecordType::kScan:
      return "scan";
    case RecordType::kNorms:
      return "norms";
    case RecordType::kTotals:
      return "totals";
    case RecordType::kReplicate:
      return "replicate";
    case RecordType::kBeacon:
      return "beacon";
    case RecordType::kLookupBags:
      return "lookup of bags";
    case RecordType::kIntent:
      return "intent";
  }
  return "unknown";
}

std::string_view ReplyStatusName(ReplyStatus status) {
  switch (status) {
    case ReplyStatus::kOk:
      return "ok";
    case ReplyStatus::kDuplicate:
      return "duplicate";
    case ReplyStatus::kWrongEpoch:
      return "wrong epoch";
    case ReplyStatus::kNotReady:
      return "not ready";
    case ReplyStatus::kExpired:
      return "expired";
    case ReplyStatus::kUnknownTable:
      return "unknown table";
    case ReplyStatus::kOutOfRange:
      return "out of range";
    case ReplyStatus::kNonFinite:
      return "non-finite";
    case ReplyStatus::kSequenceGap:
      return "sequence gap";
    case ReplyStatus::kWrongStep:
      return "wrong step";
    case ReplyStatus::kTooEarly:
      return "too early";
    case ReplyStatus::kDataLoss:
      return "data loss";
    case ReplyStatus::kMalformed:
      return "malformed";
    case ReplyStatus::kResourceExhausted:
      return "resource exhausted";
    case ReplyStatus::kOtherJob:
      return "other job";
    case ReplyStatus::kPermissionDenied:
      return "permission denied";
    case ReplyStatus::kUnavailable:
      return "unavailable";
    case ReplyStatus::kMemoryLimit:
      return "memory limit";
    case ReplyStatus::kJobMemoryLimit:
      return "memory limit of the job";
    case ReplyStatus::kCopyMemoryLimit:
      return "memory limit of the follower's server";
  }
  return "unknown";
}

}  // namespace verbena
