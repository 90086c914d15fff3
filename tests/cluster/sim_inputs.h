// Whether a state machine of the simulator has anything to do. One that has not is not run: most
// turns of a cluster are for one of its processes, and would find nothing in the others.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A machine is due when its last turn did something, when it was called from outside since,
//     when anything arrived on its channels or endpoints, and when its timer is.
#ifndef VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_
#define VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "rdma/sim/sim_endpoint.h"
#include "tests/cluster/sim_control.h"

namespace verbena::test {

class SimInputs {
 public:
  // Both outlive this.
  void Watch(const rdma::Endpoint* endpoint) {
    endpoints_.push_back(static_cast<const rdma::SimEndpoint*>(endpoint));
  }
  void Watch(const SimChannel* channel) { channels_.push_back(channel); }
  // The machine was called from outside, or its turn did something.
  void Touch() { touched_ = true; }
  // `now` and timers: by the machine's clock.
  bool Due(int64_t now) const {
    return touched_ || timer_ <= now ||
           std::any_of(channels_.begin(), channels_.end(), [](auto* c) { return c->pending(); }) ||
           std::any_of(endpoints_.begin(), endpoints_.end(), [](auto* e) { return e->pending(); });
  }
  // Its turn did nothing; its next timer.
  void Idle(int64_t timer) { touched_ = false, timer_ = timer; }
  int64_t NextTimerNanos() const { return touched_ ? 0 : timer_; }

 private:
  std::vector<const SimChannel*> channels_;
  std::vector<const rdma::SimEndpoint*> endpoints_;
  bool touched_ = true;
  int64_t timer_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_
