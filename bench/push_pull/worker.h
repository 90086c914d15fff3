// Our side of the comparison: a worker with verbena::Client against real servers.
//
// **Thread safety**: a worker belongs to one thread.
#ifndef VERBENA_BENCH_PUSH_PULL_WORKER_H_
#define VERBENA_BENCH_PUSH_PULL_WORKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/cluster.h"
#include "verbena/client.h"

namespace verbena::bench {

// When the measured rounds began and ended, on CLOCK_MONOTONIC: comparable between processes.
struct Interval {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  double seconds() const { return static_cast<double>(end_ns - begin_ns) * 1e-9; }
};

// Types of numbers in transfers: parameters that are pulled, gradients that are pushed.
struct Types {
  v1::DType parameters = v1::DTYPE_F32;
  v1::DType gradients = v1::DTYPE_F32;
  v1::Codec pull_codec = v1::CODEC_NONE;
};

class Worker {
 public:
  struct Options {
    std::string cluster;
    std::string job;
    uint32_t expected_workers = 1;
    Wire wire;
  };
  static absl::StatusOr<std::unique_ptr<Worker>> Connect(const Options& options);

  // Makes or opens a table (sgd) of as many elements as `bytes` bytes of f32 are, and the buffers
  // for it.
  absl::Status UseTable(const std::string& name, v1::Consistency consistency, size_t bytes,
                        const Types& types = {});

  // PushPull over the whole table, kDepth rounds in flight; rewrites the gradient before each and
  // reads the result after. The first kDepth rounds are not measured.
  absl::StatusOr<Interval> PushPullRounds(int rounds);
  // The same with pulls alone, all of one version.
  absl::StatusOr<Interval> PullRounds(int rounds);
  // Pushes that are waited for one by one; nanoseconds of each on average. `gap_us` of sleep before
  // each, not measured.
  absl::StatusOr<double> PushNanos(int rounds, int gap_us);

  // The device and port of its lanes, "rxe0:1"; empty for shm, and before there are lanes.
  std::string Device() const;

  Client& client() { return *client_; }

 private:
  Worker() = default;
  absl::StatusOr<Interval> Rounds(int rounds, bool push);
  std::unique_ptr<Client> client_;
  std::string job_;
  Table table_;
  std::vector<Region> gradients_;
  std::vector<Region> results_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_PUSH_PULL_WORKER_H_
