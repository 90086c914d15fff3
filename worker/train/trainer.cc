#include "worker/train/trainer.h"

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/train/job_progress.h"
#include "worker/train/schedule.h"

namespace verbena::worker {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Examples and rows looked at together when a model is hashed.
constexpr size_t kHashExamples = 8192;
constexpr size_t kHashRows = 16384;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Mean loss over a window that is a twentieth of the steps so far.
class RecentLoss {
 public:
  void Add(uint64_t step, double sum, uint64_t samples) {
    // An average that forgets: exact over one step, then ever slower.
    const double keep = 1 - 1 / (1 + static_cast<double>(step) / 20);
    sum_ = keep * sum_ + sum;
    samples_ = keep * samples_ + static_cast<double>(samples);
  }
  double mean() const { return samples_ > 0 ? sum_ / samples_ : 0; }

 private:
  double sum_ = 0;
  double samples_ = 0;
};

// A running average of the parameters whose window grows with the steps: the iterates of a fixed
// rate circle a minimum, their average lies closer to it (Polyak and Juditsky, 1992).
class Average {
 public:
  // At the first step only that step's parameters count.
  explicit Average(size_t floats) : values_(floats) {}
  // As though `parameters` had been the average so far.
  Average(const float* parameters, size_t floats) : values_(parameters, parameters + floats) {}

  void Add(uint64_t step, const float* parameters) {
    const float weight = 1 / (1 + kWindow * static_cast<float>(step));
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] += weight * (parameters[i] - values_[i]);
    }
  }
  std::vector<float>& values() { return values_; }

 private:
  static constexpr float kWindow = 0.1f;
  std::vector<float> values_;
};

JobProgressOptions ProgressOptions(const Model& model, const ParameterStore& store,
                                   const TrainOptions& options) {
  const bool elastic = options.max_workers > 0;
  JobProgressOptions progress = {.workers = elastic ? options.max_workers : options.workers,
                                 .rank = options.rank,
                                 .run = store.run(),
                                 .together = !options.separate_steps,
                                 .begins_with = elastic ? options.workers : 0,
                                 .resume = options.resume,
                                 .settings = {.batch = options.batch,
                                              .seed = options.seed,
                                              .data_bytes = options.data_bytes,
                                              .data_hash = options.data_hash,
                                              .steps = elastic ? options.steps : 0}};
  // Behind the model's own: see StoreLayout().
  size_t next = model.layout().size();
  if (options.count_steps) progress.steps_tensor = next++;
  if (options.early_stop > 0) progress.stop_tensor = next;
  return progress;
}

// The workers among which a step's batch is divided, by number.
struct Division {
  std::vector<uint64_t> ranks;  // elastic; may be empty: nobody has a part
  uint64_t workers = 1;
  uint64_t number = 0;  // this worker's; `workers`: it has no part
  bool batch = true;    // false: nobody has a part
  bool operator==(const Division&) const = default;
};

// Which examples and rows a step uses. Two are in use at a time: this step's and the next one's.
struct Prepared {
  Batch batch;
  Division division;
  uint64_t batch_size = 0;  // of all workers
  std::vector<const float*> rows;
  std::vector<float*> row_gradients;
};

class Loop {
 public:
  Loop(Model* model, ParameterStore* store, const TrainOptions& options, const TrainHooks& hooks)
      : model_(*model),
        store_(*store),
        rows_(*store->rows()),
        tables_(model->tables().size()),
        options_(options),
        hooks_(hooks),
        schedule_(model->examples(), options.batch, options.workers, options.rank, options.seed,
                  model->order()),
        ahead_(schedule_),
        patience_(options.early_stop),
        progress_(store, ProgressOptions(*model, *store, options)),
        division_{.ranks = {}, .workers = options.workers, .number = options.rank} {}
  // Rows may still be on their way into the store's buffers when a loop ends early.
  ~Loop() { (void)rows_.WaitLookups(looking_up_); }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Once, before the first step.
  absl::Status Begin() {
    const absl::StatusOr<std::vector<AppliedSteps>> applied = store_.PullApplied();
    if (!applied.ok()) return applied.status();
    uint64_t behind = progress_.Begin();
    const std::string lacking = progress_.TakeUnequal(*applied);
    if (options_.resume && !lacking.empty()) {
      if (!options_.resume_anyhow) {
        return absl::FailedPreconditionError(
            "--resume: " + lacking +
            "; restore an earlier checkpoint, or give --resume auto, "
            "which takes the step as made");
      }
      if (Warns()) hooks_.warn("warning: --resume: " + lacking + "; training goes on after it");
    }
    behind = progress_.at_start();
    if (elastic()) Divide();
    if (options_.resume || progress_.joined()) {
      if (absl::Status same = progress_.CheckResumed(); !same.ok()) return same;
      const std::string difference = progress_.DataDifference();
      if (!difference.empty() && Warns()) {
        hooks_.warn("warning: --resume: " + difference +
                    "; training goes on with other examples than that run would have");
      }
      first_ = behind;
    }
    if (elastic()) first_ = progress_.steps();
    next_ = totals_.steps = totals_.steps_before = first_;
    if (first_ >= options_.steps && (options_.resume_anyhow || elastic())) return absl::OkStatus();
    if (options_.resume && first_ >= options_.steps) {
      return absl::FailedPreconditionError(absl::StrCat("nothing to resume: the tables have ",
                                                        first_, " steps behind them, and ",
                                                        options_.steps, " were to be made"));
    }
    model_.ResumeAt(first_);
    if (absl::Status status = Prepare(first_); !status.ok()) return status;
    BeginLookup();
    return absl::OkStatus();
  }
  // The one that comes first, once begun, and then the next one.
  uint64_t next() const { return next_; }

  // The next one. `drains`: a signal has asked for the end.
  absl::Status Step(bool drains) {
    const uint64_t step = next_;
    const size_t slot = turn_ % 2;
    Prepared& now = prepared_[slot];
    if (absl::Status status = rows_.WaitLookups(slot); !status.ok()) return status;
    leaves_ = elastic() && drains && (!hooks_.may_leave || hooks_.may_leave());
    // Without a batch the same one is next.
    next_ = step + (now.division.batch ? 1 : 0);
    ++turn_;
    const bool more = next_ < options_.steps && !leaves_;
    if (more) {
      if (absl::Status status = Prepare(next_); !status.ok()) return status;
      options_.prefetch ? BeginLookup() : Prefetch();
    }
    if (elastic()) model_.ResumeAt(step);
    const absl::StatusOr<double> loss = Gradient(slot, drains && options_.drain_together);
    if (!loss.ok()) return loss.status();
    if (!std::isfinite(*loss)) {
      return Diverged(absl::StrCat("the loss of step ", step, " is ", *loss));
    }
    const size_t tensors = store_.layout().size();
    // The counts first: a worker that is killed here leaves no step that would be made twice.
    const size_t own = model_.layout().size();
    for (size_t i = own; i < tensors; ++i) store_.Push(i);
    for (size_t i = 0; i < own; ++i) store_.Push(i);
    for (size_t t = 0; t < tables_; ++t) rows_.Push(t, now.batch.keys[t]);
    store_.EndStep();
    if (more && !options_.prefetch) BeginLookup();
    for (size_t i = 0; i < tensors; ++i) store_.Pull(i);
    if (absl::Status status = store_.Wait(); !status.ok()) return status;
    recent_.Add(step, *loss, now.batch.ids.size());
    totals_.steps = next_;
    totals_.samples += now.batch.ids.size();
    if (!elastic()) return absl::OkStatus();
    totals_.parts = now.division.batch ? now.division.workers : 0;
    totals_.part = now.division.number < totals_.parts ? now.division.number + 1 : 0;
    Divide();
    return more && division_ != prepared_[turn_ % 2].division ? PrepareAgain() : absl::OkStatus();
  }
  // Whether this worker has made its last step, or all have.
  bool Drained() const { return leaves_ || (options_.drain_together && progress_.drained()); }
  // Whether it validates and writes settings: one of the step's workers, if they have parts in it.
  bool Leads() const {
    return elastic() ? division_.batch && division_.number == 0 : options_.rank == 0;
  }

  // After a step, by the worker that leads.
  absl::Status Validate(const float* parameters) {
    if (options_.validate_every == 0 || totals_.steps % options_.validate_every != 0) {
      return absl::OkStatus();
    }
    const absl::StatusOr<Quality> quality = EvaluateWith(
        &model_, &rows_, {.parameters = parameters, .limit = options_.validate_examples});
    if (!quality.ok()) return quality.status();
    const bool best = patience_.Add(*quality);
    if (hooks_.validated) hooks_.validated({totals_.steps, *quality, best});
    return absl::OkStatus();
  }

  // Whether some worker, this one included, has asked to stop by the end of the last step, or
  // before this one began.
  bool Stopped() const { return progress_.stopped(); }

  const Totals& Count(double seconds) {
    const StoreStatistics statistics = store_.statistics();
    totals_.seconds = seconds;
    totals_.loss = recent_.mean();
    totals_.bytes_pushed = statistics.bytes_pushed;
    totals_.bytes_pulled = statistics.bytes_pulled;
    totals_.ssp_pulls = statistics.ssp_pulls;
    totals_.steps_behind = statistics.steps_behind;
    return totals_;
  }

 private:
  bool elastic() const { return options_.max_workers > 0; }
  bool Warns() const { return options_.rank == 0 && hooks_.warn; }

  // By the parameters of the last pull.
  void Divide() {
    division_.ranks = progress_.members();
    division_.batch = !division_.ranks.empty();
    division_.workers = std::max<uint64_t>(division_.ranks.size(), 1);
    const auto own = std::find(division_.ranks.begin(), division_.ranks.end(), options_.rank);
    division_.number = own == division_.ranks.end()
                           ? division_.workers
                           : static_cast<uint64_t>(own - division_.ranks.begin());
  }
  // For the present division.
  absl::Status Prepare(uint64_t step) {
    Prepared& next = prepared_[turn_ % 2];
    for (Schedule* schedule : {&schedule_, &ahead_}) {
      schedule->Divide(division_.workers, std::min(division_.number, division_.workers - 1));
    }
    ReadAhead(step);
    const Schedule::Share share = schedule_.Step(step);
    const bool has_part = division_.number < division_.workers;
    next.batch.ids.assign(share.ids.begin(), has_part ? share.ids.end() : share.ids.begin());
    next.batch_size = share.batch;
    next.division = division_;
    if (elastic()) {
      next.batch.penalty =
          static_cast<double>(next.batch.ids.size()) / static_cast<double>(next.batch_size);
    }
    return model_.Prepare(&next.batch);
  }
  // The next step, which has other workers than the one before.
  absl::Status PrepareAgain() {
    if (absl::Status status = rows_.WaitLookups(turn_ % 2); !status.ok()) return status;
    if (absl::Status status = Prepare(next_); !status.ok()) return status;
    BeginLookup();
    return absl::OkStatus();
  }
  // So that the examples of later steps are read meanwhile.
  void ReadAhead(uint64_t step) {
    if (!schedule_.windowed()) return;
    read_ahead_ = std::max(read_ahead_, step);
    const uint64_t end = std::min(step + schedule_.steps_ahead() + 1, options_.steps);
    for (; read_ahead_ < end; ++read_ahead_) model_.WillPrepare(ahead_.Step(read_ahead_).ids);
  }
  // Of the batch that was prepared last.
  void Prefetch() {
    for (size_t t = 0; t < tables_; ++t) rows_.Prefetch(t, prepared_[turn_ % 2].batch.keys[t]);
  }
  void BeginLookup() {
    looking_up_ = turn_ % 2;
    const Prepared& next = prepared_[turn_ % 2];
    for (size_t t = 0; t < tables_; ++t) rows_.Lookup(turn_ % 2, t, next.batch.keys[t]);
  }

  // Into the store's gradient and row gradients. Returns the loss.
  absl::StatusOr<double> Gradient(size_t slot, bool drains) {
    Prepared& now = prepared_[slot];
    now.rows.resize(tables_);
    now.row_gradients.resize(tables_);
    for (size_t t = 0; t < tables_; ++t) {
      now.rows[t] = rows_.rows(slot, t);
      absl::StatusOr<float*> gradients = rows_.Gradients(t, now.batch.keys[t].size());
      if (!gradients.ok()) return gradients.status();
      now.row_gradients[t] = *gradients;
    }
    // The tables take the mean over the workers, so each scales by how many there are: the mean is
    // then the batch's, however unevenly it was split. Those of an elastic job take the sum.
    const double scale =
        static_cast<double>(elastic() ? 1 : options_.workers) / static_cast<double>(now.batch_size);
    const absl::StatusOr<double> loss = model_.Gradient(
        now.batch, scale, {store_.parameters(), now.rows, store_.device_parameters()},
        {store_.gradient(), absl::MakeSpan(now.row_gradients), store_.device_gradients()});
    progress_.Push({.stop = Leads() && patience_.exhausted(),
                    .leaves = leaves_,
                    .drains = drains,
                    .settles = Leads()});
    return loss;
  }

  Model& model_;
  ParameterStore& store_;
  RowStore& rows_;
  const size_t tables_;
  const TrainOptions& options_;
  const TrainHooks& hooks_;
  Schedule schedule_, ahead_;
  uint64_t read_ahead_ = 0;  // steps before it have been announced to the model
  Patience patience_;
  JobProgress progress_;
  Division division_;  // of the next step
  uint64_t first_ = 0, next_ = 0;
  Prepared prepared_[2];
  uint64_t turn_ = 0;      // steps of this worker: which of prepared_, and slot, is the next step's
  size_t looking_up_ = 0;  // the slot whose rows were requested last
  bool leaves_ = false;
  RecentLoss recent_;
  Totals totals_;
};

absl::Status CheckTraining(const Model& model, const ParameterStore& store,
                           const TrainOptions& options) {
  const uint64_t ranks = std::max(options.workers, options.max_workers);
  if (model.examples() == 0 || options.batch == 0 || options.workers == 0 ||
      options.rank >= ranks) {
    return absl::InvalidArgumentError(
        "training needs examples, a batch and workers above zero, and a rank below workers");
  }
  if (options.early_stop > 0 && options.validate_every == 0) {
    return absl::InvalidArgumentError("early stop needs validations");
  }
  if (options.validate_every > 0 && !model.has_test()) {
    return absl::InvalidArgumentError("validation needs test data, given or held out");
  }
  if (options.resume && !options.count_steps) {
    return absl::InvalidArgumentError("to resume needs steps that were counted");
  }
  if (options.max_workers > 0 && (!options.count_steps || options.separate_steps)) {
    return absl::InvalidArgumentError("an elastic job needs steps that are counted, in sync");
  }
  if (store.layout().size() != StoreLayout(model, options).size()) {
    return absl::InvalidArgumentError("the store is not laid out for this model and these options");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<AppliedSteps>> ParameterStore::PullApplied() {
  if (absl::Status status = PullAll(this); !status.ok()) return status;
  return std::vector<AppliedSteps>();
}

absl::Status PullAll(ParameterStore* store) {
  for (size_t i = 0; i < store->layout().size(); ++i) store->Pull(i);
  return store->Wait();
}

Layout StoreLayout(const Model& model, const TrainOptions& options) {
  Layout layout = model.layout();
  const uint64_t ranks = std::max(options.workers, options.max_workers);
  if (options.count_steps) layout = layout.With(JobProgress::StepsTensor(ranks));
  if (options.early_stop > 0) layout = layout.With(JobProgress::StopTensor());
  return layout;
}

absl::StatusOr<TrainResult> Train(Model* model, ParameterStore* store, const TrainOptions& options,
                                  const TrainHooks& hooks) {
  if (absl::Status status = CheckTraining(*model, *store, options); !status.ok()) return status;
  Loop loop(model, store, options, hooks);
  TrainResult result;
  const bool averages = model->tables().empty();
  if (absl::Status status = loop.Begin(); !status.ok()) return status;
  const size_t averaged = averages ? model->layout().floats() : 0;
  result.stopped_early = loop.Stopped();  // before this worker began
  const bool goes_on = options.resume || loop.next() > 0 || result.stopped_early;
  Average average = goes_on ? Average(store->parameters(), averaged) : Average(averaged);
  const auto start = SteadyClock::now();
  if (hooks.training != nullptr) hooks.training->store(true);
  const absl::Status stopped = absl::CancelledError("stopped by a signal");
  const bool alone = options.max_workers == 0 && !options.drain_together;
  while (loop.next() < options.steps && !result.stopped_early) {
    const uint64_t step = loop.next();
    // In a run of several workers the others count on this one in the next step.
    const bool drains = hooks.stop != nullptr && hooks.stop->load(std::memory_order_relaxed);
    if (drains && alone) return stopped;
    if (absl::Status status = loop.Step(drains); !status.ok()) return status;
    if (averages) average.Add(step, store->parameters());
    if (hooks.after_step) hooks.after_step(loop.Count(SecondsSince(start)));
    if (loop.Drained() && loop.next() < options.steps) return stopped;
    result.stopped_early = loop.Stopped();
    if (!loop.Leads() || result.stopped_early) continue;
    absl::Status status = loop.Validate(averages ? average.values().data() : store->parameters());
    if (!status.ok()) return status;
  }
  result.totals = loop.Count(SecondsSince(start));
  if (!averages) {
    average.values().assign(store->parameters(), store->parameters() + model->layout().floats());
  }
  result.average = std::move(average.values());
  return result;
}

namespace {

void HashTensors(const Layout& layout, const float* parameters, XXH64_state_t* state) {
  for (size_t i = 0; i < layout.size(); ++i) {
    XXH64_update(state, parameters + layout.offset(i), layout[i].elements() * sizeof(float));
  }
}

void SortUnique(std::vector<uint64_t>* keys) {
  std::sort(keys->begin(), keys->end());
  keys->erase(std::unique(keys->begin(), keys->end()), keys->end());
}

// By table: every key that a training example has, in order.
absl::StatusOr<std::vector<std::vector<uint64_t>>> AllKeys(Model* model) {
  std::vector<std::vector<uint64_t>> keys(model->tables().size());
  std::vector<size_t> grown(keys.size());  // with so many they are looked at for duplicates
  Batch batch;
  for (uint64_t done = 0; done < model->examples(); done += batch.ids.size()) {
    batch.ids.resize(std::min<uint64_t>(kHashExamples, model->examples() - done));
    std::iota(batch.ids.begin(), batch.ids.end(), done);
    if (absl::Status status = model->Prepare(&batch); !status.ok()) return status;
    for (size_t t = 0; t < keys.size(); ++t) {
      keys[t].insert(keys[t].end(), batch.keys[t].begin(), batch.keys[t].end());
      if (keys[t].size() < grown[t]) continue;
      SortUnique(&keys[t]);
      grown[t] = 2 * keys[t].size() + kHashRows;
    }
  }
  for (std::vector<uint64_t>& of_table : keys) SortUnique(&of_table);
  return keys;
}

}  // namespace

uint64_t HashParameters(const Layout& layout, const float* parameters) {
  XXH64_state_t* state = XXH64_createState();
  XXH64_reset(state, 0);
  HashTensors(layout, parameters, state);
  const uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}

absl::StatusOr<uint64_t> HashModel(Model* model, ParameterStore* store) {
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> state(XXH64_createState(),
                                                                                &XXH64_freeState);
  XXH64_reset(state.get(), 0);
  HashTensors(model->layout(), store->parameters(), state.get());
  if (model->tables().empty()) return XXH64_digest(state.get());
  const absl::StatusOr<std::vector<std::vector<uint64_t>>> all = AllKeys(model);
  if (!all.ok()) return all.status();
  const std::vector<std::vector<uint64_t>>& keys = *all;
  RowStore& rows = *store->rows();
  for (size_t t = 0; t < keys.size(); ++t) {
    for (size_t done = 0; done < keys[t].size();) {
      const auto part = absl::MakeConstSpan(keys[t]).subspan(done, kHashRows);
      rows.Lookup(RowStore::kEvaluationSlot, t, part);
      absl::Status status = rows.WaitLookups(RowStore::kEvaluationSlot);
      if (!status.ok()) return status;
      XXH64_update(state.get(), rows.rows(RowStore::kEvaluationSlot, t),
                   part.size() * model->tables()[t].dim * sizeof(float));
      done += part.size();
    }
  }
  return XXH64_digest(state.get());
}

}  // namespace verbena::worker
