// How far a job's workers are, kept on the servers in counter tensors: pushed, replicated, saved
// and restored with the parameters.
//
// "steps" has a row for each worker, which it alone adds to: the steps that it has made, and how
// many those were when the current run of the job began. Each number is in three digits, which f32
// has exactly, up to 2^63. What the others have pushed since then changes nothing about where a run
// begins, so all workers of a run find the same step however late they look.
//
// "stop" has the run in which somebody said that training is to end.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A chunk is atomic and a push counts once, so a row is always whole.
#ifndef VERBENA_WORKER_JOB_PROGRESS_H_
#define VERBENA_WORKER_JOB_PROGRESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker/layout.h"
#include "worker/parameter_store.h"

namespace verbena::worker {

struct JobProgressOptions {
  uint64_t workers = 1;
  uint64_t rank = 0;
  // Of this run of the job: the same for its workers, another one than of every other run. 0: the
  // workers begin together, so that none sees what another one has pushed since.
  uint64_t run = 0;
  bool together = true;  // all workers make the same steps (sync)
  // Places in the store's layout; none: not kept.
  std::optional<size_t> steps_tensor = std::nullopt;
  std::optional<size_t> stop_tensor = std::nullopt;
};

class JobProgress {
 public:
  static Tensor StepsTensor(uint64_t workers);
  static Tensor StopTensor();

  JobProgress(ParameterStore* store, const JobProgressOptions& options);

  // Once, when the tensors have been pulled for the first time. Returns the steps that the job had
  // behind it when the run began: the same for all of its workers. Of workers that go apart it is
  // the mean, so that the steps of all together are as many as those of a run without a break.
  uint64_t Begin();
  // From which number on this worker counts: that of Begin() where it goes on there.
  void CountFrom(uint64_t steps) { counted_ = steps; }

  // Fills the store's gradients: one step more; `stop`: training is to end.
  void Push(bool stop);
  // Whether somebody has said so in this run, as of the last pull.
  bool stopped() const;

 private:
  static constexpr size_t kDigits = 3;
  static constexpr size_t kRow = 3 * kDigits;  // steps, those at the start of a run, the run
  using Row = std::array<float, kRow>;
  struct Counts {
    uint64_t steps = 0, at_start = 0, run = 0;
  };

  static void Write(uint64_t number, float* digits);
  static uint64_t Read(const float* digits);
  Counts CountsOf(uint64_t rank) const;
  const float* Pulled(size_t tensor) const;
  float* Gradient(size_t tensor) const;

  ParameterStore& store_;
  const JobProgressOptions options_;
  uint64_t stops_run_ = 0;  // what says in "stop" that this run is to end
  uint64_t counted_ = 0;    // this worker's steps
  uint64_t at_start_ = 0;   // those when the run began
  Row row_ = {};            // this worker's, with all that it has pushed
  std::array<float, kDigits> stop_at_start_ = {};
  bool said_ = false;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_JOB_PROGRESS_H_
