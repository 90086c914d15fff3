// A worker that pushes and pulls little, and waits for each: how long that takes it, alone and
// beside others.
//
// **Thread safety**: one owner thread. Pusher runs a thread of its own from Start() to its end.
#ifndef VERBENA_BENCH_WORKERS_QUIET_H_
#define VERBENA_BENCH_WORKERS_QUIET_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "verbena/client.h"

namespace verbena::bench {

// Times of many operations, each waited for by itself.
struct Times {
  double median_us = 0;
  double p99_us = 0;
  double p999_us = 0;
  double mean_ns = 0;
};

// A client with an async table of its own.
class Quiet {
 public:
  static absl::StatusOr<std::unique_ptr<Quiet>> Connect(const std::string& cluster,
                                                        const Wire& wire, const std::string& job,
                                                        size_t bytes);
  ~Quiet() { EndLongWait(); }
  // `pull`: also pulls, and waits for both. `gap_us` of sleep before each, not measured.
  absl::StatusOr<Times> Measure(int rounds, bool pull, int gap_us);
  // The same; adds the seconds that each took.
  absl::Status Sample(int rounds, bool pull, int gap_us, std::vector<double>* seconds);
  static Times TimesOf(std::vector<double> seconds);  // not empty
  // Pulls, each with a callback that ends it: no thread waits in the client.
  absl::StatusOr<Times> MeasureCallbacks(int rounds, int gap_us);
  // From now on another thread waits for a version of a sync table that never comes.
  absl::Status BeginLongWait();
  void EndLongWait();

 private:
  friend class Pusher;
  Quiet() = default;
  std::unique_ptr<Client> client_;
  Table table_;
  Region gradient_;
  Region result_;
  Table steps_;  // sync, without a step
  Region steps_result_;
  Ticket long_wait_;
  std::thread waiter_;
};

// Pushes a large table at full rate, four pushes of the whole table in flight, until destroyed.
class Pusher {
 public:
  static absl::StatusOr<std::unique_ptr<Pusher>> Start(const std::string& cluster, const Wire& wire,
                                                       size_t bytes);
  ~Pusher();
  Pusher(const Pusher&) = delete;
  Pusher& operator=(const Pusher&) = delete;
  // While this is off it pushes nothing; returns once no push is in flight.
  void SetOn(bool on);
  // GB/s since it was switched on last.
  double Gigabytes() const;

 private:
  Pusher() = default;
  void Push();

  std::unique_ptr<Quiet> client_;
  std::atomic<bool> on_ = false;
  std::atomic<bool> idle_ = true;
  std::atomic<bool> end_ = false;
  std::atomic<uint64_t> pushes_ = 0;
  double started_ = 0;
  double seconds_ = 0;
  std::thread thread_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_WORKERS_QUIET_H_
