// A record from a partition's primary to a replica.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "proto/wire/invalid_field.h"
#include "proto/wire/operations.h"
#include "proto/wire/record_check.h"

namespace verbena::wire {

absl::Status ValidateReplicate(const RecordHeader& header, absl::Span<const Group>) {
  if (header.payload_bytes >= sizeof(ReplicaHeader)) return absl::OkStatus();
  return InvalidField(kRecord, "payload_bytes", header.payload_bytes,
                      absl::StrCat("at least ", sizeof(ReplicaHeader), " for a replicate"));
}

}  // namespace verbena::wire

namespace verbena {

absl::Status CopyReplicaHeader(const Record& record, absl::Span<const std::byte> payload,
                               ReplicaHeader* header, absl::Span<const std::byte>* data) {
  constexpr std::string_view kReplica = "replica";
  if (payload.size() < sizeof(*header)) {
    return wire::InvalidField(wire::kRecord, "payload_bytes", payload.size(),
                              absl::StrCat("at least ", sizeof(*header)));
  }
  std::memcpy(header, payload.data(), sizeof(*header));
  wire::CopiedOut(header);
  const ReplicaHeader& h = *header;
  const auto kind = static_cast<uint32_t>(h.kind);
  if (kind < 1 || kind > kMaxReplicaKind) {
    return wire::InvalidField(kReplica, "kind", kind, absl::StrCat("1..", kMaxReplicaKind));
  }
  const bool rows = h.kind == ReplicaKind::kBeginPartition || h.kind == ReplicaKind::kRows;
  const bool begins = h.kind == ReplicaKind::kBegin;
  const bool flagged = (begins && (h.flags == kReplicaLearner || h.flags == kReplicaResume)) ||
                       (rows && h.flags == kReplicaToCome);
  if (h.flags != 0 && !flagged) {
    return wire::InvalidField(kReplica, "flags", static_cast<uint32_t>(h.flags),
                              begins ? absl::StrCat("0, ", kReplicaLearner, ", ", kReplicaResume)
                              : rows ? absl::StrCat("0, ", kReplicaToCome)
                                     : "0");
  }
  if (h.reserved0 != 0) return wire::NotEqual(kReplica, "reserved0", h.reserved0, 0);
  if (h.kind == ReplicaKind::kNothing && h.total_bytes != 0) {
    return wire::NotEqual(kReplica, "total_bytes", h.total_bytes, 0);
  }
  const bool applies = h.kind == ReplicaKind::kDense || h.kind == ReplicaKind::kRows;
  if (h.assigned > (applies ? h.count : 0)) {
    return wire::InvalidField(kReplica, "assigned", h.assigned,
                              applies ? absl::StrCat("at most the count, ", h.count) : "0");
  }
  const bool dense = h.kind == ReplicaKind::kDense && h.assigned > 0;
  if (h.array > (dense ? UINT8_MAX : 0)) {
    return wire::InvalidField(kReplica, "array", h.array, dense ? "0..255" : "0");
  }
  const uint64_t bytes = payload.size() - sizeof(h);
  if (h.part_offset > h.total_bytes || bytes > h.total_bytes - h.part_offset ||
      (bytes == 0 && h.total_bytes > 0)) {
    return wire::InvalidField(
        kReplica, "part_offset", h.part_offset,
        absl::StrCat("at most ", h.total_bytes, " (total_bytes) less the ", bytes,
                     " bytes of this part, which are none only if total_bytes is 0"));
  }
  if (record.groups[0].sequence == 0)
    return wire::InvalidField(kReplica, "sequence", 0, "1 or more");
  *data = payload.subspan(sizeof(h));
  return absl::OkStatus();
}

}  // namespace verbena
