// Selects the keys of an embedding table that get a row: all, those that are pushed often enough,
// or a random part (v1::Admission).
//
// A sketch counts the pushes to keys without a row. Each partition's sketch has cache lines of 64
// counters of 8 bits. A key uses four counters of a line, and its estimate is the least of them,
// which is never too low before a halving (count-min: Cormode and Muthukrishnan 2005, "An improved
// data stream summary"). When counters are half of min_count on average they are halved, so that
// rare keys do not become frequent over time (Einziger, Friedman and Manes 2017, "TinyLFU"). A
// sketch belongs to its server: replicas, checkpoints and a partition that moves do not have it,
// and start to count at zero.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A key with a row is never refused.
//  2. The keys that a push may change depend on the partition's version and on earlier counts, not
//     on the order of pushes since then.
#ifndef VERBENA_SHARD_TABLE_ADMISSION_H_
#define VERBENA_SHARD_TABLE_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "shard/table/buffer_pool.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

class Admission {
 public:
  // The other arguments outlive it; `account` may be null.
  Admission(const v1::Admission& spec, uint32_t partitions, BufferPool* pool, JobAccount* account);
  ~Admission();
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  bool always() const { return min_count_ == 0 && below_ == 0; }
  // Whether a key without a row gets one, in a slice at that version.
  bool Admits(uint32_t slice, uint64_t version, uint64_t key) const;
  // Counts pushed keys that were refused. Without memory for a sketch nothing is counted.
  void Count(uint32_t slice, absl::Span<const uint64_t> refused);
  // Clears the counts of the slice.
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
