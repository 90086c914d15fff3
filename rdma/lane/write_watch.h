// Detects a lane whose writes neither complete nor fail. Transports guarantee one or the other for
// every write (transport.h). If a device violates this, a lane would wait forever
// (docs/decisions/0003-lane-loss.md: observed over soft-RoCE with packet loss).
//
// **Thread safety**: one owner thread, the lane's.
#ifndef VERBENA_RDMA_LANE_WRITE_WATCH_H_
#define VERBENA_RDMA_LANE_WRITE_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace verbena::rdma {

class WriteWatch {
 public:
  // Interval at which Silent() is called.
  static constexpr int64_t kIntervalNanos = 1'000'000'000;
  // Default timeout of both ends of a lane: many times the default retry time of any transport.
  static constexpr int64_t kTimeoutNanos = 20 * kIntervalNanos;

  // Counts signaled writes; unsignaled ones end with the next signaled one.
  void Posted() { ++posted_; }
  void Ended() { ++ended_; }

  // Whether writes have been in flight for `timeout_ns` and none has ended. The time between two
  // checks counts as at most one interval, because a process that was stopped could not check.
  bool Silent(int64_t now_ns, int64_t timeout_ns) {
    const int64_t passed = std::min(now_ns - checked_ns_, kIntervalNanos);
    checked_ns_ = now_ns;
    const bool waited = waiting_ && ended_ == ended_before_;
    waiting_ = posted_ != ended_;
    ended_before_ = ended_;
    silent_ns_ = waited && waiting_ ? silent_ns_ + passed : 0;
    return silent_ns_ >= timeout_ns;
  }

 private:
  uint64_t posted_ = 0, ended_ = 0;
  uint64_t ended_before_ = 0;  // at the last check
  bool waiting_ = false;       // at the last check
  int64_t checked_ns_ = 0;
  int64_t silent_ns_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_LANE_WRITE_WATCH_H_
