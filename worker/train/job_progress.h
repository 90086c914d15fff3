// Progress of a job's workers, kept on the servers in counter tensors: pushed, replicated,
// checkpointed and restored with the parameters.
//
// "steps" has a row for each rank, which only the worker of that rank adds to. A row has the number
// and id of its run, the steps that the job had when that run began, the run's workers, and the
// steps that this worker has made since. The rows of the newest run give the job's steps. Rows of
// older runs are not read any more, so the next run may have another number of workers. All workers
// of a run find the same first step however late they begin, because a row of their own run has it.
// Numbers are in digits that f32 represents exactly, up to 2^63. One more row, of rank 0, has the
// settings for resuming a run (ResumedSettings).
//
// "stop" has the run in which a worker requested the end of training.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. A chunk is atomic and a push counts once, so a row is always complete.
//  2. Runs of a job are numbered in the order in which they begin: a run begins when no worker of
//     the previous one is left.
#ifndef VERBENA_WORKER_TRAIN_JOB_PROGRESS_H_
#define VERBENA_WORKER_TRAIN_JOB_PROGRESS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker/models/layout.h"
#include "worker/stores/parameter_store.h"

namespace verbena::worker {

// Settings that must be equal for a run to continue the arithmetic and examples of the previous
// run.
struct ResumedSettings {
  uint64_t batch = 0;  // examples a step; 0: not known
  uint64_t seed = 0;
  uint64_t data_bytes = 0;  // of the training files; 0: not known, then they are not compared
  uint64_t data_hash = 0;   // less than 2^63
};

struct JobProgressOptions {
  uint64_t workers = 1;
  uint64_t rank = 0;
  // Identifies this run of the job: the same for its workers, different from every other run. 0:
  // the workers begin together, so that none sees later pushes of another one.
  uint64_t run = 0;
  bool together = true;  // all workers make the same steps (sync)
  ResumedSettings settings = {};
  // Places in the store's layout; none: not kept.
  std::optional<size_t> steps_tensor = std::nullopt;
  std::optional<size_t> stop_tensor = std::nullopt;
};

class JobProgress {
 public:
  // Ranks of which the steps tensor has rows: 64, or the next power of two that is enough.
  static uint64_t Ranks(uint64_t workers);
  static Tensor StepsTensor(uint64_t workers);
  static Tensor StopTensor();

  JobProgress(ParameterStore* store, const JobProgressOptions& options);

  // Call once, when the tensors have been pulled for the first time. Returns the steps that the job
  // had when the run began: the same for all of its workers. If workers make different numbers of
  // steps, it is the mean, so that the total of steps equals that of a run without a break.
  uint64_t Begin();

  // Call after Begin(). The settings of the previous run; none: it has left none.
  const std::optional<ResumedSettings>& resumed() const { return resumed_; }
  // FAILED_PRECONDITION names both values where the batch or the seed is another one.
  absl::Status CheckResumed() const;
  // Not empty where the data is another one: names both.
  std::string DataDifference() const;

  // Fills the store's gradients: one more step; `stop`: requests the end of training.
  void Push(bool stop);
  // Whether a worker has requested the end in this run, according to the last pull.
  bool stopped() const;

 private:
  static constexpr size_t kDigits = 3;
  static constexpr size_t kRow = 12;
  using Row = std::array<float, kRow>;
  struct Counts {
    uint64_t made = 0;      // steps since the run began
    uint64_t at_start = 0;  // steps of the job when the run began
    uint64_t run = 0;
    uint64_t number = 0;  // of the run, from 1; 0: no worker has written this row
    uint64_t workers = 0;
  };

  static void Write(uint64_t number, float* digits, size_t count = kDigits);
  static uint64_t Read(const float* digits, size_t count = kDigits);
  static Row RowOf(const Counts& counts);
  static Row RowOf(const ResumedSettings& settings);
  const float* PulledRow(uint64_t row) const;
  Counts CountsOf(uint64_t rank) const;
  std::optional<ResumedSettings> SettingsKept() const;
  // The steps of a run, from the rows that its workers have written.
  uint64_t StepsOf(const Counts& run) const;
  const float* Pulled(size_t tensor) const;
  float* Gradient(size_t tensor) const;

  ParameterStore& store_;
  const JobProgressOptions options_;
  uint64_t stops_run_ = 0;  // the value of "stop" that ends this run
  Counts counted_;          // this worker's
  Row row_ = {};            // this worker's, with all that it has pushed
  Row settings_row_ = {};   // rank 0: likewise
  std::optional<ResumedSettings> resumed_;
  std::array<float, kDigits> stop_at_start_ = {};
  bool asked_ = false;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_JOB_PROGRESS_H_
