// Clock interface for state machines, so that tests can control time.
//
// **Thread safety**: implementations are thread-safe.
#ifndef VERBENA_RDMA_BASE_CLOCK_H_
#define VERBENA_RDMA_BASE_CLOCK_H_

#include <time.h>

#include "absl/time/time.h"

namespace verbena {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic nanoseconds since an arbitrary start. Clocks of two machines are never compared.
  virtual int64_t NowNanos() const = 0;
};

// CLOCK_BOOTTIME: unlike CLOCK_MONOTONIC it includes time in suspend, which a lease does not
// survive.
class MonotonicClock final : public Clock {
 public:
  static constexpr clockid_t kId = CLOCK_BOOTTIME;

  int64_t NowNanos() const override {
    timespec t;
    clock_gettime(kId, &t);
    return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
  }
};

}  // namespace verbena

#endif  // VERBENA_RDMA_BASE_CLOCK_H_
