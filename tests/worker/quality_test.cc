// Local training on real data reaches the quality the defaults are chosen for.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iterator>
#include <string>

#include "worker/models/load_model.h"
#include "worker/stores/local_store.h"
#include "worker/train/options.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

Quality TrainedOnA9a(const char* model, const char* consistency) {
  const char* folder = std::getenv("VERBENA_TEST_DATA");
  REQUIRE(folder != nullptr);
  const std::string data = std::string(folder) + "/a9a";
  const std::string test = data + ".t";
  const char* argv[] = {"verbena-train", "--local",    "--format",      "libsvm",
                        "--model",       model,        "--consistency", consistency,
                        "--data",        data.c_str(), "--test",        test.c_str()};
  const Parsed parsed = ParseOptions(std::size(argv), argv);
  REQUIRE(parsed.options);
  const auto loaded = LoadModel(*parsed.options);
  REQUIRE(loaded.ok());
  Model* trained = loaded->get();
  CHECK(trained->examples() == 32560);
  const uint64_t steps = StepsOf(*parsed.options, trained->examples());
  auto store = *LocalStore::Create(trained->layout(), TrainingSpecOf(*parsed.options, steps),
                                   trained->tables());
  const auto result = Train(trained, store.get(),
                            {.steps = steps,
                             .batch = BatchOf(*parsed.options),
                             .prefetch = parsed.options->consistency != "sync"});
  REQUIRE(result.ok());
  const auto quality = EvaluateWith(trained, store->rows(), {.parameters = result->average.data()});
  REQUIRE(quality.ok());
  CHECK(quality->examples == 16281);
  return *quality;
}

TEST_CASE("the defaults reach the reference on a9a") {
  const Quality quality = TrainedOnA9a("logistic", "sync");
  INFO("AUC " << *quality.auc << ", accuracy " << *quality.accuracy);
  CHECK(*quality.auc >= 0.900);
  CHECK(*quality.accuracy >= 0.848);
}

TEST_CASE("the defaults reach the reference through embedding tables, with and without prefetch") {
  for (const char* model : {"embedding-logistic", "fm", "mlp"}) {
    for (const char* consistency : {"sync", "async"}) {
      const Quality quality = TrainedOnA9a(model, consistency);
      INFO(model << " " << consistency << ": AUC " << *quality.auc << ", accuracy "
                 << *quality.accuracy);
      CHECK(*quality.auc >= 0.900);
      CHECK(*quality.accuracy >= 0.848);
    }
  }
}

}  // namespace
}  // namespace verbena::worker
