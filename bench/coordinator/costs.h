// Processing costs of a simulated cluster, and how they are measured.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_BENCH_COORDINATOR_COSTS_H_
#define VERBENA_BENCH_COORDINATOR_COSTS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "absl/status/statusor.h"
#include "bench/coordinator/crowd.h"
#include "bench/report.h"

namespace verbena::bench {

// In microseconds of one thread, to a tenth, so that printed costs give the same simulation again.
struct Costs {
  double call = 0;          // of the coordinator: a call that changes nothing, such as a heartbeat
  double save = 0;          // one write of its store, whatever the number of changes in it
  double answer = 0;        // one reply with the differences of a view, serialized
  double whole_answer = 0;  // one reply with a whole view, serialized
  double start = 0;         // a new coordinator that loads the state
  double member = 0;        // a worker or server that takes up one reply

  static constexpr size_t kCount = 6;
  std::array<double*, kCount> All() {
    return {&call, &save, &answer, &whole_answer, &start, &member};
  }
};

inline double ToTenth(double us) { return std::round(us * 10) / 10; }

// All but `member`, by a crowd of the same size in real time.
inline absl::StatusOr<Costs> MeasureCosts(const CrowdOptions& options) {
  const absl::StatusOr<CrowdFigures> figures = Crowd::Run(options);
  if (!figures.ok()) return figures.status();
  Samples changes, saves;
  for (const double ms : figures->changes_ms) changes.Add(ms * 1000);
  for (const double ms : figures->changes_saving_ms) saves.Add(ms * 1000);
  const double answers = options.workers + options.servers;
  Costs costs;
  costs.call = ToTenth(figures->heartbeat_us);
  costs.save = ToTenth(saves.Median());
  costs.answer = ToTenth(std::max(0.1, (changes.Median() - saves.Median()) / answers));
  costs.whole_answer = ToTenth(figures->whole_answer_us);
  costs.start = ToTenth(figures->start_ms * 1000);
  return costs;
}

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_COORDINATOR_COSTS_H_
