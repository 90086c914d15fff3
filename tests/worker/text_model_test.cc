#include "worker/models/text_model.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/worker/gradient_check.h"
#include "tests/worker/synthetic.h"
#include "worker/stores/local_store.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {
namespace {

TextModelOptions Small(double dropout, double l2) {
  return {.shape = {.context = 3, .embedding = 4, .hidden = 10}, .dropout = dropout, .l2 = l2};
}

std::vector<uint64_t> FirstTextIds(uint32_t n) {
  std::vector<uint64_t> ids(n);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  return ids;
}

TEST_CASE("the gradient of the text model is that of its loss") {
  TextModel model({SyntheticText(400, 1), ""}, Small(0, 0));
  // More than one block of rows, and the start of the text, where the context is padding.
  CheckGradient(&model, FirstTextIds(300), 4e-3, 2e-3, [](const float*) { return 0.0; });
}

TEST_CASE("the gradient with n-grams is that of the loss, rows included") {
  TextModelOptions options = Small(0, 0);
  options.ngrams = 3;
  TextModel model({SyntheticText(400, 1), ""}, options);
  CheckGradient(&model, FirstTextIds(300), 4e-3, 2e-3, [](const float*) { return 0.0; });
}

TEST_CASE("a row belongs to the bytes before, wherever they stand") {
  TextModelOptions options = Small(0, 0);
  options.ngrams = 3;
  TextModel model({"abcXabcYcab", ""}, options);
  const auto keys_of = [&](uint32_t position) {
    Batch batch;
    batch.ids = {position};
    REQUIRE(model.Prepare(&batch).ok());
    REQUIRE(batch.places.size() == 2);
    return batch.keys[0];
  };
  CHECK(keys_of(3) == keys_of(7));        // after "abc"
  CHECK(keys_of(2)[0] == keys_of(6)[0]);  // after "ab", but another byte before
  CHECK(keys_of(2)[1] != keys_of(6)[1]);
  CHECK(keys_of(0) != keys_of(1));
}

TEST_CASE("n-grams learn from bytes beyond the network's context") {
  const std::string text = SyntheticText(6000, 8);
  const auto bits = [&](int ngrams) {
    TextModelOptions options = {.shape = {.context = 1, .embedding = 4, .hidden = 8}, .dropout = 0};
    options.ngrams = ngrams;
    TextModel model({text.substr(0, 5400), text.substr(5400)}, options);
    auto store = *LocalStore::Create(model.layout(), {.rate = 0.02}, model.tables());
    const auto result = Train(&model, store.get(), {.steps = 150, .batch = 256});
    REQUIRE(result.ok());
    const auto quality =
        EvaluateWith(&model, store->rows(), {.parameters = result->average.data()});
    REQUIRE(quality.ok());
    CHECK(quality->examples == 600);
    return *quality->bits_per_byte;
  };
  CHECK(bits(4) < bits(0) - 0.5);
}

TEST_CASE("the gradient with dropout is that of the loss with the same units dropped") {
  // The units dropped follow from the call's number and the example: a fresh model's first call
  // drops the same ones each time.
  const std::string text = SyntheticText(200, 2);
  const std::vector<uint64_t> ids = FirstTextIds(200);
  const auto first_call = [&](const std::vector<float>& parameters, std::vector<float>* gradient) {
    TextModel model({text, ""}, Small(0.3, 0));
    return DenseGradient(&model, ids, 1.0 / 200, parameters, gradient) / 200;
  };
  const TextModel model({text, ""}, Small(0.3, 0));
  const Layout& layout = model.layout();
  std::vector<float> parameters = RandomArena(layout, 0.3, 5);
  std::vector<float> gradient(parameters.size()), unused(parameters.size());
  const double loss = first_call(parameters, &gradient);
  TextModel plain({text, ""}, Small(0, 0));
  CHECK(loss != DenseGradient(&plain, ids, 1.0 / 200, parameters, &unused) / 200);
  // Along the gradient itself, one tensor at a time, the loss changes by its square.
  for (size_t t = 0; t < layout.size(); ++t) {
    const uint64_t first = layout.offset(t);
    const uint64_t last = first + layout[t].elements();
    double square = 0;
    for (uint64_t i = first; i < last; ++i) square += double{gradient[i]} * gradient[i];
    const double step = 2e-2 / std::sqrt(square);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = parameters;
      for (uint64_t i = first; i < last; ++i) {
        moved[i] += static_cast<float>(distance * gradient[i]);
      }
      return first_call(moved, &unused);
    };
    INFO(layout[t].name);
    CHECK((loss_at(step) - loss_at(-step)) / (2 * step) == Approx(square).epsilon(0.005));
  }
}

TEST_CASE("L2 adds its multiple of the weights") {
  TextModel plain({SyntheticText(100, 3), ""}, Small(0, 0));
  TextModel penalised({SyntheticText(100, 3), ""}, Small(0, 0.5));
  const std::vector<float> parameters = RandomArena(plain.layout(), 0.3, 5);
  std::vector<float> without(parameters.size()), with(parameters.size());
  DenseGradient(&plain, FirstTextIds(50), 0.02, parameters, &without);
  DenseGradient(&penalised, FirstTextIds(50), 0.02, parameters, &with);
  const Layout& layout = plain.layout();
  for (size_t t = 0; t < layout.size(); ++t) {
    const bool weights = layout[t].shape.size() == 2 && layout[t].name != "embedding";
    const uint64_t i = layout.offset(t);
    CHECK(with[i] - without[i] == Approx(weights ? 0.5 * parameters[i] : 0).margin(1e-6));
  }
}

TEST_CASE("every instruction set gives the same gradient to rounding") {
  TextModel best({SyntheticText(400, 1), ""}, Small(0, 0), BestTextKernels());
  TextModel baseline({SyntheticText(400, 1), ""}, Small(0, 0), BaselineTextKernels());
  const std::vector<float> parameters = RandomArena(best.layout(), 0.3, 5);
  std::vector<float> a(parameters.size()), b(parameters.size());
  const double loss_a = DenseGradient(&best, FirstTextIds(300), 0.01, parameters, &a);
  const double loss_b = DenseGradient(&baseline, FirstTextIds(300), 0.01, parameters, &b);
  CHECK(loss_a == Approx(loss_b).epsilon(1e-5));
  for (size_t i = 0; i < a.size(); ++i) REQUIRE(a[i] == Approx(b[i]).margin(1e-5));
}

TEST_CASE("a model of zeros costs eight bits a byte, also in its predictions") {
  TextModel model({"training", "abcde"}, Small(0, 0));
  const std::vector<float> zeros(model.layout().floats());
  std::FILE* file = std::tmpfile();
  const auto quality = model.Evaluate({.parameters = zeros.data(), .predictions = file});
  REQUIRE(quality.ok());
  CHECK(*quality->bits_per_byte == Approx(8));
  CHECK(quality->examples == 5);
  std::rewind(file);
  int lines = 0;
  double bits = 0;
  while (std::fscanf(file, "%lf", &bits) == 1) {
    CHECK(bits == Approx(8).epsilon(1e-4));
    ++lines;
  }
  CHECK(lines == 5);
  std::fclose(file);
}

}  // namespace
}  // namespace verbena::worker
