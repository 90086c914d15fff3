// The largest logs for replicas, and the largest memory of the processes, while a benchmark runs.
//
// **Thread safety**: one owner thread; it has a thread of its own.
#ifndef VERBENA_BENCH_CATCH_UP_WATCH_H_
#define VERBENA_BENCH_CATCH_UP_WATCH_H_

#include <atomic>
#include <cstdint>
#include <thread>

#include "bench/cluster.h"

namespace verbena::bench {

class Watch {
 public:
  // Every 200 ms, of each server that runs. The cluster outlives it, and starts or stops no server
  // without its lock.
  Watch(const Cluster* cluster, int servers);
  ~Watch();

  // Log bytes of one server, as last seen.
  int64_t log_bytes() const { return log_bytes_; }
  // Resident bytes of all processes together.
  int64_t resident_bytes() const { return resident_bytes_; }

 private:
  void Run();

  const Cluster* const cluster_;
  const int servers_;
  std::atomic<bool> stop_ = false;
  std::atomic<int64_t> log_bytes_ = 0, resident_bytes_ = 0;
  std::thread thread_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CATCH_UP_WATCH_H_
