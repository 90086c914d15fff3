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
// Elastic jobs: the rows also give the workers of each step. All workers of a step pull the same
// rows before it, so they agree on who has which part of its batch, though they hear of members at
// different times. A worker that joins has no part in its first step, which makes it known; one
// that leaves marks its last step; the part of one that was killed is missing in one step.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
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
  // Elastic: steps to train, less than 2^40; 0: not known. Only workers that join have the same.
  uint64_t steps = 0;
};

struct JobProgressOptions {
  uint64_t workers = 1;
  uint64_t rank = 0;
  // Identifies this run of the job: the same for its workers, different from every other run. 0:
  // the workers begin together, so that none sees later pushes of another one.
  uint64_t run = 0;
  bool together = true;  // all workers make the same steps (sync)
  // Not 0: the job is elastic and together, `workers` is the greatest number of its workers, and a
  // run begins with so many.
  uint64_t begins_with = 0;
  bool resume = false;  // elastic: the run goes on after the steps of the ones before
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
  uint64_t at_start() const { return counted_.at_start; }
  // Call after Begin(), together, with the steps that each tensor has taken. A run whose workers
  // were all killed inside a step has left it in some tensors alone. It then counts as made, so
  // that it is not trained twice. Returns which tensors lack it; empty: none.
  std::string TakeUnequal(absl::Span<const AppliedSteps> applied);
  // Elastic: whether this worker has joined a run that others have begun to train.
  bool joined() const { return joined_; }
  // Elastic: the steps that are over, by the last pull; the same for all workers of a step.
  uint64_t steps() const;
  // Elastic: the ranks of the workers among which the next step's batch is divided, by the last
  // pull. None: all have left, and workers that have joined are not known yet; then a step is made
  // without a batch.
  std::vector<uint64_t> members() const;

  // Call after Begin(). The settings of the previous run; none: it has left none.
  const std::optional<ResumedSettings>& resumed() const { return resumed_; }
  // FAILED_PRECONDITION names both values where the batch or the seed is another one.
  absl::Status CheckResumed() const;
  // Not empty where the data is another one: names both.
  std::string DataDifference() const;

  struct Marks {
    bool stop = false;     // requests the end of training: early stop
    bool leaves = false;   // elastic: this is the worker's last step
    bool drains = false;   // together: all workers end after this step, as a signal wants
    bool settles = false;  // elastic: this worker writes the settings
  };
  // Fills the store's gradients: one more step.
  void Push(const Marks& marks);
  // Whether a worker has requested the end in this run, according to the last pull.
  bool stopped() const;
  // Whether a worker of this run drains it, according to the last pull.
  bool drained() const;

 private:
  static constexpr size_t kDigits = 3;
  static constexpr size_t kRow = 12;
  // In one digit with the number of workers, which is at most 1024.
  static constexpr uint64_t kWorkersMask = 0xfff;
  static constexpr uint64_t kLeaves = 1 << 12, kDrains = 1 << 13, kResumes = 1 << 14;
  static constexpr uint64_t kFlagsMask = kLeaves | kDrains | kResumes;
  static constexpr int kAheadShift = 15;
  static constexpr uint64_t kAheadMask = 63;  // two's complement
  static constexpr int64_t kMostAhead = 31;
  // Of a tensor, and of all.
  static constexpr uint64_t kMostLack = 63, kMostLacks = (1 << 21) - 1;
  using Row = std::array<float, kRow>;
  // How the numbers of steps that the tensors have taken differ.
  struct Unequal {
    int64_t ahead = 0;   // the model's tensors of this one
    uint64_t lacks = 0;  // the sum of what the model's tensors lack
    bool operator==(const Unequal&) const = default;
  };
  struct Counts {
    uint64_t made = 0;      // steps since the run began
    uint64_t at_start = 0;  // steps of the job when the run began
    uint64_t run = 0;
    uint64_t number = 0;  // of the run, from 1; 0: no worker has written this row
    uint64_t workers = 0;
    uint64_t flags = 0;  // kLeaves, ...
    Unequal unequal;     // when the run began
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
  // Rows of this run that were pushed.
  template <typename F>
  void ForRun(F&& use) const;
  uint64_t Made() const;  // elastic: steps of this run, by the last pull
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
  bool joined_ = false;
  bool begins_ = false;  // none of this run had pushed before
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_JOB_PROGRESS_H_
