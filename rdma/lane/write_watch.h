// Notices a lane whose writes neither complete nor fail. Transports promise that every write does
// one or the other (transport.h); a lane that relies on it waits for ever where a device does not
// keep the promise (docs/decisions/0003-lane-loss.md: seen once over soft-RoCE).
//
// **Thread safety**: one owner thread, the lane's.
#ifndef VERBENA_RDMA_LANE_WRITE_WATCH_H_
#define VERBENA_RDMA_LANE_WRITE_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace verbena::rdma {

class WriteWatch {
 public:
  // Silent() is to be called about this often.
  static constexpr int64_t kIntervalNanos = 1'000'000'000;
  // How long both ends of a lane wait, where nothing else is said: many times what the default
  // retries of any transport take.
  static constexpr int64_t kTimeoutNanos = 20 * kIntervalNanos;

  // Of signaled writes: the others end with the next of these.
  void Posted() { ++posted_; }
  void Ended() { ++ended_; }

  // Whether writes have been under way for `timeout_ns` and none has ended. A process that was
  // stopped meanwhile has not looked, so what passes between two checks counts as an interval at
  // the most.
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
