// The work of a worker on its data each round, the same for ours and for the limits: rewrites the
// whole gradient, reads the whole result.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_BENCH_PUSH_PULL_TOUCH_H_
#define VERBENA_BENCH_PUSH_PULL_TOUCH_H_

#include <cstddef>

namespace verbena::bench {

void FillGradient(float* gradient, size_t count, float value);
float ReadResult(const float* result, size_t count);

// Rounds to measure for messages of so many bytes: enough to last, few enough to repeat.
inline int RoundsFor(size_t bytes) {
  const size_t rounds = (size_t{256} << 20) / bytes;
  return static_cast<int>(rounds < 16 ? 16 : rounds > 20000 ? 20000 : rounds);
}

// Rounds in flight, each with its own gradient and result.
inline constexpr int kDepth = 4;

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_PUSH_PULL_TOUCH_H_
