#include "worker/train/trainer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/shared_store.h"
#include "tests/worker/synthetic.h"
#include "worker/models/embedding_mlp.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/logistic_regression.h"
#include "worker/models/text_model.h"
#include "worker/stores/local_store.h"
#include "worker/train/schedule.h"

namespace verbena::worker {
namespace {

TEST_CASE("every epoch visits every example once, whatever the number of workers") {
  for (const uint64_t workers : {1, 2, 3, 4}) {
    std::vector<Schedule> ranks;
    for (uint64_t rank = 0; rank < workers; ++rank) ranks.emplace_back(103, 10, workers, rank, 9);
    REQUIRE(ranks[0].steps_per_epoch() == 11);
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      std::vector<uint64_t> seen;
      for (uint64_t step = epoch * 11; step < (epoch + 1) * 11; ++step) {
        uint64_t batch = 0;
        for (Schedule& rank : ranks) {
          const Schedule::Share share = rank.Step(step);
          seen.insert(seen.end(), share.ids.begin(), share.ids.end());
          batch += share.ids.size();
          CHECK(share.batch == (step % 11 == 10 ? 3 : 10));
        }
        CHECK(batch == (step % 11 == 10 ? 3 : 10));
      }
      std::sort(seen.begin(), seen.end());
      REQUIRE(seen.size() == 103);
      for (uint32_t i = 0; i < 103; ++i) CHECK(seen[i] == i);
    }
  }
}

TEST_CASE("epochs and seeds shuffle differently") {
  Schedule schedule(1000, 1000, 1, 0, 1);
  Schedule other(1000, 1000, 1, 0, 2);
  const auto copy = [](Schedule::Share share) {
    return std::vector<uint64_t>(share.ids.begin(), share.ids.end());
  };
  const auto first = copy(schedule.Step(0));
  CHECK(copy(schedule.Step(1)) != first);
  CHECK(copy(other.Step(0)) != first);
  CHECK(copy(schedule.Step(0)) == first);
}

// The parameters that several ranks arrive at: dense ones, then all rows that `keys` name.
std::vector<float> TrainRanks(const std::function<std::unique_ptr<Model>()>& make,
                              const TrainingSpec& spec, uint64_t workers, uint64_t steps,
                              const std::vector<uint64_t>& keys = {}) {
  const std::unique_ptr<Model> model = make();
  auto store = *LocalStore::Create(model->layout(), spec, model->tables());
  for (const auto& result :
       TrainShared(make, store.get(), {.steps = steps, .batch = 50}, workers)) {
    REQUIRE(result.ok());
    REQUIRE(result->totals.steps == steps);
  }
  REQUIRE(PullAll(store.get()).ok());
  std::vector<float> all(store->parameters(), store->parameters() + store->layout().floats());
  for (size_t t = 0; t < model->tables().size(); ++t) {
    store->rows()->Lookup(0, t, keys);
    const float* rows = store->rows()->rows(0, t);
    all.insert(all.end(), rows, rows + keys.size() * model->tables()[t].dim);
  }
  return all;
}

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(double{a[i]} - b[i]));
    size = std::max(size, std::abs(double{a[i]}));
  }
  return difference / size;
}

TEST_CASE("a batch split among 2, 3 or 4 ranks trains as the single loop does") {
  const auto make = [] {
    return std::make_unique<LogisticRegression>(SyntheticExamples(1010, 30, 4), std::nullopt, 1e-4);
  };
  for (const char* optimizer : {"sgd", "momentum", "adam"}) {
    const TrainingSpec spec = {.optimizer = optimizer, .rate = 0.02};
    auto model = make();
    auto store = *LocalStore::Create(model->layout(), spec);
    const auto single = Train(model.get(), store.get(), {.steps = 200, .batch = 50});
    REQUIRE(single.ok());
    CHECK(single->totals.steps == 200);
    const std::vector<float> alone(store->parameters(),
                                   store->parameters() + store->layout().floats());
    for (const uint64_t workers : {2, 3, 4}) {
      INFO(optimizer << " with " << workers << " ranks");
      const auto split = TrainRanks(make, spec, workers, 200);
      CHECK(RelativeDifference(alone, split) < 1e-5);
    }
  }
}

TEST_CASE("a run that resumes ends as one that was not interrupted") {
  const auto check = [](const std::function<std::unique_ptr<Model>()>& make) {
    const auto run = [&](LocalStore* store, uint64_t steps, bool resume) {
      const std::unique_ptr<Model> model = make();
      return Train(model.get(), store,
                   {.steps = steps, .batch = 50, .count_steps = true, .resume = resume});
    };
    const auto layout = StoreLayout(*make(), {.count_steps = true});
    const auto whole = *LocalStore::Create(layout, {.optimizer = "adam"});
    REQUIRE(run(whole.get(), 200, false).ok());
    const auto parts = *LocalStore::Create(layout, {.optimizer = "adam"});
    REQUIRE(run(parts.get(), 70, false).ok());
    for (const uint64_t steps : {71, 200}) {
      const auto resumed = run(parts.get(), steps, true);
      REQUIRE(resumed.ok());
      CHECK(resumed->totals.steps == steps);
      CHECK(resumed->totals.samples <= 50 * (steps == 71 ? 1 : 129));
    }
    const auto parameters = [&](LocalStore* store) {
      // Steps are counted from the beginning of a run.
      return std::vector<float>(store->parameters(),
                                store->parameters() + make()->layout().floats());
    };
    // The text model's sums depend on where in memory its parameters lie.
    CHECK(RelativeDifference(parameters(whole.get()), parameters(parts.get())) < 1e-5);
    const absl::Status over = run(parts.get(), 200, true).status();
    CHECK(over.code() == absl::StatusCode::kFailedPrecondition);
    CHECK_THAT(std::string(over.message()), Catch::Matchers::Contains("200 steps behind them"));
  };
  check([] {
    return std::make_unique<LogisticRegression>(SyntheticExamples(1000, 30, 4), std::nullopt, 1e-4);
  });
  check([] {  // other units are left out in each step
    const TextModelOptions options = {.shape = {.context = 2, .embedding = 4, .hidden = 8},
                                      .dropout = 0.3};
    return std::make_unique<TextModel>(TextData{SyntheticText(500, 6), ""}, options);
  });
}

TEST_CASE("rows train the same however a batch is split") {
  std::vector<uint64_t> keys(30);
  std::iota(keys.begin(), keys.end(), uint64_t{0});
  const auto data = [] { return SyntheticExamples(1010, 30, 4); };
  const auto machine = [&] {
    return std::make_unique<FactorizationMachine>(data(), std::nullopt, 3, 1e-3);
  };
  const auto network = [&] {
    return std::make_unique<EmbeddingMlp>(data(), std::nullopt, 4, 6, 1e-3);
  };
  const TrainingSpec spec = {.optimizer = "momentum", .rate = 0.02};
  for (const auto& make : {std::function<std::unique_ptr<Model>()>(machine),
                           std::function<std::unique_ptr<Model>()>(network)}) {
    const std::vector<float> one = TrainRanks(make, spec, 1, 100, keys);
    for (const uint64_t workers : {2, 3}) {
      CHECK(RelativeDifference(one, TrainRanks(make, spec, workers, 100, keys)) < 1e-4);
    }
  }
}

TEST_CASE("dropout does not depend on how a text batch is split") {
  const auto make = [] {
    const TextModelOptions options = {
        .shape = {.context = 3, .embedding = 4, .hidden = 8}, .dropout = 0.3, .l2 = 1e-5};
    return std::make_unique<TextModel>(TextData{SyntheticText(500, 6), ""}, options);
  };
  const TrainingSpec spec = {.optimizer = "sgd", .rate = 0.1};
  const auto one = TrainRanks(make, spec, 1, 20);
  CHECK(RelativeDifference(one, TrainRanks(make, spec, 2, 20)) < 1e-5);
  CHECK(RelativeDifference(one, TrainRanks(make, spec, 4, 20)) < 1e-5);
}

TEST_CASE("the same run gives the same bits, another seed others") {
  const auto hash = [](uint64_t seed) {
    LogisticRegression model(SyntheticExamples(500, 20, 4), std::nullopt, 1e-4);
    auto store = *LocalStore::Create(model.layout(), {.seed = seed});
    REQUIRE(Train(&model, store.get(), {.steps = 50, .batch = 40, .seed = seed}).ok());
    return HashParameters(model.layout(), store->parameters());
  };
  CHECK(hash(1) == hash(1));
  CHECK(hash(1) != hash(2));
}

TEST_CASE("text training learns more than counts of bytes contain") {
  const std::string text = SyntheticText(6000, 8);
  TextModel model({text.substr(0, 5400), text.substr(5400)},
                  {.shape = {.context = 5, .embedding = 8, .hidden = 32}, .dropout = 0, .l2 = 0});
  auto store = *LocalStore::Create(model.layout(), {.rate = 0.02});
  const auto result = Train(&model, store.get(), {.steps = 150, .batch = 256});
  REQUIRE(result.ok());
  const auto quality = model.Evaluate({.parameters = result->average.data()});
  REQUIRE(quality.ok());
  // Six equal words: a first letter costs log2 6 bits or less, the others nearly nothing.
  CHECK(*quality->bits_per_byte < 0.75);
}

TEST_CASE("a stop ends training between steps") {
  LogisticRegression model(SyntheticExamples(100, 5, 4), std::nullopt, 0);
  auto store = *LocalStore::Create(model.layout(), {});
  std::atomic<bool> stop = false;
  uint64_t last = 0;
  TrainHooks hooks;
  hooks.stop = &stop;
  hooks.after_step = [&](const Totals& totals) {
    last = totals.steps;
    if (totals.steps == 3) stop = true;
  };
  const auto result = Train(&model, store.get(), {.steps = 100, .batch = 10}, hooks);
  CHECK(absl::IsCancelled(result.status()));
  CHECK(last == 3);
}

TEST_CASE("the local store refuses unknown optimizers and bad rates") {
  const Layout layout({{"w", {1}}});
  CHECK(LocalStore::Create(layout, {.optimizer = "lion"}).status().message() ==
        "the local store has no optimizer \"lion\"; it has: sgd, momentum, adam");
  CHECK(LocalStore::Create(layout, {.rate = -0.1}).status().message() ==
        "rate -0.1 is not allowed; it must be positive and finite");
}

}  // namespace
}  // namespace verbena::worker
