// The training loop of one worker.
//
// **Thread safety**: one thread; `stop` may be set from anywhere, a signal handler included.
#ifndef VERBENA_WORKER_TRAINER_H_
#define VERBENA_WORKER_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/model.h"
#include "worker/parameter_store.h"

namespace verbena::worker {

struct TrainOptions {
  uint64_t workers = 1;
  uint64_t rank = 0;
  uint64_t steps = 0;
  uint64_t batch = 1024;  // examples a step, of all workers together
  uint64_t seed = 1;      // of the order of examples
};

// What this worker has done so far.
struct Totals {
  uint64_t steps = 0;
  uint64_t samples = 0;
  double seconds = 0;  // since the first step began
  double loss = 0;     // mean a sample in nats, over the last twentieth of the steps
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pulled = 0;
};

struct TrainHooks {
  // After each step. May be empty.
  std::function<void(const Totals&)> after_step;
  // In the middle of each step (its first tensor is pushed, the others not); for fault tests.
  std::function<void(uint64_t step)> mid_step;
  const std::atomic<bool>* stop = nullptr;  // ends the loop with CANCELLED at a step's boundary
};

struct TrainResult {
  Totals totals;
  // The parameters to evaluate: an average of those pulled, over about the last tenth of the steps.
  // It stands in for the decay of the rate, which is fixed per table.
  std::vector<float> average;
};

absl::StatusOr<TrainResult> Train(Model* model, ParameterStore* store, const TrainOptions& options,
                                  const TrainHooks& hooks = {});

// Pulls every tensor and waits.
absl::Status PullAll(ParameterStore* store);

// xxHash64 of every tensor's bytes, in order, without the gaps between them.
uint64_t HashParameters(const Layout& layout, const float* parameters);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAINER_H_
