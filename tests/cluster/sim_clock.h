// One machine's clock: it started at another time than the network's, and runs at another rate.
//
// **Thread safety**: as the clock below.
#ifndef VERBENA_TESTS_CLUSTER_SIM_CLOCK_H_
#define VERBENA_TESTS_CLUSTER_SIM_CLOCK_H_

#include <cstdint>
#include <limits>
#include <random>

#include "rdma/base/clock.h"

namespace verbena::test {

class SimClock final : public Clock {
 public:
  // Off by up to `drift_ppm` parts in a million, and with a start of its own; 0: the network's.
  SimClock(const Clock* network, uint64_t seed, int drift_ppm) : network_(network) {
    if (drift_ppm == 0) return;
    std::mt19937_64 random(seed);
    rate_ += std::uniform_int_distribution<int64_t>(-drift_ppm, drift_ppm)(random);
    start_ = std::uniform_int_distribution<int64_t>(0, int64_t{1} << 50)(random);
  }

  // The machine was suspended for so much of the network's time, and the clock did not count it.
  void Lose(int64_t ns) { start_ -= Scaled(ns, rate_, 0, kMillion); }

  int64_t NowNanos() const override { return FromNetwork(network_->NowNanos()); }
  int64_t FromNetwork(int64_t ns) const { return start_ + Scaled(ns, rate_, 0, kMillion); }
  // The first moment of the network's at which this clock shows `ns`, or more.
  int64_t ToNetwork(int64_t ns) const {
    if (ns == std::numeric_limits<int64_t>::max()) return ns;  // never
    if (ns <= start_) return 0;
    return Scaled(ns - start_, kMillion, rate_ - 1, rate_);
  }

 private:
  static constexpr int64_t kMillion = 1'000'000;

  // (ns * by + more) / divisor. Most times of a simulation need no division of 128 bits.
  static int64_t Scaled(int64_t ns, int64_t by, int64_t more, int64_t divisor) {
    int64_t product = 0;
    if (!__builtin_mul_overflow(ns, by, &product) &&
        !__builtin_add_overflow(product, more, &product)) {
      return product / divisor;
    }
    return static_cast<int64_t>((static_cast<__int128>(ns) * by + more) / divisor);
  }

  const Clock* const network_;
  int64_t rate_ = kMillion;  // in a million of the network's nanoseconds
  int64_t start_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_CLOCK_H_
