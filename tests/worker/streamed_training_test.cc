// Training on inputs that do not fit into the memory given.
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/read_examples.h"
#include "tests/worker/shared_store.h"
#include "tests/worker/temporary_file.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/logistic_regression.h"
#include "worker/models/text_model.h"
#include "worker/stores/local_store.h"
#include "worker/train/measure.h"
#include "worker/train/metrics.h"
#include "worker/train/random.h"
#include "worker/train/schedule.h"
#include "worker/train/trainer.h"

namespace verbena::worker {
namespace {

constexpr uint64_t kTrainingMemory = 1 << 16;

// Examples whose label follows their features.
std::string Lines(uint64_t rows) {
  std::string text;
  Random random(4);
  for (uint64_t i = 0; i < rows; ++i) {
    const uint64_t feature = random.Below(40);
    text += feature < 20 ? "1 " : "0 ";
    text += std::to_string(feature + 1) + ":1 " + std::to_string(100 + random.Below(50)) + ":0.5\n";
  }
  return text;
}

InputPart PartOf(const TemporaryFile& file, ExampleFormat format) {
  Spool spool(kTestSpoolBytes);
  auto index = InputIndexer::Index({file.path()},
                                   {.format = format,
                                    .parse = format != ExampleFormat::kByte,
                                    .block_bytes = BlockBytesFor(kTrainingMemory)},
                                   &spool);
  REQUIRE(index.ok());
  return {*index, 0, (*index)->examples()};
}

using MakeModel = std::function<std::unique_ptr<Model>()>;

std::vector<MakeModel> Models(const TemporaryFile& lines) {
  const InputPart part = PartOf(lines, ExampleFormat::kLibsvm);
  const auto set = [part] {
    return *StreamExamples(part, kTrainingMemory, LibsvmParser::kMaxDenseIndex);
  };
  const InputPart text = PartOf(lines, ExampleFormat::kByte);
  return {
      [set] { return std::make_unique<LogisticRegression>(set(), std::nullopt, 1e-4); },
      [set] { return std::make_unique<FactorizationMachine>(set(), std::nullopt, 3, 1e-4); },
      [text] {
        const TextModelOptions options = {
            .shape = {.context = 2, .embedding = 4, .hidden = 8}, .dropout = 0.3, .ngrams = 2};
        return std::make_unique<TextModel>(TextData{*StreamBytes(text, kTrainingMemory), ""},
                                           options);
      },
  };
}

uint64_t TrainedHash(const MakeModel& make, const std::vector<uint64_t>& ends) {
  const std::unique_ptr<Model> first = make();
  REQUIRE(Schedule(first->examples(), 50, 1, 0, 1, first->order()).windowed());
  const auto layout = StoreLayout(*first, {.count_steps = true});
  const auto store = *LocalStore::Create(layout, {.optimizer = "adam"}, first->tables());
  for (const uint64_t end : ends) {
    const std::unique_ptr<Model> model = make();
    const auto result =
        Train(model.get(), store.get(),
              {.steps = end, .batch = 50, .count_steps = true, .resume = end != ends[0]});
    INFO(result.status());
    REQUIRE(result.ok());
  }
  return *HashModel(first.get(), store.get());
}

TEST_CASE("a run on a stream has the same bits after any number of restarts") {
  const TemporaryFile lines(Lines(4000));
  std::vector<MakeModel> models = Models(lines);
  models.pop_back();  // the text model's sums depend on where in memory its parameters lie
  for (const MakeModel& make : models) {
    const uint64_t whole = TrainedHash(make, {200});
    CHECK(TrainedHash(make, {200}) == whole);
    CHECK(TrainedHash(make, {70, 71, 72, 150, 200}) == whole);
  }
}

TEST_CASE("a stream trains the same however its batches are split") {
  const TemporaryFile lines(Lines(4000));
  for (const MakeModel& make : Models(lines)) {
    std::vector<float> one;
    for (const uint64_t workers : {1, 2, 5}) {
      const std::unique_ptr<Model> model = make();
      auto store =
          *LocalStore::Create(model->layout(), {.optimizer = "sgd", .rate = 0.1}, model->tables());
      for (const auto& result :
           TrainShared(make, store.get(), {.steps = 100, .batch = 50}, workers)) {
        REQUIRE(result.ok());
      }
      REQUIRE(PullAll(store.get()).ok());
      const std::vector<float> got(store->parameters(),
                                   store->parameters() + store->layout().floats());
      if (one.empty()) one = got;
      for (size_t i = 0; i < one.size(); ++i) CHECK(got[i] == Approx(one[i]).margin(1e-4));
    }
  }
}

TEST_CASE("a line that is wrong ends training on a stream, with its number") {
  std::string text = Lines(4000);
  text += "1 2:x\n";
  const TemporaryFile lines(text);
  Spool spool(kTestSpoolBytes);
  const auto index = InputIndexer::Index(
      {lines.path()},
      {.format = ExampleFormat::kLibsvm, .block_bytes = BlockBytesFor(kTrainingMemory)}, &spool);
  REQUIRE(index.ok());
  FactorizationMachine model(
      *StreamExamples({*index, 0, (*index)->examples()}, kTrainingMemory, LibsvmParser::kMaxIndex),
      std::nullopt, 2, 0);
  auto store = *LocalStore::Create(model.layout(), {}, model.tables());
  const auto result = Train(&model, store.get(), {.steps = 400, .batch = 50});
  CHECK(result.status().message() ==
        lines.path() + ":4001: field 2 \"2:x\": bad value; allowed: a finite decimal number");
}

TEST_CASE("the AUC of any number of examples takes bounded memory, and is as good as exact") {
  Random random(3);
  std::vector<float> probabilities, labels;
  for (int i = 0; i < 20000; ++i) {
    const double p = random.Uniform() * random.Uniform();
    probabilities.push_back(static_cast<float>(i % 50 == 0 ? 0.25 : p));
    labels.push_back(random.Uniform() < p ? 1.0f : 0.0f);
  }
  ClassifierMeasure exact, rounded(1000);
  for (size_t i = 0; i < probabilities.size(); i += 500) {
    const auto part = absl::MakeConstSpan(probabilities).subspan(i, 500);
    exact.Add(part, absl::MakeConstSpan(labels).subspan(i, 500));
    rounded.Add(part, absl::MakeConstSpan(labels).subspan(i, 500));
  }
  CHECK(exact.Result().auc == AreaUnderCurve(probabilities, labels));
  CHECK(exact.Result().accuracy == Accuracy(probabilities, labels));
  CHECK(*rounded.Result().auc == Approx(*exact.Result().auc).margin(1e-5));
  CHECK(rounded.Result().accuracy == exact.Result().accuracy);
  CHECK(rounded.Result().examples == 20000);
  CHECK_FALSE(ClassifierMeasure().Result().auc);
}

}  // namespace
}  // namespace verbena::worker
