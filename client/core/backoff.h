// Waiting between attempts: 10 ms to 1 s, doubling, with jitter from the client's seed.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_BACKOFF_H_
#define VERBENA_CLIENT_CORE_BACKOFF_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

namespace verbena::client {

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
inline constexpr int64_t kMillisecond = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;
inline constexpr int64_t kFirstBackoff = 10 * kMillisecond;
inline constexpr int64_t kLongestBackoff = kSecond;

using Random = std::mt19937_64;

class Backoff {
 public:
  // How long to wait now; the next answer is about twice that. Jitter (half to all of it) keeps
  // workers that lost the same server from returning in step.
  int64_t Next(Random& random) {
    const int64_t whole = std::min(kLongestBackoff, kFirstBackoff << std::min(failures_, 10));
    ++failures_;
    return std::uniform_int_distribution<int64_t>(whole / 2, whole)(random);
  }
  void Reset() { failures_ = 0; }
  int failures() const { return failures_; }

 private:
  int failures_ = 0;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_BACKOFF_H_
