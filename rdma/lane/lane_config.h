// Sizes of a lane and the formulas that follow from them.
//
// **Thread safety**: plain data.
#ifndef VERBENA_RDMA_LANE_LANE_CONFIG_H_
#define VERBENA_RDMA_LANE_LANE_CONFIG_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "proto/record.h"
#include "rdma/transport.h"

namespace verbena::rdma {

// A record's first segment: header and groups always fit, small payloads are copied behind them.
inline constexpr uint32_t kRecordStagingBytes = 4096;
static_assert(PayloadOffset(kMaxGroups) <= kRecordStagingBytes);

struct LaneConfig {
  uint32_t small_slots = 64;
  uint32_t small_slot_bytes = 4096;  // holds any record without a large payload
  uint32_t large_slots = 4;
  uint32_t large_slot_bytes = 4096 + 256 * 1024;  // header and one chunk
  uint32_t operations = 64;                       // records unanswered at a time; mailbox entries

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
  // One entry per operation and the grant's.
  size_t mailbox_bytes() const { return size_t{operations + 1} * kMailboxEntryBytes; }

  // Worker: one receive for each reply and each credit that can be under way, and the grant and
  // one to spare.
  uint32_t worker_receives() const { return operations + slots() + 2; }
  // Shard: a worker cannot have more records under way than it holds slots.
  uint32_t shard_receives() const { return slots(); }
  // Worker: one write for each slot, and the probe. Exact because a slot is used again only when
  // its credit is back and its write has completed here: the credit can overtake the
  // acknowledgement.
  uint32_t worker_sends() const { return slots() + 1; }
  // Shard: for each operation its data and its reply, a credit for each slot, the grant. Exact
  // because a reply (or credit) waits while the one before it of the same operation (slot) has not
  // completed here: the peer's next record can overtake the acknowledgement.
  uint32_t shard_sends() const { return 2 * operations + slots() + 1; }

  // What a lane costs in memory. Shard: the ring, two reply entries for each operation (one under
  // way, one waiting for it) and the grant. Worker: the mailbox, and a record's header, groups and
  // small payload for each slot.
  size_t shard_staging_bytes() const {
    return size_t{2} * operations * kMailboxEntryBytes + sizeof(LaneGrant);
  }
  size_t worker_staging_bytes() const { return size_t{slots()} * kRecordStagingBytes; }
  size_t shard_memory_bytes() const { return ring_bytes() + shard_staging_bytes(); }
  size_t worker_memory_bytes() const { return mailbox_bytes() + worker_staging_bytes(); }

  ConnectionLimits worker_limits() const { return {worker_sends(), worker_receives()}; }
  ConnectionLimits shard_limits() const { return {shard_sends(), shard_receives()}; }

  // INVALID_ARGUMENT naming the field, its value and what is allowed. slots() <= 256 (imm),
  // operations <= 65536, sizes multiples of 64, small_slot_bytes >= 4096, large slots not smaller
  // than small ones.
  absl::Status Validate() const;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_LANE_CONFIG_H_
