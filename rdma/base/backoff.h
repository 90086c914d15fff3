// Backoff between attempts: 10 ms to 1 s, doubling, with jitter from a seed.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_RDMA_BASE_BACKOFF_H_
#define VERBENA_RDMA_BASE_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <random>

namespace verbena {

using Random = std::mt19937_64;

class Backoff {
 public:
  static constexpr int64_t kFirstNanos = 10'000'000;
  static constexpr int64_t kLongestNanos = 1'000'000'000;

  // The wait before the next attempt; it doubles with each call. Jitter (half to all of it) spreads
  // clients that lost the same server. It is not longer than `longest`.
  int64_t Next(Random& random, int64_t longest = kLongestNanos) {
    const int64_t whole = std::min(longest, kFirstNanos << std::min(failures_, 10));
    ++failures_;
    return std::uniform_int_distribution<int64_t>(whole / 2, whole)(random);
  }
  void Reset() { failures_ = 0; }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

}  // namespace verbena

#endif  // VERBENA_RDMA_BASE_BACKOFF_H_
