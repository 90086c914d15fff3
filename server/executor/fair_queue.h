// Closures of many callers for one thread: each caller's in order, the callers in turn, so that one
// of them with many does not hold up the others.
//
// **Thread safety**: thread-safe; closures run on the thread that calls RunOne(), outside the lock.
//
// Invariants:
//  1. At most kMostOfCaller closures of a caller wait, and kMostInAll.
#ifndef VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_
#define VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_

#include <cstddef>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "server/executor/inbox.h"

namespace verbena::server {

class FairQueue {
 public:
  static constexpr size_t kMostOfCaller = 2048;
  static constexpr size_t kMostInAll = 16384;

  // Takes the closure, unless it answers UNAVAILABLE: full.
  absl::Status Post(const std::string& caller, Inbox::Closure& closure);
  // Runs the oldest closure of the caller whose turn it is. Returns whether there was one.
  bool RunOne();
  bool empty() const;

 private:
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::map<std::string, std::deque<Inbox::Closure>> waiting_;  // none is empty
  std::list<std::string> turns_;                               // the keys of waiting_
  size_t size_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_FAIR_QUEUE_H_
