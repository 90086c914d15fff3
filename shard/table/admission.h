// Which keys of an embedding table get a row: all, those that are pushed often enough, or some by
// chance (v1::Admission).
//
// How often a key that has no row was pushed is counted by a sketch: each partition's has lines of
// the cache of 64 counters of 8 bits; a key has four of a line, and was pushed as often as the
// least of them says, or less (count-min: Cormode and Muthukrishnan 2005, "An improved data stream
// summary"). When counters are half of min_count on average they are halved, so that what is rare
// does not become frequent by waiting (Einziger, Friedman and Manes 2017, "TinyLFU"). A sketch is
// its server's: copies, saves and a partition that moves do not have it, and count anew.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A key with a row is never refused.
//  2. What a push may go to depends on the partition's version and on what was counted before, not
//     on who pushed first since.
#ifndef VERBENA_SHARD_TABLE_ADMISSION_H_
#define VERBENA_SHARD_TABLE_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class Admission {
 public:
  // The others outlive it; `account` may be null.
  Admission(const v1::Admission& spec, uint32_t partitions, BufferPool* pool, JobAccount* account);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  bool always() const { return min_count_ == 0 && below_ == 0; }
  // Of a key without a row, in a slice at that version.
  bool Admits(uint32_t slice, uint64_t version, uint64_t key) const;
  // These were pushed and refused. Without memory for a sketch nothing is counted.
  void Count(uint32_t slice, absl::Span<const uint64_t> refused);
  // Nothing was counted in the slice.
  void Forget(uint32_t slice);

 private:
  struct Sketch {
    Buffer counters;
    uint64_t counted = 0;  // since they were halved
  };
  static constexpr size_t kLineBytes = 64;
  // Where a key's counters are.
  struct Places {
    uint8_t* line;
    uint32_t at[4];
  };
  Places PlacesOf(const Sketch& sketch, uint64_t key) const;
  uint32_t CountOf(const Sketch& sketch, uint64_t key) const;

  const uint32_t min_count_;  // 0: not that
  const uint64_t below_;      // of 2^64; 0: not by chance
  const uint64_t seed_;
  const size_t sketch_bytes_;  // of a slice
  BufferPool* const pool_;
  JobAccount* const account_;
  std::vector<Sketch> sketches_;  // by slice, as far as there are some
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ADMISSION_H_
