// The thread that runs a state machine: it works, spins briefly, then sleeps.
//
// Spinning pays only when an answer comes sooner than the thread could be woken. So a spin lasts at
// most one wake-up cost and yields to any other thread that wants the core. After three fruitless
// spins in a row it stops, until a sleep turns out to be so short that a spin would have caught it.
// An idle machine uses no CPU.
//
// It sleeps in ppoll(2) on descriptors that are collected each time, not in a persistent epoll set:
// a lane that closes and another that opens may have the same descriptor number, which the set
// would have dropped silently (epoll(7), "Q6").
//
// **Thread safety**: Start(), Stop() and cpu_seconds() by one controlling thread each; the
// machine's methods run on the driver's thread alone, between Start() and Stop().
#ifndef VERBENA_SERVER_EXECUTOR_DRIVER_H_
#define VERBENA_SERVER_EXECUTOR_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rdma/base/clock.h"

namespace verbena::server {

// An object that a driver runs. ShardExecutor has these methods; others are adapted
// (server/node.cc).
class Machine {
 public:
  virtual ~Machine() = default;
  virtual bool RunOnce() = 0;
  virtual bool Arm() = 0;
  virtual void Disarm() = 0;
  virtual void AppendDescriptors(std::vector<int>* fds) const = 0;
  virtual int64_t NextTimerNanos() const = 0;
};

struct DriverOptions {
  std::string name;  // of the thread, at most 15 characters (pthread_setname_np)
  absl::Duration spin = absl::ZeroDuration();  // longest spin; zero: never
  int cpu = -1;                                // the thread is bound to it; -1: not bound
};

struct DriverCounters {
  std::atomic<uint64_t> spins{0};
  std::atomic<uint64_t> fruitless_spins{0};
  std::atomic<uint64_t> sleeps{0};
};

class Driver {
 public:
  Driver(DriverOptions options, const Clock* clock, Machine* machine);
  ~Driver();  // stops
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  absl::Status Start();
  // After Start(): why the thread is not bound to options.cpu. OK without such an option.
  const absl::Status& binding() const { return binding_; }
  // Ends the thread after its current round and waits for it. The caller may use the machine then.
  // Idempotent.
  void Stop();
  // Processor time of the thread in seconds; its final value once it has stopped.
  double cpu_seconds() const;
  const DriverCounters& counters() const { return counters_; }

 private:
  void Bind();
  void Run();
  bool Spin();
  void Sleep();
  double ThreadCpuSeconds() const;

  const DriverOptions options_;
  const Clock* const clock_;
  Machine* const machine_;
  int stop_fd_ = -1;
  absl::Status binding_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
  std::atomic<double> final_cpu_seconds_{0};
  DriverCounters counters_;
  // The driver thread's own.
  int fruitless_ = 0;
  std::vector<int> fds_;
};

// The cost of waking a sleeping thread on this machine, from round trips between two threads over
// eventfds: the longest spin that can pay. Takes a few milliseconds; the result is between 5 and
// 100 us.
absl::Duration MeasureWakeUpCost();

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_DRIVER_H_
