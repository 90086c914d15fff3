// Local training on real data reaches the quality the defaults are chosen for.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "worker/local_store.h"
#include "worker/logistic_regression.h"
#include "worker/options.h"
#include "worker/trainer.h"

namespace verbena::worker {
namespace {

TEST_CASE("the defaults reach the reference on a9a") {
  const char* folder = std::getenv("VERBENA_TEST_DATA");
  REQUIRE(folder != nullptr);
  const std::string data = std::string(folder) + "/a9a";
  const std::string test = data + ".t";
  const char* argv[] = {"verbena-train", "--local",    "--format", "libsvm",
                        "--data",        data.c_str(), "--test",   test.c_str()};
  const Parsed parsed = ParseOptions(8, argv);
  REQUIRE(parsed.options);
  auto train = ReadLibsvm({data});
  auto held = ReadLibsvm({test});
  REQUIRE(train.ok());
  REQUIRE(held.ok());
  CHECK(train->rows() == 32560);
  CHECK(held->rows() == 16281);
  LogisticRegression model(*std::move(train), *std::move(held), L2Of(*parsed.options));
  const uint64_t steps = StepsOf(*parsed.options, model.examples());
  auto store = *LocalStore::Create(model.layout(), TrainingSpecOf(*parsed.options, steps));
  const auto result =
      Train(&model, store.get(), {.steps = steps, .batch = BatchOf(*parsed.options)});
  REQUIRE(result.ok());
  const auto quality = model.Evaluate(result->average.data(), nullptr);
  REQUIRE(quality.ok());
  INFO("AUC " << *quality->auc << ", accuracy " << *quality->accuracy);
  CHECK(*quality->auc >= 0.900);
  CHECK(*quality->accuracy >= 0.848);
}

}  // namespace
}  // namespace verbena::worker
