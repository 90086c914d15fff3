// The speed of memory for a pass over the arrays that an apply touches, with next to no arithmetic.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_BENCH_APPLY_LIMITS_H_
#define VERBENA_BENCH_APPLY_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::bench {

// Arrays of as many numbers each.
struct Traffic {
  std::vector<const float*> read;       // of f32
  std::vector<const uint16_t*> read16;  // of 16 bits
  std::vector<float*> updated;          // read and written, of f32
  std::vector<float*> written;          // of f32
  std::vector<uint16_t*> written16;     // of 16 bits
  size_t bytes(size_t n) const {
    return n * (4 * (read.size() + 2 * updated.size() + written.size()) +
                2 * (read16.size() + written16.size()));
  }
};

// Array by array, in blocks that stay in the first-level cache: plain; with streaming stores for
// arrays that are only written; or prefetched.
enum class Pass { kBlocks, kBlocksStreaming, kPrefetching };
inline constexpr Pass kPasses[] = {Pass::kBlocks, Pass::kBlocksStreaming, Pass::kPrefetching};
// n: a multiple of 2048. The result depends on every number read.
float Touch(Pass pass, const Traffic& traffic, size_t n);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_APPLY_LIMITS_H_
