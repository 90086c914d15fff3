// The best speed of a table of rows in one process, and the speed of a good hash map.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_EMBEDDING_LIMITS_H_
#define VERBENA_BENCH_EMBEDDING_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "bench/embedding/pages.h"

namespace verbena::bench {

// Rows of `width` numbers, one after the other.
struct RowArray {
  RowArray(uint64_t count, size_t numbers)
      : pages(count * numbers * sizeof(float)), width(numbers), rows(pages.floats()) {}
  Pages pages;
  const size_t width;
  float* const rows;
};

// Two misses a key: a random line of an index of the size ours has, and the row that it names.
class TwoMisses {
 public:
  TwoMisses(uint64_t rows, RowArray* array);
  void Lookup(absl::Span<const uint64_t> numbers, size_t dim, float* out) const;
  // Reads and writes the row, and reads the gradient.
  void Push(absl::Span<const uint64_t> numbers, size_t dim, const float* gradients);

 private:
  template <typename Use>
  void Each(absl::Span<const uint64_t> numbers, Use use) const;

  struct alignas(64) Line {
    uint32_t offset[16];
  };
  RowArray* const array_;
  const uint64_t count_;  // lines
  Pages pages_;
};

// absl::flat_hash_map from key to number, reserved, in batches that prefetch.
class HashMap {
 public:
  HashMap(absl::Span<const uint64_t> keys, RowArray* array);
  void Lookup(absl::Span<const uint64_t> keys, size_t dim, float* out) const;
  // Row-wise Adagrad; the state is behind each row.
  void Push(absl::Span<const uint64_t> keys, size_t dim, const float* gradients, float rate);

 private:
  template <typename Use>
  void Each(absl::Span<const uint64_t> keys, Use use) const;

  absl::flat_hash_map<uint64_t, uint32_t> index_;
  RowArray* const array_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_LIMITS_H_
