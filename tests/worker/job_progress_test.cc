// Steps of a job and its early stop, as numbers in counter tensors that all workers add to.
#include "worker/train/job_progress.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/synthetic.h"
#include "tests/worker/temporary_file.h"
#include "worker/data/data_identity.h"
#include "worker/models/logistic_regression.h"
#include "worker/stores/local_store.h"
#include "worker/train/trainer.h"

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
      progress.Push({});
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
      worker.Step(5);
    }
    CHECK(Counting(&tables, 3, 0, 3, together).begun == (together ? 125 : 115));
    // A run that begins anew on the tables is counted on top.
    for (uint64_t rank = 0; rank < 3; ++rank) Counting(&tables, 4, rank, 3, together).Step(10);
    CHECK(Counting(&tables, 5, 2, 3, together).begun == (together ? 135 : 125));
  }
}

TEST_CASE("a job goes on with any other number of workers, at the step where it was") {
  for (const bool together : {false, true}) {
    Tables tables = StepsOfWorkers(1);
    uint64_t expected = 0, run = 1;
    for (const uint64_t workers : {3, 7, 1, 2, 6, 5, 4, 64, 1, 33}) {
      INFO(workers << " workers, " << (together ? "together" : "apart"));
      ++run;
      // In this order a worker of a lower rank begins when others have made all their steps.
      for (uint64_t i = 0; i < workers; ++i) {
        Counting worker(&tables, run, workers - 1 - i, workers, together);
        CHECK(worker.begun == expected);
        worker.Step(20);
      }
      expected += 20;
    }
    // One that made no step counts in the mean, and its row of an older run does not.
    ++run;
    for (uint64_t rank = 0; rank < 3; ++rank) {
      Counting(&tables, run, rank, 4, together).Step(40);
    }
    CHECK(Counting(&tables, run + 1, 0, 2, together).begun == expected + (together ? 40 : 30));
  }
}

TEST_CASE("a worker that is started again in its run goes on counting there") {
  Tables tables = StepsOfWorkers(2);
  Counting(&tables, 1, 0, 2, false).Step(10);
  Counting(&tables, 1, 1, 2, false).Step(4);
  Counting again(&tables, 1, 1, 2, false);
  CHECK(again.begun == 0);
  again.Step(6);
  CHECK(Counting(&tables, 2, 0, 2, false).begun == 10);
}

TEST_CASE("counts are exact up to 2^63") {
  for (const int bits : {20, 21, 24, 25, 42, 53, 62, 63}) {
    INFO("2^" << bits);
    Tables tables = StepsOfWorkers(2);
    // The digits of the steps that a run of one worker has made: 21 bits each.
    const uint64_t from = (uint64_t{1} << bits) - 3;
    Counting(&tables, 1, 0, 1, false).Step(1);
    for (int digit = 0; digit < 3; ++digit) {
      tables.values[static_cast<size_t>(digit)] =
          static_cast<float>(from >> (21 * digit) & ((1 << 21) - 1));
    }
    const uint64_t made = bits == 63 ? 2 : 5;
    for (uint64_t rank = 0; rank < 2; ++rank) {
      Counting worker(&tables, 2, rank, 2, false);
      CHECK(worker.begun == from);
      worker.Step(made);
    }
    CHECK(Counting(&tables, 3, 1, 2, false).begun == from + made);
    CHECK(Counting(&tables, 3, 1, 5, true).begun == from + made);
  }
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
      // The evaluated parameters are the job's.
      const float* parameters = store.parameters();
      if (rank == 1) CHECK(std::equal(result->average.begin(), result->average.end(), parameters));
    }
  }
}

TEST_CASE("workers that go apart resume where they are on average, as many as there are") {
  for (uint64_t workers = 1; workers <= 7; ++workers) {
    TrainOptions options = {
        .workers = workers, .steps = 30, .batch = 20, .count_steps = true, .separate_steps = true};
    const auto model = SmallModel();
    Tables tables(StoreLayout(*model, options));
    for (const uint64_t steps : {30, 50, 55}) {
      options.steps = steps;
      options.resume = steps != 30;
      options.workers = steps == 55 ? 8 - workers : workers;
      for (options.rank = 0; options.rank < options.workers; ++options.rank) {
        AsyncStore store(&tables, steps);
        uint64_t made = 0;
        TrainHooks hooks;
        hooks.after_step = [&](const Totals&) { ++made; };
        REQUIRE(Train(SmallModel().get(), &store, options, hooks).ok());
        CHECK(made == (steps == 30 ? 30 : steps == 50 ? 20 : 5));
      }
    }
    options.rank = 0;
    AsyncStore store(&tables, 99);
    const absl::Status over = Train(SmallModel().get(), &store, options).status();
    CHECK_THAT(std::string(over.message()), Catch::Matchers::Contains("55 steps behind them"));
  }
}

TEST_CASE("a resume with another batch or seed is refused, and other data warned of, by name") {
  using Catch::Matchers::Contains;
  TrainOptions options = {.steps = 10,
                          .batch = 20,
                          .seed = (uint64_t{1} << 63) + 5,
                          .count_steps = true,
                          .data_bytes = 1000,
                          .data_hash = 77};
  const auto model = SmallModel();
  Tables tables(StoreLayout(*model, options));
  std::string warning;
  TrainHooks hooks;
  hooks.warn = [&](const std::string& text) { warning = text; };
  uint64_t run = 0;
  const auto train = [&](const TrainOptions& given) {
    warning.clear();
    AsyncStore store(&tables, ++run);
    return std::string(Train(SmallModel().get(), &store, given, hooks).status().message());
  };
  REQUIRE(train(options).empty());
  options.steps = 20;
  options.resume = true;
  TrainOptions other = options;
  other.batch = 25;
  CHECK_THAT(train(other), Contains("--batch is 25, and the run that is resumed had 20"));
  other = options;
  other.seed = 6;
  CHECK_THAT(train(other),
             Contains("--seed is 6, and the run that is resumed had 9223372036854775813"));
  CHECK(train(options).empty());
  CHECK(warning.empty());

  // The last run had the same; each of these is the next one's.
  options.steps = 30;
  options.data_bytes = 1001;
  CHECK(train(options).empty());
  CHECK_THAT(warning, Contains("--data has 1001 bytes, and the run that is resumed had 1000"));
  options.steps = 40;
  options.data_hash = 78;
  CHECK(train(options).empty());
  CHECK_THAT(warning, Contains("other contents") && Contains("000000000000004e"));
  // The contents of a pipe are not compared.
  options.steps = 50;
  options.data_bytes = options.data_hash = 0;
  CHECK(train(options).empty());
  CHECK(warning.empty());
  // A run that begins anew may have other options; the next resume compares with these.
  options = {.steps = 5, .batch = 10, .seed = 3, .count_steps = true};
  CHECK(train(options).empty());
  options.steps = 60;
  options.resume = true;
  CHECK(train(options).empty());
}

TEST_CASE("the identity of data is that of its bytes, wherever it lies") {
  const TemporaryFile one("1 1:1\n0 2:1\n"), same("1 1:1\n0 2:1\n"), other("1 1:1\n0 3:1\n");
  const DataIdentity identity = IdentityOf({one.path()});
  CHECK(identity.bytes == 12);
  CHECK(identity.hash == IdentityOf({same.path()}).hash);
  CHECK(identity.hash != IdentityOf({other.path()}).hash);
  CHECK(identity.hash >> 63 == 0);
  CHECK(IdentityOf({one.path(), other.path()}).hash != IdentityOf({other.path(), one.path()}).hash);
  CHECK(IdentityOf({one.path(), "/dev/null"}).bytes == 0);
  CHECK(IdentityOf({"/nowhere"}).bytes == 0);
  // The ends of a large one.
  std::string large(300'000, 'a');
  const TemporaryFile before(large);
  large.back() = 'b';
  const TemporaryFile after(large);
  CHECK(IdentityOf({before.path()}).bytes == 300'000);
  CHECK(IdentityOf({before.path()}).hash != IdentityOf({after.path()}).hash);
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

// A worker of an elastic job of up to four, which begins with two.
struct Seat {
  Seat(Tables* tables, uint64_t run, uint64_t rank, bool resume = false)
      : store(tables, run),
        progress(&store, {.workers = 4,
                          .rank = rank,
                          .run = run,
                          .begins_with = 2,
                          .resume = resume,
                          .steps_tensor = 0}) {
    store.Pull(0);
    progress.Begin();
  }
  std::vector<uint64_t> members() {
    store.Pull(0);
    return progress.members();
  }
  AsyncStore store;
  JobProgress progress;
};

// A step of these workers, of which one may leave after it.
void StepOf(const std::vector<Seat*>& workers, const Seat* leaves = nullptr) {
  for (Seat* worker : workers) worker->store.Pull(0);
  for (Seat* worker : workers) worker->progress.Push({.leaves = worker == leaves});
  for (Seat* worker : workers) worker->store.Push(0);
}

using Ranks = std::vector<uint64_t>;

TEST_CASE("elastic: a step is divided among those that had a part in the last one and stayed") {
  Tables tables = StepsOfWorkers(4);
  Seat a(&tables, 7, 0), b(&tables, 7, 1);
  CHECK(a.members() == Ranks{0, 1});
  CHECK_FALSE(b.progress.joined());
  StepOf({&a, &b});
  Seat c(&tables, 7, 2);
  CHECK(c.progress.joined());
  CHECK(c.members() == Ranks{0, 1});
  CHECK(c.progress.steps() == 1);
  StepOf({&a, &b, &c});
  for (Seat* worker : {&a, &b, &c}) CHECK(worker->members() == Ranks{0, 1, 2});
  StepOf({&a, &b, &c}, &b);
  CHECK(a.members() == Ranks{0, 2});
  StepOf({&a});  // c was killed
  CHECK(a.members() == Ranks{0});
  Seat again(&tables, 7, 1);  // the rank of b
  CHECK(again.members() == Ranks{0});
  CHECK(again.progress.steps() == 4);
  StepOf({&a, &again}, &a);
  CHECK(again.members() == Ranks{1});
  CHECK(again.progress.steps() == 5);
}

TEST_CASE("elastic: where all have left, those that join make a step without a batch") {
  Tables tables = StepsOfWorkers(4);
  Seat a(&tables, 7, 0);
  StepOf({&a}, &a);
  Seat c(&tables, 7, 2), d(&tables, 7, 3);
  CHECK(c.members().empty());
  CHECK(c.progress.steps() == 1);
  StepOf({&c, &d});
  CHECK(c.members() == Ranks{2, 3});
  CHECK(d.progress.steps() == 1);
  StepOf({&c, &d});
  CHECK(d.members() == Ranks{2, 3});
  CHECK(d.progress.steps() == 2);
}

TEST_CASE(
    "elastic: a run that resumes goes on after the steps of all runs, and so do joining workers") {
  Tables tables = StepsOfWorkers(4);
  for (const uint64_t run : {7, 8, 9}) {
    const bool resume = run != 8;
    Seat a(&tables, run, 0, resume), b(&tables, run, 1, resume);
    CHECK(a.progress.steps() == (run == 9 ? 6 : 0));
    CHECK(a.members() == Ranks{0, 1});
    for (int i = 0; i < 3; ++i) StepOf({&a, &b});
    Seat c(&tables, run, 3, !resume);  // that of the run counts
    CHECK(c.progress.steps() == (run == 9 ? 9 : 3));
  }
}

TEST_CASE("elastic: a worker that joins with other steps to train is refused, with both numbers") {
  Tables tables = StepsOfWorkers(4);
  const auto progress_of = [&](AsyncStore* store, uint64_t rank, uint64_t steps, bool resume) {
    const ResumedSettings settings = {.batch = 1 << 24,
                                      .seed = UINT64_MAX - 2,
                                      .data_bytes = uint64_t{1} << 58,
                                      .data_hash = (uint64_t{1} << 63) - 3,
                                      .steps = steps};
    auto progress = std::make_unique<JobProgress>(store, JobProgressOptions{.workers = 4,
                                                                            .rank = rank,
                                                                            .run = store->run(),
                                                                            .begins_with = 1,
                                                                            .resume = resume,
                                                                            .settings = settings,
                                                                            .steps_tensor = 0});
    store->Pull(0);
    progress->Begin();
    return progress;
  };
  constexpr uint64_t kSteps = 1'000'000'000'000;
  AsyncStore first(&tables, 7), other(&tables, 7), same(&tables, 7), next(&tables, 8);
  const auto began = progress_of(&first, 0, kSteps, false);
  CHECK(began->CheckResumed().ok());
  began->Push({.settles = true});
  first.Push(0);
  const auto joined = progress_of(&same, 1, kSteps, false);
  CHECK(joined->CheckResumed().ok());
  REQUIRE(joined->resumed());
  CHECK(joined->resumed()->batch == 1 << 24);
  CHECK(joined->resumed()->seed == UINT64_MAX - 2);
  CHECK(joined->resumed()->data_bytes == uint64_t{1} << 58);
  CHECK(joined->DataDifference().empty());
  const absl::Status refused = progress_of(&other, 2, 5, false)->CheckResumed();
  CHECK_THAT(std::string(refused.message()),
             Catch::Matchers::Contains("--steps (or the steps of --epochs) is 5, and the run that "
                                       "this worker joins has 1000000000000"));
  // The next run may have others.
  CHECK(progress_of(&next, 0, 5, true)->CheckResumed().ok());
}

TEST_CASE("a step that some tensors lack is counted, once, and the tensors are named") {
  const Layout layout({{"weights", {4}}, {"bias", {1}}, JobProgress::StepsTensor(1)});
  Tables tables(layout);
  const auto begin = [&](uint64_t run, std::vector<AppliedSteps> applied, std::string* lacking) {
    AsyncStore store(&tables, run);
    JobProgress progress(&store, {.run = run, .steps_tensor = 2});
    store.Pull(2);
    progress.Begin();
    *lacking = progress.TakeUnequal(applied);
    const uint64_t at_start = progress.at_start();
    progress.Push({});
    store.Push(2);
    return at_start;
  };
  std::string lacking;
  // The first parameters were assigned, which counts as a step.
  CHECK(begin(1, {{1, 1}, {1, 1}, {0, 0}}, &lacking) == 0);
  CHECK(lacking.empty());
  CHECK(begin(2, {{2, 2}, {2, 2}, {1, 1}}, &lacking) == 1);
  CHECK(lacking.empty());
  SECTION("the counts lack it") {
    CHECK(begin(3, {{4, 4}, {3, 4}, {2, 2}}, &lacking) == 3);
    CHECK(lacking == "the run before ended inside step 3, which tables bias, steps lack");
    CHECK(begin(4, {{5, 5}, {4, 5}, {3, 3}}, &lacking) == 4);
    CHECK(lacking.empty());
    CHECK(begin(5, {{7, 7}, {6, 7}, {4, 4}}, &lacking) == 6);
    CHECK(lacking == "the run before ended inside step 6, which tables bias, steps lack");
  }
  SECTION("a tensor lacks it") {
    CHECK(begin(3, {{3, 3}, {2, 2}, {2, 2}}, &lacking) == 2);
    CHECK(lacking == "the run before ended inside step 2, which table bias lacks");
    CHECK(begin(4, {{4, 4}, {3, 3}, {3, 3}}, &lacking) == 3);
    CHECK(lacking.empty());
    CHECK(begin(5, {{4, 4}, {3, 3}, {4, 4}}, &lacking) == 4);
    CHECK(lacking == "the run before ended inside step 4, which tables weights, bias lack");
  }
  SECTION("a part that was reset is not one that lacks a step") {
    CHECK(begin(3, {{0, 100}, {100, 100}, {99, 99}}, &lacking) == 2);
    CHECK(lacking.empty());
  }
}

}  // namespace
}  // namespace job_progress_test
}  // namespace verbena::worker
