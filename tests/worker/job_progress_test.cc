// Steps of a job and its early stop, as numbers in counter tensors that all workers add to.
#include "worker/job_progress.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/synthetic.h"
#include "worker/local_store.h"
#include "worker/logistic_regression.h"
#include "worker/trainer.h"

namespace verbena::worker {
namespace job_progress_test {
namespace {

// Tables that workers push to one after another: async.
struct Tables {
  explicit Tables(const Layout& of) : layout(of), values(of.floats()) {}
  const Layout layout;
  std::vector<float> values;
};

class AsyncStore : public ParameterStore {
 public:
  AsyncStore(Tables* tables, uint64_t run)
      : tables_(*tables),
        run_(run),
        rows_(*LocalStore::Create(tables->layout, {})),
        gradient_(tables->layout.floats()),
        parameters_(tables->layout.floats()) {}
  const Layout& layout() const override { return tables_.layout; }
  uint64_t run() const override { return run_; }
  float* gradient() override { return gradient_.data(); }
  float* parameters() override { return parameters_.data(); }
  void Push(size_t tensor) override {
    ++pushes;
    const float rate = layout()[tensor].counter ? 1 : 0.1f;
    for (uint64_t i = Begin(tensor); i < End(tensor); ++i) {
      tables_.values[i] -= rate * gradient_[i];
    }
  }
  void EndStep() override {}
  void Pull(size_t tensor) override {
    for (uint64_t i = Begin(tensor); i < End(tensor); ++i) parameters_[i] = tables_.values[i];
  }
  absl::Status Wait() override { return absl::OkStatus(); }
  RowStore* rows() override { return rows_->rows(); }
  StoreStatistics statistics() const override { return {}; }
  int pushes = 0;

 private:
  uint64_t Begin(size_t tensor) const { return layout().offset(tensor); }
  uint64_t End(size_t tensor) const { return Begin(tensor) + layout()[tensor].elements(); }

  Tables& tables_;
  const uint64_t run_;
  const std::unique_ptr<LocalStore> rows_;  // a model without embedding tables has none there
  std::vector<float> gradient_, parameters_;
};

// A worker that makes steps of nothing.
struct Counting {
  Counting(Tables* tables, uint64_t run, uint64_t rank, uint64_t workers, bool together)
      : store(tables, run),
        progress(&store, {.workers = workers,
                          .rank = rank,
                          .run = run,
                          .together = together,
                          .steps_tensor = 0}) {
    store.Pull(0);
    begun = progress.Begin();
  }
  void Step(uint64_t times = 1) {
    for (uint64_t i = 0; i < times; ++i) {
      progress.Push(false);
      store.Push(0);
      store.Pull(0);
    }
  }
  AsyncStore store;
  JobProgress progress;
  uint64_t begun = 0;
};

Tables StepsOfWorkers(uint64_t workers) {
  return Tables(Layout({JobProgress::StepsTensor(workers)}));
}

TEST_CASE("workers begin at the same step, however much others have pushed since") {
  for (uint64_t workers = 1; workers <= 7; ++workers) {
    INFO(workers << " workers");
    Tables tables = StepsOfWorkers(workers);
    uint64_t expected = 0;
    for (uint64_t run = 10; run < 14; ++run) {
      std::vector<std::unique_ptr<Counting>> all;
      for (uint64_t rank = 0; rank < workers; ++rank) {
        all.push_back(std::make_unique<Counting>(&tables, run, rank, workers, false));
        CHECK(all.back()->begun == expected);
        all.back()->progress.CountFrom(expected);
        all.back()->Step(rank == 0 ? 300 : 7);
      }
      for (uint64_t rank = 1; rank < workers; ++rank) all[rank]->Step(293);
      expected += 300;
    }
  }
}

TEST_CASE("apart, workers go on at the mean of their steps; together, at the most") {
  for (const bool together : {false, true}) {
    Tables tables = StepsOfWorkers(3);
    const uint64_t steps[] = {100, 110, 120};
    for (uint64_t rank = 0; rank < 3; ++rank) {
      Counting(&tables, 1, rank, 3, together).Step(steps[rank]);
    }
    for (uint64_t rank = 0; rank < 3; ++rank) {
      Counting worker(&tables, 2, rank, 3, together);
      CHECK(worker.begun == (together ? 120 : 110));
      worker.progress.CountFrom(worker.begun);
      worker.Step(5);
    }
    CHECK(Counting(&tables, 3, 0, 3, together).begun == (together ? 125 : 115));
    // A run that begins anew on the tables is counted on top.
    for (uint64_t rank = 0; rank < 3; ++rank) Counting(&tables, 4, rank, 3, together).Step(10);
    CHECK(Counting(&tables, 5, 2, 3, together).begun == (together ? 135 : 125));
  }
}

TEST_CASE("counts are exact up to 2^63") {
  for (const int bits : {20, 21, 24, 25, 42, 53, 62}) {
    INFO("2^" << bits);
    Tables tables = StepsOfWorkers(2);
    const uint64_t from = (uint64_t{1} << bits) - 3;
    for (uint64_t rank = 0; rank < 2; ++rank) {
      Counting worker(&tables, 1, rank, 2, false);
      worker.progress.CountFrom(from);
      worker.Step(5);
    }
    CHECK(Counting(&tables, 2, 1, 2, false).begun == from + 5);
  }
  Tables tables = StepsOfWorkers(1);
  Counting worker(&tables, 1, 0, 1, true);
  worker.progress.CountFrom((uint64_t{1} << 63) - 3);
  worker.Step(2);
  CHECK(Counting(&tables, 2, 0, 1, true).begun == (uint64_t{1} << 63) - 1);
}

std::unique_ptr<Model> SmallModel() {
  return std::make_unique<LogisticRegression>(SyntheticExamples(100, 5, 4),
                                              SyntheticExamples(40, 5, 4), 0);
}

TEST_CASE("an early stop is seen by a worker that is launched later, and not by the next run") {
  TrainOptions options = {.workers = 2,
                          .steps = 1000,
                          .batch = 10,
                          .validate_every = 1,
                          .validate_examples = 1,  // right or wrong: seldom better
                          .early_stop = 3,
                          .count_steps = true,
                          .separate_steps = true};
  const auto model = SmallModel();
  Tables tables(StoreLayout(*model, options));
  for (const uint64_t run : {uint64_t{5}, uint64_t{6}, uint64_t{1} << 62}) {
    for (const uint64_t rank : {0, 1}) {
      options.rank = rank;
      AsyncStore store(&tables, run);
      const auto result = Train(SmallModel().get(), &store, options);
      REQUIRE(result.ok());
      CHECK(result->stopped_early);
      CHECK((rank == 0 ? result->totals.steps > 3 : result->totals.steps == 0));
      // What is evaluated is what the job has.
      const float* parameters = store.parameters();
      if (rank == 1) CHECK(std::equal(result->average.begin(), result->average.end(), parameters));
    }
  }
}

TEST_CASE("workers that go apart resume where they are on average") {
  for (uint64_t workers = 1; workers <= 7; ++workers) {
    TrainOptions options = {
        .workers = workers, .steps = 30, .batch = 20, .count_steps = true, .separate_steps = true};
    const auto model = SmallModel();
    Tables tables(StoreLayout(*model, options));
    for (const uint64_t steps : {30, 50}) {
      options.steps = steps;
      options.resume = steps == 50;
      for (options.rank = 0; options.rank < workers; ++options.rank) {
        AsyncStore store(&tables, steps);
        uint64_t made = 0;
        TrainHooks hooks;
        hooks.after_step = [&](const Totals&) { ++made; };
        REQUIRE(Train(SmallModel().get(), &store, options, hooks).ok());
        CHECK(made == (steps == 30 ? 30 : 20));
      }
    }
    options.rank = 0;
    AsyncStore store(&tables, 99);
    const absl::Status over = Train(SmallModel().get(), &store, options).status();
    CHECK_THAT(std::string(over.message()), Catch::Matchers::Contains("50 steps behind them"));
  }
}

TEST_CASE("a run whose loss is no number ends before it is pushed") {
  const auto model = SmallModel();
  const TrainOptions options = {.steps = 10, .batch = 10};
  Tables tables(StoreLayout(*model, options));
  std::fill(tables.values.begin(), tables.values.end(), std::nanf(""));
  AsyncStore store(&tables, 1);
  const absl::Status diverged = Train(model.get(), &store, options).status();
  CHECK(absl::IsFailedPrecondition(diverged));
  CHECK_THAT(
      std::string(diverged.message()),
      Catch::Matchers::Contains("training has diverged: the loss of step 0 is nan; a lower"));
  CHECK(store.pushes == 0);
}

}  // namespace
}  // namespace job_progress_test
}  // namespace verbena::worker
