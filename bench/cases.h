// The cases of a benchmark, of which --case chooses.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_CASES_H_
#define VERBENA_BENCH_CASES_H_

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <thread>

#include "absl/status/status.h"
#include "bench/cluster.h"
#include "bench/report.h"

namespace verbena::bench {

template <typename Settings>
struct Case {
  const char* name;
  absl::Status (*run)(const Settings&, Report*);
  bool placed = false;  // its thread on CPU 0
};

// Runs those that are named in settings.cases (none: all), also after one that failed; writes the
// rows to settings.json. Returns the exit status.
template <typename Settings, size_t kCount>
int RunCases(const char* bench, const Case<Settings> (&cases)[kCount], const Settings& settings) {
  Report report;
  int failed = 0;
  for (const Case<Settings>& c : cases) {
    if (!settings.cases.empty() &&
        std::find(settings.cases.begin(), settings.cases.end(), c.name) == settings.cases.end()) {
      continue;
    }
    absl::Status status;
    // A thread of its own, so that the pinning of one case ends with it.
    std::thread([&] {
      if (c.placed) PinToCpu(0);
      status = c.run(settings, &report);
    }).join();
    if (!status.ok()) {
      std::fprintf(stderr, "%s: %s: %s\n", bench, c.name, status.ToString().c_str());
      ++failed;
    }
  }
  return report.End(bench, absl::OkStatus(), settings.json) == 0 && failed == 0 ? 0 : 1;
}

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_CASES_H_
