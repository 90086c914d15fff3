// Sizes of a lane and the formulas that follow from them.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_LANE_LANE_CONFIG_H_
#define VERBENA_RDMA_LANE_LANE_CONFIG_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "proto/wire/record.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// A record's first segment: header and groups always fit; small payloads are copied after them.
inline constexpr uint32_t kRecordStagingBytes = 4096;
static_assert(PayloadOffset(kMaxGroups) <= kRecordStagingBytes);

struct LaneConfig {
  uint32_t small_slots = 64;
  uint32_t small_slot_bytes = 4096;  // holds any record without a large payload
  uint32_t large_slots = 4;
  uint32_t large_slot_bytes = 4096 + 256 * 1024;  // header and one chunk
  uint32_t operations = 64;                       // requests in flight at a time; also mailbox
                                                  // entries

  // Slots are numbered small first, then large.
  uint32_t slots() const { return small_slots + large_slots; }
  uint32_t slot_bytes(uint32_t slot) const {
    return slot < small_slots ? small_slot_bytes : large_slot_bytes;
  }
  size_t slot_offset(uint32_t slot) const {
    return slot < small_slots ? size_t{slot} * small_slot_bytes
                              : size_t{small_slots} * small_slot_bytes +
                                    size_t{slot - small_slots} * large_slot_bytes;
  }
  size_t ring_bytes() const { return slot_offset(slots()); }
  // One entry per operation and one for the grant.
  size_t mailbox_bytes() const { return size_t{operations + 1} * kMailboxEntryBytes; }

  // Worker: one receive for each reply and each credit that can be in flight, one for the grant,
  // and one spare.
  uint32_t worker_receives() const { return operations + slots() + 2; }
  // Shard: a worker cannot have more records in flight than slots.
  uint32_t shard_receives() const { return slots(); }
  // Worker: one write per slot, and the probe. The number is exact because a slot is reused only
  // after its credit has returned and its write has completed here: the credit can overtake the
  // acknowledgement.
  uint32_t worker_sends() const { return slots() + 1; }
  // Shard: data and reply of each operation, a credit for each slot, and the grant. The number is
  // exact because a reply (or credit) waits until the previous one of the same operation (slot) has
  // completed here: the peer's next record can overtake the acknowledgement.
  uint32_t shard_sends() const { return 2 * operations + slots() + 1; }

  // Memory of a lane. Shard: the ring, two reply entries per operation (one in flight, one waiting)
  // and the grant. Worker: the mailbox, and header, groups and small payload of a record for each
  // slot.
  size_t shard_staging_bytes() const {
    return size_t{2} * operations * kMailboxEntryBytes + sizeof(LaneGrant);
  }
  size_t worker_staging_bytes() const { return size_t{slots()} * kRecordStagingBytes; }
  size_t shard_memory_bytes() const { return ring_bytes() + shard_staging_bytes(); }
  size_t worker_memory_bytes() const { return mailbox_bytes() + worker_staging_bytes(); }

  ConnectionLimits worker_limits() const { return {worker_sends(), worker_receives()}; }
  ConnectionLimits shard_limits() const { return {shard_sends(), shard_receives()}; }

  // INVALID_ARGUMENT has the field, its value and the allowed values. slots() <= 256 (imm),
  // operations <= 65536, sizes are multiples of 64, small_slot_bytes >= 4096, large slots are at
  // least as large as small ones.
  absl::Status Validate() const;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_LANE_CONFIG_H_
