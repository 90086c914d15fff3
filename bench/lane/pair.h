// One lane between two threads of this process, each with an endpoint of its own: no server, no
// tables, nothing applied. It measures the lane and the transport below it.
//
// The shard's thread runs from Open() on and answers every record at once. The worker's end is
// driven by the calling thread. A side with nothing to do spins for `spin_us`, with a sched_yield
// every 64 looks, and then sleeps on its endpoint's descriptors, as servers and clients do.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_LANE_PAIR_H_
#define VERBENA_BENCH_LANE_PAIR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/record.h"
#include "rdma/lane/lane_config.h"

namespace verbena::bench {

struct PairOptions {
  std::string transport;  // "shm", "verbs", "ofi"
  std::string device;     // verbs: "rxe0", "rxe0:1"; empty: the nearest usable one
  std::string provider;   // ofi: libfabric's; both ends are on loopback
  uint32_t bytes = 0;     // payload of a record: a multiple of 4
  uint32_t depth = 1;     // records in flight; slots of that size, 1..128
  int spin_us = 0;
  bool placed = true;  // worker on CPU 0, shard on CPU 1
};

// Slots for `depth` records of `bytes` each way, and for as many pulls.
rdma::LaneConfig ConfigFor(uint32_t bytes, uint32_t depth);

struct PushTimes {
  double median_us = 0;
  double p99_us = 0;
  int rounds = 0;
};

class Pair {
 public:
  // Returns once the lane is open and a payload has arrived unchanged each way.
  static absl::StatusOr<std::unique_ptr<Pair>> Open(const PairOptions& options);
  ~Pair();
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  std::string device() const;  // "rxe0:1"; empty: there is none

  // Payload bytes a second / 10^6, with `depth` records in flight: pushes, each answered with its
  // slot; or pulls, each answered with a payload written into this side's memory. A payload of
  // small size is copied by the lane, a large one gathered from its place; each record in flight
  // has a payload of its own.
  absl::StatusOr<double> Megabytes(RecordType type, double seconds);
  // Pushes posted one at a time: from posting until the answer was taken.
  absl::StatusOr<PushTimes> PushLatency(double seconds);

 private:
  struct Impl;
  explicit Pair(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_LANE_PAIR_H_
