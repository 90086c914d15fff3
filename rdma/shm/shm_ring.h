// Data path of a shm connection: layout and rules of the memory that two processes share.
//
// The ring is in memory of the receiver, which maps it first and zeroes it. Entry i (counted from 0
// over the connection's life) is at i % entries, and holds {sequence = i + 1, immediate} after it
// is written. The receiver checks only for the next expected sequence, so the peer's data cannot
// make it read elsewhere. A stale entry never has that sequence (it is `entries` behind). A zeroed
// entry would match only after 2^32 entries, when none is left.
//
// **Thread safety**: atomics between two processes; each process uses one thread.
#ifndef VERBENA_RDMA_SHM_SHM_RING_H_
#define VERBENA_RDMA_SHM_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::rdma {

using ShmRingEntry = std::atomic<uint64_t>;
static_assert(ShmRingEntry::is_always_lock_free && sizeof(ShmRingEntry) == 8);

inline constexpr uint64_t PackEntry(uint32_t sequence, uint32_t immediate) {
  return uint64_t{sequence} << 32 | immediate;
}
inline constexpr uint32_t EntrySequence(uint64_t entry) {
  return static_cast<uint32_t>(entry >> 32);
}
inline constexpr uint32_t EntryImmediate(uint64_t entry) { return static_cast<uint32_t>(entry); }

struct ShmRing {
  // Number of receives posted so far. The receiver writes it and never reads it back. It has its
  // own cache line (and prefetch pair), because the sender reads it only when out of credit.
  alignas(128) std::atomic<uint64_t> posted;
  // The entries follow; the hello has their number.
  ShmRingEntry* entries() { return reinterpret_cast<ShmRingEntry*>(this + 1); }

  static constexpr size_t Bytes(uint32_t entry_count);
};
static_assert(sizeof(ShmRing) == 128);
constexpr size_t ShmRing::Bytes(uint32_t entry_count) {
  return sizeof(ShmRing) + size_t{entry_count} * sizeof(ShmRingEntry);
}

inline constexpr uint32_t kMaxRingEntries = 1 << 16;

// One per endpoint, read by all its peers: whether its thread sleeps, and which writes should wake
// it through its eventfds. One store per sleep, for any number of connections.
inline constexpr uint32_t kAwake = 0, kSleepsUntilAnything = 1, kSleepsUntilLastAnswer = 2;
struct ShmState {
  alignas(128) std::atomic<uint32_t> sleeping;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_SHM_SHM_RING_H_
