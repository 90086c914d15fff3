// Shared state of one client's handles: its core behind a lock, and the threads that drive it.
//
// A waiting caller makes progress. The first one drives the core: it runs it, spins briefly, then
// sleeps on its descriptors without the lock. Other callers wait for it on a condition variable.
// The background thread drives when no caller does. Each hand-over costs a system call and a thread
// switch, which a caller that waits often would pay repeatedly. So the background thread naps while
// a caller drives, and checks again afterwards:
//
//   driving: asleep on the descriptors      --a caller waits (it writes the eventfd)--> napping
//   napping: 2 ms, doubling while one caller keeps driving --no driver at the end--> driving
//
// If callers wait for all operations that they start, the background thread has no work. After a
// while without work its naps grow to 16 ms, because with hundreds of clients on a machine most of
// the load would be 2 ms checks. An operation that is then started without waiting is driven one or
// two naps later, once; afterwards naps are short again. A caller that stops driving ends a nap
// that would last more than 2 ms, unless the naps are long because of such a phase and no operation
// is in flight.
//
// An operation with a callback has no waiting thread. While such operations exist, the background
// thread naps only while a caller drives. It is woken from its nap when the callback is set or the
// last caller stops driving.
//
// With Progress::kCaller the thread only keeps the lease.
//
// A second thread keeps the lease while the lock is held for long. It needs neither the lock nor
// the core (client/core/lease_keeper.h), so no caller can delay a heartbeat. Other threads register
// memory (client/registrar.h); they start with the first region that a transport needs registered.
//
// **Thread safety**: every function may be called from any thread. `mutex` guards the fields that
// are neither atomic nor constant; those of the second thread have their own lock.
//
// A forked child has a copy of the runtime. There, calls do nothing and take no lock, and the child
// must not destroy the runtime (MakeSharedOfProcess()).
//
// Invariants:
//  1. The core is used only under `mutex`. Callbacks run without it.
//  2. At most one thread sleeps on the core's descriptors, and the endpoints are armed only while
//     it sleeps.
#ifndef VERBENA_CLIENT_CLIENT_RUNTIME_H_
#define VERBENA_CLIENT_CLIENT_RUNTIME_H_

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
#include "proto/base/fork_guard.h"
#include "proto/control/control_channel.h"
#include "rdma/base/clock.h"
#include "rdma/memory/memory.h"
#include "rdma/transport.h"

namespace verbena {

class ClientRuntime {
 public:
  // The parts of the core, owned by the runtime.
  struct Parts {
    std::unique_ptr<ControlChannel> control;
    std::vector<std::unique_ptr<rdma::Endpoint>> endpoints;
    std::unique_ptr<client::ClientCore> core;
  };
  explicit ClientRuntime(bool background);
  ~ClientRuntime();
  ClientRuntime(const ClientRuntime&) = delete;
  ClientRuntime& operator=(const ClientRuntime&) = delete;

  absl::Status Start(Parts parts);
  // Leaves the cluster (at most until `leave_by_ns`), ends all operations, stops the thread and
  // destroys the core. Waits in other threads return. Afterwards Run(), WaitUntil() and Stop() do
  // nothing. Not from a callback, and not from two threads at once.
  void Stop(int64_t leave_by_ns);

  // Whether this process is a fork of the process that made the runtime.
  bool copied() const { return process_.copied(); }
  // The reason why Run() returned false.
  absl::Status WhyNot() const;

  // Runs `call` with the core under the lock, then wakes the affected threads. False: the runtime
  // is stopped, or this is a forked child.
  bool Run(absl::FunctionRef<void(client::ClientCore&)> call);
  // Makes progress until `done` (called under the lock) returns true, or until the deadline.
  // Returns done().
  bool WaitUntil(absl::FunctionRef<bool()> done, int64_t deadline_ns);
  // Adds a user's callback. A thread that makes progress runs it without the lock. Requires the
  // lock (inside Run() or a core callback).
  void AddCallback(std::function<void(absl::Status)> callback, absl::Status status) {
    callbacks_.emplace_back(std::move(callback), std::move(status));
  }
  // Counts an operation that got a callback, or whose callback was added after its end. Requires
  // the lock.
  void ExpectCallback();
  void EndExpectCallback() { --expected_callbacks_; }
  // Call when a block's last handle is destroyed.
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
  // Gives way to threads that wait for the lock; relocking the mutex at once would starve them.
  void LetIn(std::unique_lock<std::mutex>& lock);
  void WakeFromNap();  // wakes the background thread if its nap would be too long
  bool Spin(std::unique_lock<std::mutex>& lock, absl::FunctionRef<bool()> done);
  // Sleeps on the descriptors and `wake_fd` until an event or until `until_ns`.
  void Sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int64_t until_ns);
  bool RunCallbacks(std::unique_lock<std::mutex>& lock);
  void StopRegistrar();
  void WakeSleeper();
  void Background();
  // Duration of the nap after one of `last`. `keeps`: the same caller has driven since then.
  int64_t NextNap(int64_t last, bool keeps);
  void BackgroundTurn(std::unique_lock<std::mutex>& lock);
  void KeepLease();
  void KeepLeaseAlone(client::LeaseKeeper* keeper);  // runs on the second thread
  void Nap(std::unique_lock<std::mutex>& lock, int64_t ns);

  const ForkGuard process_;
  const bool background_;
  const MonotonicClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> contenders_{0};
  uint64_t entries_ = 0;             // number of contenders that have entered so far
  int letting_in_ = 0;               // threads in LetIn()
  std::condition_variable entered_;  // a contender has entered while a thread is in LetIn()
  Parts parts_;
  bool stopping_ = false;
  bool caller_drives_ = false;
  uint64_t drives_ = 0;
  int waiting_ = 0;           // callers on `changed_`
  int sleeper_fd_ = -1;       // eventfd of the thread that sleeps on the descriptors
  int64_t sleeps_until_ = 0;  // end of its sleep
  int64_t naps_until_ = 0;    // end of the background thread's nap; 0: it does not nap
  int calm_looks_ = 0;        // its checks without work; halved when it finds operations
  int fruitless_spins_ = 0;
  int caller_fd_ = -1, background_fd_ = -1;
  int expected_callbacks_ = 0;  // number of operations in flight with a callback
  std::vector<std::pair<std::function<void(absl::Status)>, absl::Status>> callbacks_;
  std::vector<int> descriptors_;
  std::vector<pollfd> polled_;
  std::thread thread_;

  std::mutex keeper_mutex_;  // guards the fields below
  std::condition_variable keeper_changed_;
  bool keeper_stops_ = false;
  std::thread keeper_thread_;
  std::vector<std::thread> registrar_threads_;
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_CLIENT_RUNTIME_H_
