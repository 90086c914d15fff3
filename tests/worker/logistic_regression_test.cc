#include "worker/models/logistic_regression.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/worker/gradient_check.h"
#include "tests/worker/synthetic.h"

namespace verbena::worker {
namespace {

TEST_CASE("the gradient of logistic regression is that of its loss") {
  constexpr double kL2 = 0.01;
  LogisticRegression model(SyntheticExamples(40, 12, 3), std::nullopt, kL2);
  std::vector<uint64_t> ids(40);
  for (uint32_t i = 0; i < ids.size(); ++i) ids[i] = i;
  CheckGradient(&model, ids, 1e-3, 1e-4, [&](const float* parameters) {
    double squares = 0;
    for (uint64_t i = 0; i < model.layout()[0].elements(); ++i) {
      squares += static_cast<double>(parameters[i]) * parameters[i];
    }
    return kL2 / 2 * squares;
  });
}

TEST_CASE("test features that training never had are ignored") {
  KeyedExamples train;
  train.labels = {1, 0};
  train.row_begin = {0, 1, 2};
  train.keys = {0, 1};
  train.values = {1, 1};
  train.features = 2;
  KeyedExamples test = train;
  test.keys = {0, 40};
  test.features = 41;
  LogisticRegression model(train, test, 0);
  std::vector<float> parameters(model.layout().floats());
  parameters[0] = 2;
  const auto quality = model.Evaluate({.parameters = parameters.data()});
  REQUIRE(quality.ok());
  CHECK(quality->auc == 1.0);
  CHECK(quality->examples == 2);
}

TEST_CASE("scores of any size give finite losses and probabilities") {
  KeyedExamples train;
  train.labels = {1, 0};
  train.row_begin = {0, 1, 2};
  train.keys = {0, 0};
  train.values = {1e30f, 1e30f};
  train.features = 1;
  LogisticRegression model(train, train, 0);
  std::vector<float> parameters(model.layout().floats()), gradient(model.layout().floats());
  for (const float weight : {1e6f, -1e6f}) {
    parameters[0] = weight;
    CHECK(std::isfinite(DenseGradient(&model, {0, 1}, 0.5, parameters, &gradient)));
    CHECK(std::isfinite(gradient[0]));
  }
}

}  // namespace
}  // namespace verbena::worker
