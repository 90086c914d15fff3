#include "worker/trainer.h"

#include <xxhash.h>

#include <chrono>
#include <utility>

#include "worker/schedule.h"

namespace verbena::worker {
namespace {

using SteadyClock = std::chrono::steady_clock;

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
  explicit Average(size_t floats) : values_(floats) {}

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

class Loop {
 public:
  Loop(Model* model, ParameterStore* store, const TrainOptions& options, const TrainHooks& hooks)
      : model_(*model),
        store_(*store),
        options_(options),
        hooks_(hooks),
        schedule_(model->examples(), options.batch, options.workers, options.rank, options.seed) {}

  absl::Status Step(uint64_t step) {
    const Schedule::Share share = schedule_.Step(step);
    // The tables take the mean over the workers, so each scales by how many there are: the mean is
    // then the batch's, however unevenly it was split.
    const double scale = static_cast<double>(options_.workers) / static_cast<double>(share.batch);
    const double loss = model_.Gradient(share.ids, scale, store_.parameters(), store_.gradient());
    const size_t tensors = store_.layout().size();
    for (size_t i = 0; i < tensors; ++i) {
      store_.Push(i);
      if (i == 0 && hooks_.mid_step) hooks_.mid_step(step);
    }
    store_.EndStep();
    for (size_t i = 0; i < tensors; ++i) store_.Pull(i);
    if (absl::Status status = store_.Wait(); !status.ok()) return status;
    recent_.Add(step, loss, share.ids.size());
    totals_.steps = step + 1;
    totals_.samples += share.ids.size();
    return absl::OkStatus();
  }

  const Totals& Count(double seconds) {
    const StoreStatistics statistics = store_.statistics();
    totals_.seconds = seconds;
    totals_.loss = recent_.mean();
    totals_.bytes_pushed = statistics.bytes_pushed;
    totals_.bytes_pulled = statistics.bytes_pulled;
    return totals_;
  }

 private:
  Model& model_;
  ParameterStore& store_;
  const TrainOptions& options_;
  const TrainHooks& hooks_;
  Schedule schedule_;
  RecentLoss recent_;
  Totals totals_;
};

}  // namespace

absl::Status PullAll(ParameterStore* store) {
  for (size_t i = 0; i < store->layout().size(); ++i) store->Pull(i);
  return store->Wait();
}

absl::StatusOr<TrainResult> Train(Model* model, ParameterStore* store, const TrainOptions& options,
                                  const TrainHooks& hooks) {
  if (model->examples() == 0 || options.batch == 0 || options.workers == 0 ||
      options.rank >= options.workers) {
    return absl::InvalidArgumentError(
        "training needs examples, a batch and workers above zero, and a rank below workers");
  }
  Loop loop(model, store, options, hooks);
  TrainResult result;
  Average average(store->layout().floats());
  if (absl::Status status = PullAll(store); !status.ok()) return status;
  const auto start = SteadyClock::now();
  for (uint64_t step = 0; step < options.steps; ++step) {
    if (hooks.stop != nullptr && hooks.stop->load(std::memory_order_relaxed)) {
      return absl::CancelledError("stopped by a signal");
    }
    if (absl::Status status = loop.Step(step); !status.ok()) return status;
    average.Add(step, store->parameters());
    if (hooks.after_step) hooks.after_step(loop.Count(SecondsSince(start)));
  }
  result.totals = loop.Count(SecondsSince(start));
  result.average = std::move(average.values());
  return result;
}

uint64_t HashParameters(const Layout& layout, const float* parameters) {
  XXH64_state_t* state = XXH64_createState();
  XXH64_reset(state, 0);
  for (size_t i = 0; i < layout.size(); ++i) {
    XXH64_update(state, parameters + layout.offset(i), layout[i].elements() * sizeof(float));
  }
  const uint64_t hash = XXH64_digest(state);
  XXH64_freeState(state);
  return hash;
}

}  // namespace verbena::worker
