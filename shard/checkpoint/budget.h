// The memory that one checkpoint may take in addition to the tables'.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. The amount taken is within the limit, or is a single piece. So one piece can always proceed,
//     however small the limit, and with it everything that waits for it.
#ifndef VERBENA_SHARD_CHECKPOINT_BUDGET_H_
#define VERBENA_SHARD_CHECKPOINT_BUDGET_H_

#include <algorithm>
#include <cstdint>

#include "shard/checkpoint/types.h"

namespace verbena::shard {

class CheckpointBudget {
 public:
  CheckpointBudget(uint64_t limit, CheckpointCounters* counters)
      : limit_(limit), counters_(*counters) {}

  bool Fits(uint64_t bytes) const {
    return used_ == 0 || (used_ < limit_ && bytes <= limit_ - used_);
  }
  // How many things of `each` bytes fit, at most `most`.
  uint64_t Fitting(uint64_t each, uint64_t most) const {
    const uint64_t fit = used_ < limit_ ? (limit_ - used_) / each : 0;
    return std::min(most, used_ == 0 ? std::max<uint64_t>(fit, 1) : fit);
  }
  // Takes it whether or not it fits: call Fits() before.
  void Take(uint64_t bytes) {
    used_ += bytes;
    counters_.memory_bytes += bytes;
  }
  void Give(uint64_t bytes) {
    used_ -= bytes;
    counters_.memory_bytes -= bytes;
  }
  uint64_t used() const { return used_; }
  uint64_t limit() const { return limit_; }

 private:
  const uint64_t limit_;
  CheckpointCounters& counters_;
  uint64_t used_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_CHECKPOINT_BUDGET_H_
