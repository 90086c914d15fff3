// perftest's programs as a limit: the speed of the device with plain verbs (ib_write_bw(1) and
// others).
//
// Each call runs a server and a client of one program as child processes on one device of this
// machine, with perftest's defaults (one reliable-connected queue pair, tx-depth 128), and reads
// the table it prints. They end with the call, or by SIGKILL when they take too long.
//
// **Thread safety**: one thread at a time: a call that fails waits for its own children alone.
#ifndef VERBENA_BENCH_PERFTEST_H_
#define VERBENA_BENCH_PERFTEST_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::bench {

struct PerftestOptions {
  std::string device;   // "rxe0" or "rxe0:1", the port behind the colon; empty: the first
  bool placed = false;  // client on CPU 0, server on CPU 1; otherwise where the kernel likes
  std::vector<std::string> extra;  // handed to both sides, such as {"-x", "3"} for a GID index
};

// NOT_FOUND, with the package to install, when perftest is not there.
absl::Status FindPerftest();

enum class Direction { kOne, kBoth };
// ib_write_bw: payload bytes a second / 10^6, of both directions together with kBoth. (perftest
// prints MiB/s as "MB/sec"; this is converted.) The middle `seconds` of the run are measured.
absl::StatusOr<double> WriteMegabytes(const PerftestOptions& options, size_t bytes, int seconds,
                                      Direction direction);

// Round trips; perftest prints half of each.
struct RoundTrip {
  double typical_us = 0;
  double p99_us = 0;
};
enum class Waiting { kPolling, kEvents };
// ib_send_lat: both sides take completions.
absl::StatusOr<RoundTrip> SendRoundTrip(const PerftestOptions& options, size_t bytes, int rounds,
                                        Waiting waiting);
// ib_write_lat: both sides look at the memory that is written.
absl::StatusOr<RoundTrip> WriteRoundTrip(const PerftestOptions& options, size_t bytes, int rounds);

// The numbers of the last row of a table whose head contains `column`; at least `count` of them.
// INTERNAL with the output when there is no such row.
absl::StatusOr<std::vector<double>> LastRow(const std::string& output, const std::string& column,
                                            size_t count);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_PERFTEST_H_
