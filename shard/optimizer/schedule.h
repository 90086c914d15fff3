// A table's learning rate at each of its applies; see v1.Schedule for the formulas.
//
// **Thread safety**: immutable.
//
// Invariants:
//  1. The rate is a pure function of the apply's number: a restart at an apply gets the same rates.
#ifndef VERBENA_SHARD_OPTIMIZER_SCHEDULE_H_
#define VERBENA_SHARD_OPTIMIZER_SCHEDULE_H_

#include <cstdint>

#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

class Schedule {
 public:
  Schedule() = default;
  // `spec` has passed NormalizeOptimizer().
  Schedule(double rate, v1::Schedule spec);

  // The rate of the t-th apply, t >= 1, which is step t - 1 of the formulas.
  double RateAt(uint64_t t) const;
  // True: RateAt() is the same for all t.
  bool constant() const;

 private:
  double Base(uint64_t step) const;

  double rate_ = 0;
  v1::Schedule spec_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_OPTIMIZER_SCHEDULE_H_
