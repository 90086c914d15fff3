// How a side of the benchmark waits: spins for a while, then sleeps on its endpoint's descriptors.
//
// **Thread safety**: one owner thread, the endpoint's.
#ifndef VERBENA_BENCH_LANE_WAITER_H_
#define VERBENA_BENCH_LANE_WAITER_H_

#include <poll.h>
#include <sched.h>

#include <chrono>
#include <vector>

#include "rdma/transport.h"

namespace verbena::bench {

class Waiter {
 public:
  Waiter(rdma::Endpoint* endpoint, int spin_us) : endpoint_(endpoint), spin_(spin_us) {}

  void Worked() { fruitless_ = 0; }
  // After a look that found nothing. True: this side slept, so events are to be looked at too.
  bool Idle() {
    if (fruitless_++ == 0) since_ = Clock::now();
    // A thread that works for us may need this processor (soft-RoCE runs in the kernel).
    if (fruitless_ % kLooksPerYield != 0) return false;
    sched_yield();
    if (Clock::now() - since_ < spin_) return false;
    Sleep();
    fruitless_ = 0;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr unsigned kLooksPerYield = 64;
  static constexpr int kLongestSleepMs = 100;  // a stop that was asked for is seen after so long

  void Sleep() {
    descriptors_.clear();
    endpoint_->AppendDescriptors(&descriptors_);
    polled_.clear();
    for (const int fd : descriptors_) polled_.push_back({fd, POLLIN, 0});
    if (!endpoint_->Arm(rdma::SleepUntil::kAnything)) return;
    poll(polled_.data(), polled_.size(), kLongestSleepMs);
    endpoint_->Disarm();
  }

  rdma::Endpoint* endpoint_;
  std::chrono::microseconds spin_;
  unsigned fruitless_ = 0;
  Clock::time_point since_;
  std::vector<int> descriptors_;
  std::vector<pollfd> polled_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_LANE_WAITER_H_
