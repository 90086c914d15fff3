#include "proto/wire/record_check.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"

namespace verbena {
namespace {

using wire::CopiedOut;
using wire::InvalidField;
using wire::kRecord;
using wire::NotBelow;
using wire::NotEqual;
using wire::OperationTraits;

constexpr std::string_view kReply = "reply";

[[gnu::cold, gnu::noinline]] absl::Status NotEqualHex(std::string_view what, std::string_view field,
                                                      uint64_t value, uint64_t allowed) {
  return InvalidField(what, field, absl::StrCat("0x", absl::Hex(value)),
                      absl::StrCat("0x", absl::Hex(allowed)));
}

// "1 (push), 2 (pull), ...".
[[gnu::cold, gnu::noinline]] absl::Status UnknownType(RecordType type) {
  std::string allowed;
  for (const OperationTraits& operation : wire::kOperations) {
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", static_cast<uint32_t>(operation.type),
                    " (", absl::string_view(operation.name.data(), operation.name.size()), ")");
  }
  return InvalidField(kRecord, "type", static_cast<uint32_t>(type), allowed);
}

absl::Status CheckIdentity(const RecordHeader& h, const RecordLimits& limits) {
  if (h.magic != kRecordMagic) return NotEqualHex(kRecord, "magic", h.magic, kRecordMagic);
  if (h.version != limits.version) return NotEqual(kRecord, "version", h.version, limits.version);
  if (h.generation != limits.generation) {
    return NotEqual(kRecord, "generation", h.generation, limits.generation);
  }
  if (h.incarnation != limits.incarnation) {
    return NotEqual(kRecord, "incarnation", h.incarnation, limits.incarnation);
  }
  if (h.operation >= limits.operations) {
    return NotBelow(kRecord, "operation", h.operation, limits.operations);
  }
  return absl::OkStatus();
}

struct ElementRange {
  ElementType least, greatest;
  std::string_view text;
};

constexpr ElementRange RangeOf(wire::Elements elements) {
  switch (elements) {
    case wire::Elements::kNone:
      return {ElementType::kNone, ElementType::kF32, "0 (none), 1 (f32)"};
    case wire::Elements::kF32:
      return {ElementType::kF32, ElementType::kF32, "1 (f32)"};
    case wire::Elements::kTable:
      return {ElementType::kF32, ElementType::kE5m2,
              "1 (f32), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), 6 (fp8_e5m2)"};
    case wire::Elements::kGradients:
      return {ElementType::kF32, ElementType::kTopK,
              "1 (f32), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), 6 (fp8_e5m2), 7 (sign), "
              "8 (top_k)"};
  }
  return {ElementType::kNone, ElementType::kNone, "0 (none)"};
}

[[gnu::cold, gnu::noinline]] absl::Status NotOf(const OperationTraits& operation,
                                                std::string_view field, uint64_t value,
                                                std::string_view allowed) {
  return InvalidField(
      kRecord, field, value,
      absl::StrCat(absl::string_view(allowed.data(), allowed.size()), " for ",
                   absl::string_view(operation.name.data(), operation.name.size())));
}

// Checks the header against the traits of its operation.
absl::Status CheckTraits(const RecordHeader& h, const OperationTraits& operation,
                         const RecordLimits& limits) {
  const bool refers = operation.by_reference && limits.references;
  if (h.flags != 0 && (h.flags != kRecordReference || !refers || h.payload_bytes == 0)) {
    return NotOf(operation, "flags", h.flags,
                 refers ? "0, 1 (payload by reference, if there is one)" : "0");
  }
  const bool follower = operation.followers && h.version >= kFollowersProtocol;
  if (h.bags != 0 && !operation.bags && !follower) return NotOf(operation, "bags", h.bags, "0");
  if ((h.array != 0) != operation.state) {
    return NotOf(operation, "array", h.array, operation.state ? "1..255" : "0");
  }
  const uint32_t most = operation.one_group ? 1 : kMaxGroups;
  if (h.group_count < 1 || h.group_count > most) {
    return NotOf(operation, "group_count", h.group_count,
                 most == 1 ? "1" : absl::StrCat("1..", most));
  }
  const ElementRange elements = RangeOf(operation.elements);
  if (h.dtype < elements.least || h.dtype > elements.greatest) {
    return NotOf(operation, "dtype", static_cast<uint64_t>(h.dtype), elements.text);
  }
  if (h.payload_bytes != 0 && !operation.payload) {
    return NotOf(operation, "payload_bytes", h.payload_bytes, "0");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CopyRecord(const std::byte* slot, size_t slot_bytes, const RecordLimits& limits,
                        Record* record, absl::Span<const std::byte>* payload) {
  if (slot_bytes < sizeof(RecordHeader)) {
    return InvalidField(kRecord, "slot_bytes", slot_bytes,
                        absl::StrCat("at least ", sizeof(RecordHeader)));
  }
  std::memcpy(&record->header, slot, sizeof(RecordHeader));
  CopiedOut(&record->header);
  const RecordHeader& h = record->header;
  if (absl::Status s = CheckIdentity(h, limits); !s.ok()) return s;
  const OperationTraits* operation = wire::FindOperation(h.type);
  if (operation == nullptr) return UnknownType(h.type);
  if (absl::Status s = CheckTraits(h, *operation, limits); !s.ok()) return s;

  const uint32_t offset = PayloadOffset(h.group_count);
  if (offset > slot_bytes) {
    return InvalidField(kRecord, "group_count", h.group_count,
                        absl::StrCat("as many as fit the slot's ", slot_bytes, " bytes"));
  }
  const bool elsewhere = h.flags == kRecordReference;
  if (!elsewhere && h.payload_bytes > slot_bytes - offset) {
    return InvalidField(kRecord, "payload_bytes", h.payload_bytes,
                        absl::StrCat("at most ", slot_bytes - offset, " in this slot"));
  }
  std::memcpy(record->groups, slot + sizeof(RecordHeader), h.group_count * sizeof(Group));
  CopiedOut(record->groups);
  for (uint32_t i = 0; i < h.group_count; ++i) {
    if (record->groups[i].admission != 0 && !operation->makes_steps) {
      return NotEqual(kRecord, absl::StrCat("groups[", i, "].admission"),
                      record->groups[i].admission, 0);
    }
  }
  if (operation->validate != nullptr) {
    if (absl::Status s = operation->validate(h, record->group_span()); !s.ok()) return s;
  }
  *payload = absl::MakeConstSpan(slot + offset, elsewhere ? 0 : h.payload_bytes);
  return absl::OkStatus();
}

absl::Status CheckReply(const Reply& reply, uint32_t generation, uint32_t operation,
                        uint32_t slots) {
  if (reply.magic != kReplyMagic) return NotEqualHex(kReply, "magic", reply.magic, kReplyMagic);
  if (reply.generation != generation) {
    return NotEqual(kReply, "generation", reply.generation, generation);
  }
  if (reply.operation != operation) {
    return NotEqual(kReply, "operation", reply.operation, operation);
  }
  if (static_cast<uint8_t>(reply.status) > kMaxReplyStatus) {
    return InvalidField(kReply, "status", static_cast<uint32_t>(reply.status),
                        absl::StrCat("0..", kMaxReplyStatus));
  }
  if ((reply.flags & ~kReplyReturnsSlot) != 0) {
    return InvalidField(kReply, "flags", static_cast<uint32_t>(reply.flags),
                        "0, 1 (returns its slot)");
  }
  if (reply.reserved0 != 0) return NotEqual(kReply, "reserved0", reply.reserved0, 0);
  if (reply.group_count < 1 || reply.group_count > kMaxGroups) {
    return InvalidField(kReply, "group_count", reply.group_count, absl::StrCat("1..", kMaxGroups));
  }
  if (reply.flags == 0 ? reply.slot != 0 : reply.slot >= slots) {
    return NotBelow(kReply, "slot", reply.slot, reply.flags == 0 ? 1 : slots);
  }
  for (uint32_t i = 0; i < reply.group_count; ++i) {
    if (static_cast<uint8_t>(reply.group_status[i]) > kMaxReplyStatus) {
      return InvalidField(kReply, absl::StrCat("group_status[", i, "]"),
                          static_cast<uint32_t>(reply.group_status[i]),
                          absl::StrCat("0..", kMaxReplyStatus));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<LaneHello> ParseHello(std::string_view private_data) {
  // A longer text is valid: librdmacm pads the peer's data (rdma_get_cm_event(3)).
  if (private_data.size() < sizeof(LaneHello)) {
    return InvalidField("hello", "size", private_data.size(),
                        absl::StrCat("at least ", sizeof(LaneHello), " bytes"));
  }
  LaneHello hello;
  std::memcpy(&hello, private_data.data(), sizeof(hello));
  return hello;
}

absl::Status CheckGrant(const LaneGrant& grant, uint32_t generation, size_t ring_bytes) {
  if (grant.magic != kGrantMagic) return NotEqualHex("grant", "magic", grant.magic, kGrantMagic);
  if (grant.generation != generation) {
    return NotEqual("grant", "generation", grant.generation, generation);
  }
  if (grant.ring_address > UINT64_MAX - ring_bytes) {
    return InvalidField(
        "grant", "ring_address", grant.ring_address,
        absl::StrCat("at most ", UINT64_MAX - ring_bytes, " for a ring of ", ring_bytes, " bytes"));
  }
  return absl::OkStatus();
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
