// The limit for ofi: fi_writedata() between two endpoints of the same libfabric provider, in the
// style of fi_pingpong(1), without lanes, records or answers.
//
// **Thread safety**: runs on the calling thread and one more.
#ifndef VERBENA_BENCH_LANE_FABRIC_H_
#define VERBENA_BENCH_LANE_FABRIC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace verbena::bench {

struct FabricOptions {
  std::string provider;
  std::string address;  // local IP address of both endpoints
  uint32_t bytes = 0;
  uint32_t depth = 1;  // writes in flight, each with a payload and a target of its own
};

// Bytes a second / 10^6 that arrive: the sender (on CPU 0) has `depth` writes that libfabric has
// not completed, the receiver (on CPU 1) counts their completions. Both only poll.
absl::StatusOr<double> FabricMegabytes(const FabricOptions& options, double seconds);

struct FabricTimes {
  double median_us = 0;
  double p99_us = 0;
};
// One write at a time, each answered by one of the same size.
absl::StatusOr<FabricTimes> FabricRoundTrip(const FabricOptions& options, double seconds);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_LANE_FABRIC_H_
