// Validation of records from a peer. No other code makes bytes from a lane trusted.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_RECORD_CHECK_H_
#define VERBENA_PROTO_WIRE_RECORD_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/protocol_version.h"
#include "proto/wire/bags.h"
#include "proto/wire/record.h"

namespace verbena {

// A request copied out of its slot. `groups` are copies too: no decision depends on a second read
// of memory that the peer can write.
struct Record {
  RecordHeader header;
  Group groups[kMaxGroups];
  absl::Span<const Group> group_span() const { return {groups, header.group_count}; }
};

struct RecordLimits {
  uint32_t generation;   // of the lane
  uint64_t incarnation;  // of the worker that the lane was granted to
  uint32_t operations;
  bool references = false;  // whether payloads may be outside the slot (kRecordReference)
  uint32_t version = kProtocolVersion;  // of the lane's records
};

// Copies the header, then the groups, from `slot` (peer-writable, slot_bytes long) and validates
// the copy. On success *payload is the span of the slot that holds the payload (numeric data only).
// With kRecordReference *payload is empty, and the caller finds the payload. Never reads outside
// the slot, for any bytes.
absl::Status CopyRecord(const std::byte* slot, size_t slot_bytes, const RecordLimits& limits,
                        Record* record, absl::Span<const std::byte>* payload);

// Copies the keys of a push of rows, a lookup or a prefetch that CopyRecord() has returned.
// INVALID_ARGUMENT: the keys of a group do not ascend. In a lookup of bags keys may repeat, and the
// error means that they descend.
absl::Status CopyKeys(const Record& record, absl::Span<const std::byte> payload,
                      std::vector<uint64_t>* keys);

// Copies the BagUses of a lookup of bags that CopyRecord() has returned. INVALID_ARGUMENT: a key is
// in a bag that the record does not have.
absl::Status CopyBagUses(const Record& record, absl::Span<const std::byte> payload,
                         std::vector<BagUse>* uses);

// The values of a kSetOptimizer that CopyRecord() has returned. INVALID_ARGUMENT: a name is not one
// of a parameter: lower-case letters, digits and '_', then zeros.
absl::Status CopyNamedValues(absl::Span<const std::byte> payload, std::vector<NamedValue>* values);

// The totals that a kTotals record has which CopyRecord() has returned.
TotalsPayload CopyTotals(absl::Span<const std::byte> payload);

// Copies the header of a kReplicate that CopyRecord() has returned, and makes all checks that do
// not need the table. On success *data is the payload after the header.
absl::Status CopyReplicaHeader(const Record& record, absl::Span<const std::byte> payload,
                               ReplicaHeader* header, absl::Span<const std::byte>* data);

// Validates a reply copied out of the mailbox entry `operation`.
absl::Status CheckReply(const Reply& reply, uint32_t generation, uint32_t operation,
                        uint32_t slots);

// Parses a connecting worker's private data, which may be padded.
absl::StatusOr<LaneHello> ParseHello(std::string_view private_data);

// Validates a grant copied out of the mailbox. ring_bytes: from the lane's configuration.
absl::Status CheckGrant(const LaneGrant& grant, uint32_t generation, size_t ring_bytes);

std::string_view ReplyStatusName(ReplyStatus status);

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_RECORD_CHECK_H_
