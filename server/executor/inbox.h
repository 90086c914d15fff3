// Closures handed to a thread that owns a state machine: from gRPC callback threads to a shard, the
// coordinator or the membership agent.
//
// **Thread safety**: Post() from any thread; RunOnce(), Arm() and Disarm() by the owner.
//
// Invariants:
//  1. A closure posted before Arm() returns true wakes the owner through wake_fd(): either Arm()
//     sees it, or Post() sees the owner sleeping.
//  2. Closures run in the order of their Post() calls, outside the lock, so they may Post().
#ifndef VERBENA_SERVER_EXECUTOR_INBOX_H_
#define VERBENA_SERVER_EXECUTOR_INBOX_H_

#include <atomic>
#include <mutex>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace verbena::server {

class Inbox {
 public:
  using Closure = absl::AnyInvocable<void()>;
  Inbox();  // makes an eventfd; without one (fd limit) wake_fd() is -1 and the owner polls
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  void Post(Closure closure);
  // Runs the posted closures. Returns whether there were any. Do not call it in a closure.
  bool RunOnce();
  // Announces that the owner is about to sleep; false: something is posted already.
  bool Arm();
  // The owner is awake again; empties wake_fd().
  void Disarm();
  int wake_fd() const { return fd_; }

 private:
  int fd_;
  std::atomic<bool> pending_{false};
  std::atomic<bool> sleeping_{false};
  std::mutex mutex_;
  std::vector<Closure> queue_;    // guarded by mutex_
  std::vector<Closure> running_;  // the owner's; keeps its capacity
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_INBOX_H_
