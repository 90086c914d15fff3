// Where the content of rows is that is not in a shard's memory. The shard defines it, the server
// has it (server/cold).
//
// **Thread safety**: one owner thread, the shard's. Nothing here waits but ReadNow().
//
// The life of its partition's rows and a number identify a row. Lives are never reused. The process
// loses all rows when it ends: a restarted server does not use rows that it finds.
//
// Invariants:
//  1. Writes are done in the order in which they were asked for. One that fails is tried again
//  until
//     it is done; health() says why, and its content is kept.
//  2. A read that is asked for after a write was reported as done finds that, or a later one.
//  3. Each write and each read is reported by TakeDone() once, unless its life was forgotten.
#ifndef VERBENA_SHARD_COLD_STORE_H_
#define VERBENA_SHARD_COLD_STORE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace verbena::shard {

// Lives of rows in order: those of one life lie side by side.
inline constexpr uint64_t ColdKey(uint32_t life, uint32_t row) {
  return uint64_t{life} << 32 | row;
}
inline constexpr uint32_t LifeOfColdKey(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
inline constexpr uint32_t RowOfColdKey(uint64_t key) { return static_cast<uint32_t>(key); }

// Of a store, over its life.
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
  // Nothing of it will be asked for.
  virtual void Forget(uint32_t life) = 0;

  // `content` is copied.
  virtual void Write(uint64_t key, uint64_t cookie, absl::Span<const std::byte> content) = 0;
  virtual void Read(uint64_t key, uint64_t cookie) = 0;
  // Moves finished operations to the end of *done. Returns whether there were any.
  virtual bool TakeDone(std::vector<Done>* done) = 0;

  // The content, `bytes` each, of rows whose writes were reported as done, one after the other in
  // `to`. *failed is the first key that it could not be had of.
  virtual absl::Status ReadNow(absl::Span<const uint64_t> keys, size_t bytes, std::byte* to,
                               uint64_t* failed) = 0;

  // Why nothing can be written now; OK: it can.
  virtual absl::Status health() const = 0;
  virtual ColdStoreStatistics statistics() const = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_COLD_STORE_H_
