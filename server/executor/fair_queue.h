// Closures of many callers for one thread: each caller's in order, the callers in turn, so that a
// caller with many closures does not delay the others.
//
// Callers give up after some seconds and call again. A longer queue in strict order would run only
// calls that have been abandoned, and answer none. So under overload, calls that have waited for
// kLongestWaitNanos are refused, and the calls that run are young enough for their answers to be
// used.
//
// **Thread safety**: thread-safe; closures run on the thread that calls RunOne(), outside the lock.
//
// Invariants:
//  1. At most kMostOfCaller closures of a caller wait, and kMostInAll.
//  2. A closure that Post() has taken is run or refused, or destroyed with the queue.
#ifndef VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_
#define VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "rdma/base/clock.h"
#include "server/executor/inbox.h"

namespace verbena::server {

class FairQueue {
 public:
  static constexpr size_t kMostOfCaller = 2048;
  static constexpr size_t kMostInAll = 16384;
  // Up to so many closures of a caller, no overload is assumed: they wait for a slow owner without
  // limit.
  static constexpr size_t kCrowd = 64;
  // Less than the 5 s that a client gives an attempt (client/core/calls.cc).
  static constexpr int64_t kLongestWaitNanos = 3'000'000'000;

  using Refuse = absl::AnyInvocable<void(const absl::Status&)>;

  explicit FairQueue(const Clock* clock) : clock_(*clock) {}

  // Takes both closures, unless it returns UNAVAILABLE: full. RunOne() calls `refuse` with
  // UNAVAILABLE instead of `closure` if it has waited for too long under overload.
  absl::Status Post(const std::string& caller, Inbox::Closure& closure, Refuse refuse);
  // Runs the oldest closure of the caller whose turn it is. Returns whether there was one.
  bool RunOne();
  bool empty() const;

 private:
  struct Waiting {
    Inbox::Closure run;
    Refuse refuse;
    int64_t since_ns;
  };

  const Clock& clock_;
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::map<std::string, std::deque<Waiting>> waiting_;  // none is empty
  std::list<std::string> turns_;                        // the keys of waiting_
  size_t size_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_
