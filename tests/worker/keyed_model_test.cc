#include "worker/models/keyed_model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "tests/worker/gradient_check.h"
#include "tests/worker/synthetic.h"
#include "worker/models/embedding_mlp.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/logistic.h"
#include "worker/models/logistic_regression.h"
#include "worker/stores/local_store.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

std::vector<uint64_t> FirstIds(uint32_t n) {
  std::vector<uint64_t> ids(n);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  return ids;
}

KeyedExamples OneBag(size_t rows) { return SyntheticExamples(rows, 12, 3); }

// Three fields of a few categories and two numbers beside them, some of them zero.
KeyedExamples Fields(size_t rows) {
  KeyedExamples examples;
  examples.fields = 3;
  examples.input_width = 2;
  Random random(5);
  for (size_t r = 0; r < rows; ++r) {
    examples.labels.push_back(static_cast<float>(random.Below(2)));
    for (uint64_t f = 0; f < 3; ++f) examples.keys.push_back(100 * f + random.Below(4));
    examples.row_begin.push_back(examples.keys.size());
    examples.inputs.push_back(static_cast<float>(random.Below(3)));
    examples.inputs.push_back(static_cast<float>(random.Uniform()));
  }
  return examples;
}

double NoPenalty(const float* /*parameters*/) { return 0; }

TEST_CASE("the gradients of the factorization machine are those of its loss") {
  for (const uint32_t factors : {0, 1, 5}) {
    INFO(factors << " factors");
    FactorizationMachine bag(OneBag(40), std::nullopt, factors, 0);
    CheckGradient(&bag, FirstIds(40), 1e-2, 2e-3, NoPenalty);
    FactorizationMachine fields(Fields(40), std::nullopt, factors, 0);
    CheckGradient(&fields, FirstIds(40), 1e-2, 2e-3, NoPenalty);
  }
}

TEST_CASE("the gradients of the network are those of its loss") {
  // Few examples and units: the loss has a kink where a unit of an example begins to respond, and
  // no step may cross one.
  EmbeddingMlp bag(OneBag(13), std::nullopt, 4, 3, 0);
  CheckGradient(&bag, FirstIds(13), 1e-3, 1e-2, NoPenalty);
  constexpr double kL2 = 0.01;
  EmbeddingMlp fields(Fields(43), std::nullopt, 3, 3, kL2);
  EmbeddingMlp plain(Fields(43), std::nullopt, 3, 3, 0);
  CheckGradient(&plain, FirstIds(13), 1e-3, 1e-2, NoPenalty);
  GradientAt with(&fields, FirstIds(43));
  GradientAt without(&plain, FirstIds(43));
  with.Compute(1.0 / 43);
  without.Compute(1.0 / 43);
  const Layout& layout = fields.layout();
  for (size_t t = 0; t < layout.size(); ++t) {
    const bool weights = layout[t].name.find("weights") != std::string::npos;
    for (uint64_t i = layout.offset(t); i < layout.offset(t) + layout[t].elements(); ++i) {
      CHECK(with.gradient[i] - without.gradient[i] ==
            Approx(weights ? kL2 * with.parameters[i] : 0).margin(1e-6));
    }
  }
}

TEST_CASE("L2 falls on a row once for each use of it") {
  constexpr double kL2 = 0.5;
  FactorizationMachine with_l2(Fields(30), std::nullopt, 2, kL2);
  FactorizationMachine plain(Fields(30), std::nullopt, 2, 0);
  GradientAt with(&with_l2, FirstIds(30));
  GradientAt without(&plain, FirstIds(30));
  with.Compute(0.1);
  without.Compute(0.1);
  std::vector<int> uses(with.batch.keys[0].size());
  for (const uint32_t place : with.batch.places) ++uses[place];
  REQUIRE(std::set<int>(uses.begin(), uses.end()).size() > 1);
  for (size_t i = 0; i < with.rows[0].size(); ++i) {
    CHECK(with.row_gradients[0][i] - without.row_gradients[0][i] ==
          Approx(0.1 * kL2 * uses[i / 3] * with.rows[0][i]).margin(1e-5));
  }
}

TEST_CASE("the factorization machine scores by its formula") {
  FactorizationMachine model(Fields(20), std::nullopt, 3, 0);
  GradientAt at(&model, FirstIds(20));
  const double loss = at.Compute(1);
  double expected = 0;
  for (size_t r = 0; r < 20; ++r) {
    double score = at.parameters[0];
    const auto row = [&](uint32_t k) { return at.rows[0].data() + size_t{at.batch.places[k]} * 4; };
    for (uint32_t k = at.batch.begin[r]; k < at.batch.begin[r + 1]; ++k) {
      score += static_cast<double>(row(k)[0]) * at.batch.values[k];
      for (uint32_t l = at.batch.begin[r]; l < k; ++l) {
        double product = 0;
        for (size_t f = 1; f < 4; ++f) product += static_cast<double>(row(k)[f]) * row(l)[f];
        score += product * at.batch.values[k] * at.batch.values[l];
      }
    }
    expected += Softplus(score) - static_cast<double>(at.batch.labels[r]) * score;
  }
  CHECK(loss == Approx(expected).epsilon(1e-5));
}

TEST_CASE("without factors the gradient is that of dense logistic regression") {
  LogisticRegression dense(SyntheticExamples(60, 12, 3), std::nullopt, 0);
  FactorizationMachine keyed(OneBag(60), std::nullopt, 0, 0);
  GradientAt of_dense(&dense, FirstIds(60));
  GradientAt of_keyed(&keyed, FirstIds(60));
  of_keyed.parameters[0] = of_dense.parameters[dense.layout().offset(1)];
  for (size_t i = 0; i < of_keyed.batch.keys[0].size(); ++i) {
    of_keyed.rows[0][i] = of_dense.parameters[of_keyed.batch.keys[0][i]];
  }
  CHECK(of_keyed.Compute(0.1) == Approx(of_dense.Compute(0.1)));
  CHECK(of_keyed.gradient[0] == Approx(of_dense.gradient[dense.layout().offset(1)]));
  for (size_t i = 0; i < of_keyed.batch.keys[0].size(); ++i) {
    CHECK(of_keyed.row_gradients[0][i] ==
          Approx(of_dense.gradient[of_keyed.batch.keys[0][i]]).margin(1e-6));
  }
}

TEST_CASE("a batch names each key once, and a place for each feature") {
  const KeyedExamples examples = Fields(50);
  EmbeddingMlp model(examples, std::nullopt, 2, 2, 0);
  Batch batch;
  for (const std::vector<uint64_t>& ids : {FirstIds(50), std::vector<uint64_t>{7, 3}}) {
    batch.ids = ids;
    REQUIRE(model.Prepare(&batch).ok());
    const std::vector<uint64_t>& keys = batch.keys[0];
    CHECK(std::set<uint64_t>(keys.begin(), keys.end()).size() == keys.size());
    REQUIRE(batch.places.size() == 3 * ids.size());
    for (size_t r = 0; r < ids.size(); ++r) {
      for (size_t f = 0; f < 3; ++f) {
        CHECK(keys[batch.places[3 * r + f]] == examples.keys[3 * size_t{ids[r]} + f]);
      }
    }
  }
}

TEST_CASE("many keys are numbered in order of first use, again and again") {
  KeyIndex index;
  for (int round = 0; round < 3; ++round) {
    std::vector<uint64_t> keys;
    index.Clear();
    for (uint64_t i = 0; i < 5000; ++i) REQUIRE(index.Place(Mix(i % 2500), &keys) == i % 2500);
    CHECK(keys.size() == 2500);
    CHECK(keys[2499] == Mix(2499));
  }
}

TEST_CASE("evaluation looks rows up in blocks, and may stop at a limit") {
  // More than one block; the label follows the only feature.
  KeyedExamples examples;
  for (uint64_t r = 0; r < 9000; ++r) {
    examples.labels.push_back(static_cast<float>(r % 2));
    examples.keys.push_back(r % 2);
    examples.row_begin.push_back(r + 1);
  }
  FactorizationMachine model(examples, examples, 0, 0);
  auto store = *LocalStore::Create(model.layout(), {.optimizer = "sgd", .rate = 1}, model.tables());
  const std::vector<uint64_t> keys = {0, 1};
  float* gradient = *store->rows()->Gradients(0, 2);
  gradient[0] = 3;  // of which the rate takes the negative
  gradient[1] = -3;
  store->rows()->Push(0, keys);
  store->EndStep();
  const std::vector<float> dense(model.layout().floats());
  std::FILE* file = std::tmpfile();
  auto quality =
      EvaluateWith(&model, store->rows(), {.parameters = dense.data(), .predictions = file});
  REQUIRE(quality.ok());
  CHECK(quality->examples == 9000);
  CHECK(quality->auc == 1.0);
  CHECK(quality->accuracy == 1.0);
  std::rewind(file);
  double probability = 0;
  int lines = 0;
  for (; std::fscanf(file, "%lf", &probability) == 1; ++lines) {
    REQUIRE(probability == Approx(Sigmoid(lines % 2 == 1 ? 3 : -3)));
  }
  CHECK(lines == 9000);
  std::fclose(file);
  quality = EvaluateWith(&model, store->rows(), {.parameters = dense.data(), .limit = 100});
  REQUIRE(quality.ok());
  CHECK(quality->examples == 100);
  // Test keys that training never had are looked up, and created by nothing.
  CHECK(store->rows()->size(0) == 2);
}

}  // namespace
}  // namespace verbena::worker
