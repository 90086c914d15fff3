// A token bucket that refills with time, and the number of events suppressed since the last allowed
// one.
//
// **Thread safety**: one owner, or under its lock.
#ifndef VERBENA_SERVER_ACCESS_RATE_LIMIT_H_
#define VERBENA_SERVER_ACCESS_RATE_LIMIT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"

namespace verbena::server {

class RateLimit {
 public:
  // At most `burst` at once, and then `per_second`.
  RateLimit(double burst, double per_second)
      : burst_(burst), per_second_(per_second), left_(burst) {}

  // The number of events suppressed before this one; nullopt: this one is suppressed, too.
  std::optional<uint64_t> Take(absl::Time now) {
    const double seconds = std::max(0.0, absl::ToDoubleSeconds(now - at_));
    left_ = std::min(burst_, left_ + seconds * per_second_);
    at_ = now;
    if (left_ < 1) {
      ++kept_back_;
      return std::nullopt;
    }
    --left_;
    return std::exchange(kept_back_, 0);
  }

  // Suppressed since the last allowed one.
  uint64_t kept_back() const { return kept_back_; }

  // An allowed event did not happen.
  void Return() { left_ = std::min(burst_, left_ + 1); }

 private:
  const double burst_, per_second_;
  double left_;
  absl::Time at_ = absl::InfinitePast();
  uint64_t kept_back_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_RATE_LIMIT_H_
