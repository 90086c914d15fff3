// On click logs whose probabilities are known, the models come as close to the best AUC as they
// can, with the defaults of verbena-train.
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <optional>
#include <string>

#include "tests/worker/criteo_generator.h"
#include "tests/worker/temporary_file.h"
#include "worker/models/load_model.h"
#include "worker/stores/local_store.h"
#include "worker/train/metrics.h"
#include "worker/train/options.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

constexpr uint64_t kTrainRows = 150000;
constexpr uint64_t kTestRows = 30000;

TEST_CASE("the Bayes AUC of probabilities worked by hand") {
  // Pairs (i, j) with the chance that i is positive and j negative: (.8, .2): .64 won;
  // (.2, .8): .04 lost.
  CHECK(BayesAuc({0.8f, 0.2f}) == Approx(0.64 / 0.68));
  CHECK(BayesAuc({0.3f, 0.3f, 0.3f}) == Approx(0.5));
  CHECK(BayesAuc({1, 0, 1, 0}) == Approx(1));
}

TEST_CASE("rows depend on seed and number alone, and labels follow the probabilities") {
  const CriteoGenerator generator(4);
  const CriteoRows all = generator.Make(0, 20000);
  const CriteoRows tail = generator.Make(19000, 1000);
  CHECK(all.text.substr(all.text.size() - tail.text.size()) == tail.text);
  CHECK(CriteoGenerator(5).Make(0, 10).text != generator.Make(0, 10).text);
  const auto mean = [](const std::vector<float>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  // Four standard errors.
  CHECK(std::abs(mean(all.labels) - mean(all.probabilities)) < 4 * 0.5 / std::sqrt(20000));
  const auto drawn = AreaUnderCurve(all.probabilities, all.labels);
  CHECK(*drawn == Approx(BayesAuc(all.probabilities)).margin(0.015));
}

double TrainedAuc(const std::string& model, const std::string& consistency,
                  const std::string& train, const std::string& test) {
  const char* argv[] = {"verbena-train", "--local",     "--format",      "criteo",
                        "--model",       model.c_str(), "--data",        train.c_str(),
                        "--test",        test.c_str(),  "--consistency", consistency.c_str()};
  const Parsed parsed = ParseOptions(std::size(argv), argv);
  REQUIRE(parsed.options);
  const auto loaded = LoadModel(*parsed.options);
  REQUIRE(loaded.ok());
  Model* trained = loaded->get();
  const uint64_t steps = StepsOf(*parsed.options, trained->examples());
  auto store = *LocalStore::Create(trained->layout(), TrainingSpecOf(*parsed.options, steps),
                                   trained->tables());
  const auto result =
      Train(trained, store.get(),
            {.steps = steps, .batch = BatchOf(*parsed.options), .prefetch = consistency != "sync"});
  REQUIRE(result.ok());
  const auto quality = EvaluateWith(trained, store->rows(), {.parameters = result->average.data()});
  REQUIRE(quality.ok());
  REQUIRE(quality->examples == kTestRows);
  return *quality->auc;
}

TEST_CASE("models with factors or a network come within 0.01 of the Bayes AUC") {
  const CriteoGenerator generator(1);
  const TemporaryFile train(generator.Make(0, kTrainRows).text);
  const CriteoRows held = generator.Make(kTrainRows, kTestRows);
  const TemporaryFile test(held.text);
  // The AUC of the true probabilities on the drawn labels: without the luck of the draw.
  const double best = *AreaUnderCurve(held.probabilities, held.labels);
  CHECK(best == Approx(BayesAuc(held.probabilities)).margin(0.01));
  for (const char* model : {"fm", "mlp"}) {
    const double auc = TrainedAuc(model, "sync", train.path(), test.path());
    INFO(model << " " << auc << ", of the true probabilities " << best);
    CHECK(auc >= best - 0.01);
  }
  const double async = TrainedAuc("fm", "async", train.path(), test.path());
  INFO("with prefetched rows " << async << ", of the true probabilities " << best);
  CHECK(async >= best - 0.01);
  // A linear model cannot learn the pairs of categories: the data separate the models.
  CHECK(TrainedAuc("embedding-logistic", "sync", train.path(), test.path()) < best - 0.03);
}

}  // namespace
}  // namespace verbena::worker
