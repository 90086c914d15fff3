// Metrics of the processes that a benchmark runs.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_BENCH_METRICS_H_
#define VERBENA_BENCH_METRICS_H_

#include <cstdint>
#include <string>

namespace verbena::bench {

// The page at http://127.0.0.1:PORT/metrics, of `address` 127.0.0.1:PORT; empty: nobody answers
// within a second.
std::string MetricsPage(const std::string& address);
// The sum of a gauge over its labels.
int64_t MetricSum(const std::string& page, const std::string& name);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_METRICS_H_
