// What handles of one client share: its core behind a lock, and the threads that drive it.
//
// Whoever waits makes progress: the first waiting caller drives the core (runs it, spins a little,
// sleeps on its descriptors without the lock); the others wait for it on a condition variable. The
// background thread drives when no caller does. Because a caller that waits often would pay for
// each hand-over with a system call and a thread switch, the background thread gives way for a nap
// and looks again after it:
//
//   driving: asleep on the descriptors      --a caller waits (it writes the eventfd)--> napping
//   napping: 2 ms, doubling while one caller keeps driving --nobody drives at the end--> driving
//
// Callers that wait for all that they start leave it nothing to do: when that has been so for a
// while, naps of up to 16 ms do, because with hundreds of clients on a machine looking every 2 ms
// is most of what they do. Who then starts something and does not wait has it driven a nap or two
// later, once; after that naps are short again. A caller that stops driving wakes it from a nap
// that goes on for more than 2 ms, unless it has been so calm and nothing is under way.
//
// An operation with a callback is different: no thread will wait for it. While there are such
// operations the background thread does not nap unless a caller drives, and it is woken from its
// nap when the callback is set or the last caller stops driving.
//
// With Progress::kCaller the thread only keeps the lease.
//
// A second thread keeps the lease while the lock is held for long: it needs neither the lock nor
// the core (client/core/lease_keeper.h), so nothing that a caller does delays a heartbeat. Others
// register memory (client/registrar.h), from the first region that a transport wants
// registered.
//
// **Thread safety**: every function from any thread. Fields are guarded by `mutex` unless they are
// atomic or constant, or of the second thread, which has a lock of its own.
//
// A process forked from the one that made the hub is a copy: its calls do nothing and take no lock,
// and it must not destroy the hub (MakeSharedOfProcess()).
//
// Invariants:
//  1. The core is used under `mutex` only. Callbacks run without it.
//  2. At most one thread sleeps on the core's descriptors; the endpoints are armed only while one
//     does.
#ifndef VERBENA_CLIENT_HUB_H_
#define VERBENA_CLIENT_HUB_H_

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/core/client_core.h"
#include "proto/control_channel.h"
#include "proto/fork_guard.h"
#include "rdma/base/clock.h"
#include "rdma/memory/memory.h"
#include "rdma/transport.h"

namespace verbena {

class Hub {
 public:
  // The parts the core is made of; the hub owns them.
  struct Parts {
    std::unique_ptr<ControlChannel> control;
    std::vector<std::unique_ptr<rdma::Endpoint>> endpoints;
    std::unique_ptr<client::ClientCore> core;
  };
  explicit Hub(bool background);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  absl::Status Start(Parts parts);
  // Leaves the cluster (at most until then), ends all operations, stops the thread and destroys the
  // core. Waits in other threads return; afterwards Run() and WaitUntil() do nothing, and neither
  // does another Stop(). Not from a callback, and not from two threads at once.
  void Stop(int64_t leave_by_ns);

  // Whether this process is a fork of the one that made the hub.
  bool copied() const { return process_.copied(); }
  // Why Run() returned false.
  absl::Status WhyNot() const;

  // Runs `call` with the core under the lock, then wakes whoever must know. False: stopped, or in
  // a copy.
  bool Run(absl::FunctionRef<void(client::ClientCore&)> call);
  // Makes progress until `done` (called under the lock) or the time. Returns done().
  bool WaitUntil(absl::FunctionRef<bool()> done, int64_t deadline_ns);
  // Adds a user's callback, to be run without the lock by a thread that makes progress. Under the
  // lock (inside Run() or a core callback).
  void AddCallback(std::function<void(absl::Status)> callback, absl::Status status) {
    callbacks_.emplace_back(std::move(callback), std::move(status));
  }
  // An operation got a callback, or has ended and its callback is added. Under the lock.
  void ExpectCallback();
  void EndExpectCallback() { --expected_callbacks_; }
  // A block's last handle is gone.
  void ReleaseBlock(const rdma::MemoryBlock& block);

  int64_t Now() const { return clock_.NowNanos(); }
  const Clock& clock() const { return clock_; }

 private:
  // Counts a thread that wants the lock, so that a spinning driver lets it in.
  class Lock;

  void Drive(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done,
             int64_t deadline_ns);
  void TakeOver();
  void HandOver();
  // Lets the threads in that wait for the lock: a mutex that is taken again at once keeps them out.
  void LetIn(std::unique_lock<std::mutex>& lock);
  void WakeFromNap();  // the background thread, if its nap would be too long
  bool Spin(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done);
  // Sleeps on the descriptors and `wake_fd` until something happens or the time.
  void Sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int64_t until_ns);
  bool RunCallbacks(std::unique_lock<std::mutex>& lock);
  void StopRegistrar();
  void WakeSleeper();
  void Background();
  // How long after a nap of `last` it looks again. `keeps`: the same caller has driven all along.
  int64_t NextNap(int64_t last, bool keeps);
  void BackgroundTurn(std::unique_lock<std::mutex>& lock);
  void KeepLease();
  void KeepLeaseAlone(client::LeaseKeeper* keeper);  // the second thread
  void Nap(std::unique_lock<std::mutex>& lock, int64_t ns);

  const ForkGuard process_;
  const bool background_;
  const MonotonicClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> contenders_{0};
  uint64_t entries_ = 0;             // of contenders, so far
  int letting_in_ = 0;               // threads in LetIn()
  std::condition_variable entered_;  // one has entered, and somebody is in LetIn()
  Parts parts_;
  bool stopping_ = false;
  bool caller_drives_ = false;
  uint64_t drives_ = 0;
  int waiting_ = 0;           // callers on `changed_`
  int sleeper_fd_ = -1;       // eventfd of the thread asleep on the descriptors
  int64_t sleeps_until_ = 0;  // it
  int64_t naps_until_ = 0;    // the background thread; 0: it does not nap
  int calm_looks_ = 0;        // of it, since something was under way that nobody waited for
  int fruitless_spins_ = 0;
  int caller_fd_ = -1, background_fd_ = -1;
  int expected_callbacks_ = 0;  // operations in flight that have a callback
  std::vector<std::pair<std::function<void(absl::Status)>, absl::Status>> callbacks_;
  std::vector<int> descriptors_;
  std::vector<pollfd> polled_;
  std::thread thread_;

  std::mutex keeper_mutex_;  // of what follows
  std::condition_variable keeper_changed_;
  bool keeper_stops_ = false;
  std::thread keeper_thread_;
  std::vector<std::thread> registrar_threads_;
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_HUB_H_
