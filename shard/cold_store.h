// Storage for the contents of rows that are not in a shard's memory. The shard defines the
// interface, the server implements it (server/cold).
//
// **Thread safety**: one owner thread, the shard's. Nothing here waits but ReadNow().
//
// The life of its partition's rows and a number identify a row. Lives are never reused. The process
// loses all rows when it ends: a restarted server does not use rows that it finds.
//
// Invariants:
//  1. Writes are done in the order of their requests. A failed write is retried until it is done;
//     meanwhile health() has the reason, and its content is kept.
//  2. A read that is requested after a write was reported as done returns that write's content, or
//     a later one.
//  3. TakeDone() reports each write and each read once, unless its life was forgotten.
#ifndef VERBENA_SHARD_COLD_STORE_H_
#define VERBENA_SHARD_COLD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace verbena::shard {

// Keys in the order of lives: the rows of one life are adjacent.
inline constexpr uint64_t ColdKey(uint32_t life, uint32_t row) {
  return uint64_t{life} << 32 | row;
}
inline constexpr uint32_t LifeOfColdKey(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
inline constexpr uint32_t RowOfColdKey(uint64_t key) { return static_cast<uint32_t>(key); }

// Totals over the life of a store.
struct ColdStoreStatistics {
  uint64_t write_failures = 0;  // attempts
  uint64_t stored_bytes = 0;    // on the disk now, about
  uint64_t memory_bytes = 0;    // of its own, about
};

class ColdStore {
 public:
  struct Done {
    uint64_t key = 0;
    uint64_t cookie = 0;
    bool read = false;
    absl::Status status;             // of a read
    std::vector<std::byte> content;  // the same
  };

  virtual ~ColdStore() = default;

  // Returns a different value at each call, for every caller.
  virtual uint32_t NewLife() = 0;
  // No row of this life will be requested.
  virtual void Forget(uint32_t life) = 0;

  // `content` is copied.
  virtual void Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) = 0;
  virtual void Read(uint64_t key, uint64_t cookie) = 0;
  // Moves finished operations to the end of *done. Returns whether there were any.
  virtual bool TakeDone(std::vector<Done>* done) = 0;

  // Reads rows whose writes were reported as done, `bytes` each, one after the other to `to`.
  // *failed is the first key that could not be read.
  virtual absl::Status ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to,
                               uint64_t* failed) = 0;

  // Why nothing can be written now; OK: it can.
  virtual absl::Status health() const = 0;
  virtual ColdStoreStatistics statistics() const = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_COLD_STORE_H_
