// The training loop of one worker.
//
// Rows of embedding tables: with `prefetch` the lookup for batch t + 1 starts before the gradient
// of batch t is computed, so that both overlap. These rows lack this worker's own push of step t
// (one step of staleness more than a later lookup). Without `prefetch`, the lookup starts once step
// t is ended, as sync requires: step t + 1 has to see step t. The lookup's keys are announced in
// advance.
//
// Early stop: rank 0 validates. When the result has not improved for long enough it writes the run
// into a counter tensor of the job, which every worker pulls with the parameters of each step; a
// worker that finds its run there stops. In sync a step's pull is the same for all, so all stop
// after the same step and none waits for another. In ssp and async each stops at the end of its
// next step, or before its first one. Workers need no other channel.
//
// Steps are counted in another such tensor where a job may be resumed (job_progress.h).
//
// Elastic jobs (sync): before each step the worker learns from that tensor among which workers the
// step's batch is divided. The batch of the next step is prepared for those of the present one, and
// again if they have changed. Gradients are summed, not averaged, because the number of a step's
// workers is known only when it is over.
//
// Drain: when a signal asks for the end, a worker of an elastic job makes one more step and marks
// it as its last. With `drain_together` such a step is the last one of all workers of the run.
// Otherwise the worker stops before its next step.
//
// A loss that is not finite ends training with FAILED_PRECONDITION before the first push of that
// step.
//
// **Thread safety**: one thread; `stop` may be set from anywhere, a signal handler included.
#ifndef VERBENA_WORKER_TRAIN_TRAINER_H_
#define VERBENA_WORKER_TRAIN_TRAINER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/stores/parameter_store.h"
#include "worker/train/validation.h"

namespace verbena::worker {

struct TrainOptions {
  uint64_t workers = 1;  // elastic: with which a run begins
  uint64_t rank = 0;
  uint64_t max_workers = 0;  // not 0: the job is elastic. Needs count_steps, and together (sync)
  uint64_t steps = 0;
  uint64_t batch = 1024;  // examples a step, of all workers together
  uint64_t seed = 1;      // of the order of examples
  bool prefetch = false;  // rows of the next batch; not for sync tables

  // Rank 0 validates after every so many steps; 0: never. Needs test data.
  uint64_t validate_every = 0;
  uint64_t validate_examples = UINT64_MAX;  // at most, from the start of the test data
  // Stop when so many validations in a row were no better than the best; 0: do not. The store is
  // then laid out by StoreLayout().
  uint64_t early_stop = 0;

  // Keep count of the steps in the store, which is then laid out by StoreLayout().
  bool count_steps = false;
  // Whether each worker makes its steps apart from the others (ssp, async).
  bool separate_steps = false;
  // Begins after the counted steps, as though this run had made them: same examples, same
  // arithmetic. The previous run may have had another number of workers. In ssp and async all
  // workers begin at the mean of the counts of its workers. The average begins with the current
  // parameters. FAILED_PRECONDITION: there are `steps` or more already, or the previous run had
  // another batch or seed, or (together) ended inside a step, which tensors have that others lack.
  // Needs count_steps.
  bool resume = false;
  // With `resume`: takes a step that tensors lack as made, with a warning, as though a worker had
  // died in it. If there are `steps` or more already, that is no error. So it is in an elastic job.
  bool resume_anyhow = false;
  bool drain_together = false;
  // Size of the training files, as in ResumedSettings; 0: not known.
  uint64_t data_bytes = 0;
  uint64_t data_hash = 0;
};

// This worker's progress so far.
struct Totals {
  uint64_t steps = 0;         // with those before a resume
  uint64_t steps_before = 0;  // that others had made: before a resume, or before it joined
  // Elastic: the workers among which the last step's batch was divided, and this one's number among
  // them, from 1; 0: it had no part.
  uint64_t parts = 0;
  uint64_t part = 0;
  uint64_t samples = 0;
  double seconds = 0;  // since the first step began
  double loss = 0;     // mean a sample in nats, over the last twentieth of the steps
  uint64_t bytes_pushed = 0;
  uint64_t bytes_pulled = 0;
  uint64_t ssp_pulls = 0;     // pull requests to ssp tables
  uint64_t steps_behind = 0;  // of the slowest worker, summed over these requests
};

struct TrainHooks {
  // After each step. May be empty.
  std::function<void(const Totals&)> after_step;
  // Rank 0, after each validation. May be empty.
  std::function<void(const Validation&)> validated;
  // Rank 0: training continues, but not as the options promise. May be empty.
  std::function<void(const std::string&)> warn;
  // Drains: ends the loop with CANCELLED at a step's boundary.
  const std::atomic<bool>* stop = nullptr;
  // Set when the first step begins. May be null.
  std::atomic<bool>* training = nullptr;
  // Elastic: whether this worker may leave after this step. False while only others that join are
  // left, which await the steps before their first one. May be empty.
  std::function<bool()> may_leave;
};

struct TrainResult {
  Totals totals;
  // The dense parameters to evaluate: an average of the pulled ones, over about the last tenth of
  // the steps. It replaces a decay of the rate, which is fixed per table. With embedding tables it
  // has the last pulled parameters: rows are not averaged, and belong to no other parameters.
  std::vector<float> average;
  bool stopped_early = false;
};

// The layout of the store that trains the model: the model's tensors, then those of the options.
Layout StoreLayout(const Model& model, const TrainOptions& options);

absl::StatusOr<TrainResult> Train(Model* model, ParameterStore* store, const TrainOptions& options,
                                  const TrainHooks& hooks = {});

// Pulls every tensor and waits.
absl::Status PullAll(ParameterStore* store);

// xxHash64 of every tensor's bytes, in order, without the gaps between them.
uint64_t HashParameters(const Layout& layout, const float* parameters);

// HashParameters() of the model's tensors, continued over the rows of every key of the training
// examples: by table, in increasing order of keys, with the store's current values.
absl::StatusOr<uint64_t> HashModel(Model* model, ParameterStore* store);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_TRAINER_H_
