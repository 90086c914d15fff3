// Measures the time in which the coordinator did not run: it was stopped, starved, suspended, or
// blocked in a slow write of its store.
//
// The owner takes a turn at least once an interval while it has leases. A turn that begins later
// than two intervals after the previous one follows a pause. A turn that is late by half an
// interval or more follows a delay of that length. Many delays, as in a store that is a little
// slow, add up to more than a lease.
//
// If all turns are late (a host without processor time, a store that is always slow), pauses would
// make up all time, and the lease of a dead member would never end. So after kMostPauses in a row
// each turn counts as one interval.
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

  static constexpr int kMostPauses = 8;

  // A turn begins. Returns how long the owner did not run before it; 0: it comes in time.
  int64_t Begin(int64_t now_ns) {
    const int64_t since = now_ns - last_ns_;
    last_ns_ = now_ns;
    if (since <= 2 * interval_ns_) {
      pauses_ = 0;
      return since - interval_ns_ > interval_ns_ / 2 ? since - interval_ns_ : 0;
    }
    if (always_late()) return since - interval_ns_;
    ++pauses_;
    return since;
  }
  // Whether the next turn is so late that it follows a pause.
  bool Late(int64_t now_ns) const { return now_ns - last_ns_ > 2 * interval_ns_; }
  // The last kMostPauses turns were late.
  bool always_late() const { return pauses_ >= kMostPauses; }
  // When the next turn is due at the latest.
  int64_t NextDueNanos() const { return last_ns_ + interval_ns_; }

 private:
  int64_t interval_ns_ = 0;
  int64_t last_ns_ = 0;
  int pauses_ = 0;  // in a row, kMostPauses at most
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_TURNS_H_
