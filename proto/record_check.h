// Validation of records that a peer wrote: the one place where bytes from a lane become trusted.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_RECORD_CHECK_H_
#define VERBENA_PROTO_RECORD_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/bags.h"
#include "proto/record.h"

namespace verbena {

// A request copied out of its slot. `groups` are copies too: nothing that a decision depends on is
// read twice from memory the peer can write.
struct Record {
  RecordHeader header;
  Group groups[kMaxGroups];
  absl::Span<const Group> group_span() const { return {groups, header.group_count}; }
};

struct RecordLimits {
  uint32_t generation;   // of the lane
  uint64_t incarnation;  // of the worker the lane was granted to
  uint32_t operations;
  bool references = false;  // whether payloads may lie elsewhere (kRecordReference)
};

// Copies the header, then the groups, from `slot` (peer-writable, slot_bytes long) and validates
// the copy. On success *payload is the span of the slot that holds the payload (numeric data only);
// empty if the payload is elsewhere (kRecordReference), which is the caller's to find.
// Never reads outside the slot, whatever the bytes are.
absl::Status CopyRecord(const std::byte* slot, size_t slot_bytes, const RecordLimits& limits,
                        Record* record, absl::Span<const std::byte>* payload);

// Copies the keys of a push of rows, a lookup or an intent that CopyRecord() has returned.
// INVALID_ARGUMENT: those of a group do not ascend; of a lookup of bags, where they may repeat:
// they descend.
absl::Status CopyKeys(const Record& record, absl::Span<const std::byte> payload,
                      std::vector<uint64_t>* keys);

// Copies what a lookup of bags that CopyRecord() has returned says of its keys. INVALID_ARGUMENT: a
// key is in a bag that the record does not have.
absl::Status CopyBagUses(const Record& record, absl::Span<const std::byte> payload,
                         std::vector<BagUse>* uses);

// Copies the header of a kReplicate that CopyRecord() has returned, and checks it as far as it says
// anything without the table. On success *data is what follows it.
absl::Status CopyReplicaHeader(const Record& record, absl::Span<const std::byte> payload,
                               ReplicaHeader* header, absl::Span<const std::byte>* data);

// Validates a reply copied out of the mailbox entry `operation`.
absl::Status CheckReply(const Reply& reply, uint32_t generation, uint32_t operation,
                        uint32_t slots);

// What a connecting worker handed over; `private_data` may arrive padded.
absl::StatusOr<LaneHello> ParseHello(std::string_view private_data);

// Validates a grant copied out of the mailbox. ring_bytes: of the lane's configuration.
absl::Status CheckGrant(const LaneGrant& grant, uint32_t generation, size_t ring_bytes);

std::string_view RecordTypeName(RecordType type);
std::string_view ReplyStatusName(ReplyStatus status);

}  // namespace verbena

#endif  // VERBENA_PROTO_RECORD_CHECK_H_
