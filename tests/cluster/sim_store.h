// The coordinator's store in the simulator: its writes can be slow or fail, and an older state can
// be put back.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SIM_STORE_H_
#define VERBENA_TESTS_CLUSTER_SIM_STORE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/base/clock.h"
#include "server/coordinator/store.h"

namespace verbena::test {

struct StoreFaults {
  int64_t checkpoint_ns = 0;      // how long each SaveAll() blocks the coordinator; 0: not at all
  bool fail_checkpoints = false;  // UNAVAILABLE, as on a full disk
};

class SimStore final : public server::Store {
 public:
  // `block`: the coordinator's thread stands still for so long from now on.
  explicit SimStore(std::function<void(int64_t ns)> block) : block_(std::move(block)) {}

  void set_faults(const StoreFaults& faults) { faults_ = faults; }
  // The saved state; and to put an older copy of it back under a stopped coordinator.
  const server::CoordinatorState& state() const { return state_; }
  void set_state(server::CoordinatorState state) { state_ = std::move(state); }

  absl::StatusOr<server::CoordinatorState> Load() override { return state_; }
  absl::Status SaveAll(const server::CoordinatorState& state,
                       absl::Span<const server::StateChange> changes) override {
    if (faults_.checkpoint_ns > 0) block_(faults_.checkpoint_ns);
    if (faults_.fail_checkpoints) return absl::UnavailableError("the simulated disk is full");
    for (const server::StateChange& change : changes) {
      server::FollowChange(state, change, &state_);
    }
    return absl::OkStatus();
  }

 private:
  const std::function<void(int64_t)> block_;
  StoreFaults faults_;
  server::CoordinatorState state_;
};

// A clock that is already at the end of a blocking call when that call returns: the simulator runs
// the call at once and keeps the process from running until then.
class BlockedClock final : public Clock {
 public:
  explicit BlockedClock(const Clock* clock) : clock_(clock) {}
  void BlockUntil(int64_t ns) { until_ = std::max(until_, ns); }
  int64_t NowNanos() const override { return std::max(clock_->NowNanos(), until_); }

 private:
  const Clock* const clock_;
  int64_t until_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_STORE_H_
