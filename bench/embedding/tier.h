// A table four times the memory that it may have, beside the same in memory.
//
// **Thread safety**: one thread.
#ifndef VERBENA_BENCH_EMBEDDING_TIER_H_
#define VERBENA_BENCH_EMBEDDING_TIER_H_

#include "absl/status/status.h"
#include "bench/embedding/worker.h"

namespace verbena::bench {

class TierBench {
 public:
  explicit TierBench(const Settings& settings) : settings_(settings) {}

  absl::Status Run();
  const Report& report() const { return report_; }

 private:
  absl::Status Load(Worker* memory, Worker* tiered);
  // Batches in flight.
  absl::Status Random(Worker* memory, Worker* tiered, bool push);
  // Steps one after the other with prefetch of their rows; the limit: without.
  absl::Status Steps(Worker* tiered);

  const Settings& settings_;
  Keys keys_{settings_};
  Report report_;
};

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_EMBEDDING_TIER_H_
