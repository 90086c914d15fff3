// Whether a state machine of the simulator has anything to do. One that has not is not run: most
// turns of a cluster are for one of its processes, and would find nothing in the others.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A machine is due when its last turn did something, when it was called from outside since,
//     when anything arrived on its channels or endpoints, and when its timer is.
//  2. One that is not due has nothing to do: with sim_idle_check().on some of the turns that are
//     left out are made all the same, and counted where they do something.
//  3. While calls() and SimNetwork::news() stay, and no timer comes, no machine becomes due.
#ifndef VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_
#define VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "rdma/sim/sim_endpoint.h"
#include "tests/cluster/sim_control.h"

namespace verbena::test {

struct SimIdleCheck {
  bool on = std::getenv("VERBENA_SIM_RUN_IDLE") != nullptr;
  bool forget_calls = false;  // a deliberate fault: calls from outside make no machine due
  uint64_t skipped = 0, run = 0, did_something = 0;
};
inline SimIdleCheck& sim_idle_check() {
  static SimIdleCheck check;
  return check;
}

class SimInputs {
 public:
  // Both outlive this.
  void Watch(const rdma::Endpoint* endpoint) {
    endpoints_.push_back(static_cast<const rdma::SimEndpoint*>(endpoint));
  }
  void Watch(const SimChannel* channel) { channels_.push_back(channel); }
  // The machine was called from outside, or its turn did something.
  void Touch() {
    if (sim_idle_check().forget_calls) return;
    touched_ = true;
    CountCall();
  }
  // Counts what may make a machine due besides news of its endpoints.
  static void CountCall() { ++calls_; }
  static uint64_t calls() { return calls_; }
  // `now` and timers: by the machine's clock.
  bool Due(int64_t now) const { return touched_ || timer_ <= now || pending(); }
  // Runs the machine when it is due. Whether that did something.
  template <typename Run, typename Timer>
  bool RunIfDue(int64_t now, Run run, Timer timer) {
    if (!Due(now)) return CheckIdle(run);
    const bool worked = run();
    if (worked) {
      touched_ = true;
    } else {
      Idle(timer());
    }
    // Some news it leaves for later.
    if (touched_ || pending()) CountCall();
    return worked;
  }
  // The turn of the process did nothing; its next timer is `timer`.
  void Idle(int64_t timer) { touched_ = false, timer_ = timer; }
  int64_t NextTimerNanos() const { return touched_ ? 0 : timer_; }

 private:
  bool pending() const {
    return std::any_of(channels_.begin(), channels_.end(), [](auto* c) { return c->pending(); }) ||
           std::any_of(endpoints_.begin(), endpoints_.end(), [](auto* e) { return e->pending(); });
  }
  template <typename Run>
  bool CheckIdle(Run run) {
    SimIdleCheck& check = sim_idle_check();
    // A prime, so that each of a few machines has its turn.
    if (!check.on || ++check.skipped % 7 != 0) return false;
    ++check.run;
    if (!run()) return false;
    ++check.did_something;
    touched_ = true;
    return true;
  }

  std::vector<const SimChannel*> channels_;
  std::vector<const rdma::SimEndpoint*> endpoints_;
  bool touched_ = true;
  int64_t timer_ = 0;
  static inline uint64_t calls_ = 0;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SIM_INPUTS_H_
