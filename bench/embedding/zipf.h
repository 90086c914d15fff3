// Which rows a Zipf load asks for: few of them often, and those of high ranks are not neighbours.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_BENCH_EMBEDDING_ZIPF_H_
#define VERBENA_BENCH_EMBEDDING_ZIPF_H_

#include <cstdint>

#include "absl/random/zipf_distribution.h"

namespace verbena::bench {

inline constexpr double kZipf = 1.05;

class ZipfRows {
 public:
  // Draws from rows 0 to rows - 1.
  explicit ZipfRows(uint64_t rows) : rows_(rows), ranks_(rows - 1, kZipf) {}
  template <typename Random>
  uint64_t operator()(Random& random) {
    return ranks_(random) * 7'368'787 % rows_;
  }

 private:
  uint64_t rows_;
  absl::zipf_distribution<uint64_t> ranks_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_ZIPF_H_
