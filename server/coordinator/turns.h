// Finds the time in which the coordinator did not run: it was stopped, starved, suspended, or
// blocked in a slow write of its store.
//
// The owner takes a turn at least once an interval while it has leases. A turn that begins later
// than two intervals after the one before follows a pause.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_TURNS_H_
#define VERBENA_SERVER_COORDINATOR_TURNS_H_

#include <cstdint>

namespace verbena::server {

class Turns {
 public:
  Turns() = default;
  Turns(int64_t interval_ns, int64_t now_ns) : interval_ns_(interval_ns), last_ns_(now_ns) {}

  // A turn begins. Returns the length of the pause before it; 0: it comes in time.
  int64_t Begin(int64_t now_ns) {
    const int64_t since = now_ns - last_ns_;
    last_ns_ = now_ns;
    return since > 2 * interval_ns_ ? since : 0;
  }
  // When the next turn is due at the latest.
  int64_t NextDueNanos() const { return last_ns_ + interval_ns_; }

 private:
  int64_t interval_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_TURNS_H_
