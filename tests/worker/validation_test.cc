// Validation, early stop and prefetch of rows, in the training loop.
#include "worker/train/validation.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/worker/shared_store.h"
#include "tests/worker/synthetic.h"
#include "worker/models/factorization_machine.h"
#include "worker/models/logistic_regression.h"
#include "worker/stores/local_store.h"
#include "worker/train/trainer.h"

namespace verbena::worker {
namespace {

Quality WithAuc(double auc) { return {.examples = 1, .auc = auc}; }

TEST_CASE("patience counts the measures since the best") {
  Patience patience(2);
  CHECK(patience.Add(WithAuc(0.6)));
  CHECK_FALSE(patience.Add(WithAuc(0.6)));
  CHECK_FALSE(patience.exhausted());
  CHECK(patience.Add(WithAuc(0.7)));
  CHECK_FALSE(patience.Add(WithAuc(0.65)));
  CHECK_FALSE(patience.exhausted());
  CHECK_FALSE(patience.Add(WithAuc(0.69)));
  CHECK(patience.exhausted());
}

TEST_CASE("fewer bits are better, and no patience never ends") {
  Patience patience(0);
  CHECK(patience.Add({.examples = 1, .bits_per_byte = 3.0}));
  CHECK(patience.Add({.examples = 1, .bits_per_byte = 2.5}));
  for (int i = 0; i < 10; ++i) CHECK_FALSE(patience.Add({.examples = 1, .bits_per_byte = 2.6}));
  CHECK_FALSE(patience.exhausted());
  Patience one(1);
  one.Add({.examples = 1, .bits_per_byte = 2.5});
  one.Add(Quality());  // nothing could be measured: no better
  CHECK(one.exhausted());
}

TEST_CASE("a validation line has the step, the measures and the mark of the best so far") {
  CHECK(ValidationText(
            {.step = 20, .quality = {.examples = 3, .auc = 0.75, .accuracy = 0.5}, .best = true}) ==
        "validation after step 20: AUC 0.7500 accuracy 0.5000 (best so far)");
  CHECK(ValidationText({.step = 7, .quality = {.examples = 3, .bits_per_byte = 2.25}}) ==
        "validation after step 7: 2.2500 bits per byte");
}

// Learns at once and never gets better: the label is the sign of the only feature.
KeyedExamples Separable(size_t rows) {
  KeyedExamples examples;
  examples.features = 1;
  for (size_t r = 0; r < rows; ++r) {
    examples.labels.push_back(static_cast<float>(r % 2));
    examples.keys.push_back(0);
    examples.values.push_back(r % 2 == 1 ? 1.0f : -1.0f);
    examples.row_begin.push_back(r + 1);
  }
  return examples;
}

std::unique_ptr<Model> DenseModel() {
  return std::make_unique<LogisticRegression>(Separable(100), Separable(40), 0);
}
std::unique_ptr<Model> RowModel() {
  return std::make_unique<FactorizationMachine>(Separable(100), Separable(40), 0, 0);
}

TEST_CASE("regression: a model that has diverged is never the best so far, with a warning") {
  for (const auto& make : {&DenseModel, &RowModel}) {
    const auto model = make();
    auto store = *LocalStore::Create(model->layout(), {.optimizer = "sgd"}, model->tables());
    std::vector<float> parameters(model->layout().floats(), std::nanf(""));
    const auto quality =
        EvaluateWith(model.get(), store->rows(), {.parameters = parameters.data()});
    REQUIRE(quality.ok());
    CHECK_FALSE(quality->auc);
    CHECK_FALSE(quality->accuracy);
    CHECK(quality->not_finite == 40);
    CHECK_FALSE(Patience(2).Add(*quality));
    CHECK(ValidationText({.step = 2, .quality = *quality}) ==
          "validation after step 2: 40 of 40 predictions are not numbers");
    CHECK(CheckConverged(*quality).message() ==
          "training has diverged: 40 of 40 predictions on the test data are not numbers; a lower "
          "--rate, --warmup-steps or --clip-global-norm may help");
  }
  CHECK(CheckConverged(WithAuc(0.5)).ok());
}

TEST_CASE("validations come every so many steps, and change nothing") {
  for (const auto& make : {&DenseModel, &RowModel}) {
    uint64_t hashes[2];
    std::vector<uint64_t> steps;
    for (const bool validates : {false, true}) {
      const auto model = make();
      auto store = *LocalStore::Create(model->layout(), {.optimizer = "adam"}, model->tables());
      TrainHooks hooks;
      hooks.validated = [&](const Validation& validation) {
        steps.push_back(validation.step);
        CHECK(validation.quality.examples == 10);
        CHECK(validation.quality.auc.has_value());
      };
      const auto result = Train(model.get(), store.get(),
                                {.steps = 25,
                                 .batch = 10,
                                 .validate_every = validates ? 10u : 0u,
                                 .validate_examples = 10},
                                hooks);
      REQUIRE(result.ok());
      CHECK_FALSE(result->stopped_early);
      hashes[validates] = *HashModel(model.get(), store.get());
    }
    CHECK(steps == std::vector<uint64_t>{10, 20});
    CHECK(hashes[0] == hashes[1]);
  }
}

TEST_CASE("every worker stops after the same step, once validation stops getting better") {
  for (const auto& make : {&DenseModel, &RowModel}) {
    for (const size_t workers : {1, 2, 3}) {
      INFO(workers << " workers");
      const TrainOptions options = {
          .steps = 1000, .batch = 12, .validate_every = 4, .early_stop = 2};
      const auto model = make();
      auto store =
          *LocalStore::Create(StoreLayout(*model, options), {.optimizer = "adam"}, model->tables());
      std::vector<Validation> validations;
      const auto results = TrainShared(make, store.get(), options, workers, [&](size_t rank) {
        TrainHooks hooks;
        hooks.validated = [&validations, rank](const Validation& validation) {
          REQUIRE(rank == 0);
          validations.push_back(validation);
        };
        return hooks;
      });
      // AUC is 1 from the first: the second and third are no better.
      REQUIRE(validations.size() == 3);
      CHECK(validations[0].best);
      CHECK_FALSE(validations[2].best);
      for (const auto& result : results) {
        REQUIRE(result.ok());
        CHECK(result->stopped_early);
        // One step more than was validated carries the word.
        CHECK(result->totals.steps == 13);
      }
    }
  }
}

TEST_CASE("a job that stopped early can go on") {
  const TrainOptions options = {.steps = 100, .batch = 10, .validate_every = 3, .early_stop = 1};
  const auto model = DenseModel();
  auto store = *LocalStore::Create(StoreLayout(*model, options), {.optimizer = "momentum"});
  for (int run = 0; run < 3; ++run) {
    const auto result = Train(model.get(), store.get(), options);
    REQUIRE(result.ok());
    CHECK(result->stopped_early);
    CHECK(result->totals.steps == 7);
  }
}

TEST_CASE("early stop leaves the parameters alone") {
  const TrainOptions plain = {.steps = 7, .batch = 10};
  TrainOptions stopping = {.steps = 100, .batch = 10, .validate_every = 3, .early_stop = 1};
  uint64_t hashes[2];
  for (const bool stops : {false, true}) {
    const TrainOptions& options = stops ? stopping : plain;
    const auto model = RowModel();
    auto store =
        *LocalStore::Create(StoreLayout(*model, options), {.optimizer = "adam"}, model->tables());
    const auto result = Train(model.get(), store.get(), options);
    REQUIRE(result.ok());
    CHECK(result->totals.steps == 7);
    hashes[stops] = *HashModel(model.get(), store.get());
  }
  CHECK(hashes[0] == hashes[1]);
}

TEST_CASE("options that cannot be are refused") {
  LogisticRegression untested(Separable(10), std::nullopt, 0);
  auto store = *LocalStore::Create(untested.layout(), {});
  const auto error = [&](Model* model, const TrainOptions& options) {
    return std::string(Train(model, store.get(), options).status().message());
  };
  CHECK(error(&untested, {.steps = 1, .validate_every = 1}) ==
        "validation needs test data, given or held out");
  const auto model = DenseModel();
  CHECK(error(model.get(), {.steps = 1, .early_stop = 1}) == "early stop needs validations");
  CHECK(error(model.get(), {.steps = 1, .validate_every = 1, .early_stop = 1}) ==
        "the store is not laid out for this model and these options");
}

// Records the loop's calls for rows.
class RecordingStore : public ParameterStore, public RowStore {
 public:
  RecordingStore(LocalStore* store, std::vector<std::string>* log) : store_(*store), log_(*log) {}

  const Layout& layout() const override { return store_.layout(); }
  float* gradient() override { return store_.gradient(); }
  float* parameters() override { return store_.parameters(); }
  void Push(size_t tensor) override { store_.Push(tensor); }
  void EndStep() override {
    log_.emplace_back("end");
    store_.EndStep();
  }
  void Pull(size_t tensor) override { store_.Pull(tensor); }
  absl::Status Wait() override { return store_.Wait(); }
  RowStore* rows() override { return this; }
  StoreStatistics statistics() const override { return store_.statistics(); }

  absl::Span<const EmbeddingTable> tables() const override { return store_.rows()->tables(); }
  void Prefetch(size_t /*table*/, absl::Span<const uint64_t> /*keys*/) override {
    log_.emplace_back("intend");
  }
  void Lookup(size_t slot, size_t table, absl::Span<const uint64_t> keys) override {
    log_.push_back("lookup " + std::to_string(slot));
    store_.rows()->Lookup(slot, table, keys);
  }
  absl::Status WaitLookups(size_t slot) override {
    log_.push_back("wait " + std::to_string(slot));
    return store_.rows()->WaitLookups(slot);
  }
  const float* rows(size_t slot, size_t table) const override {
    return store_.rows()->rows(slot, table);
  }
  absl::StatusOr<float*> Gradients(size_t table, size_t rows) override {
    return store_.rows()->Gradients(table, rows);
  }
  void Push(size_t table, absl::Span<const uint64_t> keys) override {
    log_.emplace_back("push");
    store_.rows()->Push(table, keys);
  }

 private:
  LocalStore& store_;
  std::vector<std::string>& log_;
};

TEST_CASE("the next rows are looked up, or prefetched, before the rows of this step are pushed") {
  for (const bool prefetch : {false, true}) {
    std::vector<std::string> log;
    const auto model = RowModel();
    auto local = *LocalStore::Create(model->layout(), {}, model->tables());
    RecordingStore store(local.get(), &log);
    REQUIRE(Train(model.get(), &store, {.steps = 3, .batch = 10, .prefetch = prefetch}).ok());
    using Log = std::vector<std::string>;
    const Log with = {"lookup 0", "wait 0", "lookup 1", "push", "end", "wait 1", "lookup 0",
                      "push",     "end",    "wait 0",   "push", "end", "wait 0"};
    const Log without = {"lookup 0", "wait 0", "intend", "push", "end",
                         "lookup 1", "wait 1", "intend", "push", "end",
                         "lookup 0", "wait 0", "push",   "end",  "wait 0"};
    CHECK(log == (prefetch ? with : without));
  }
}

TEST_CASE("prefetched rows lack exactly one step") {
  // One row of weight w; sgd of rate 1 with one example a step whose gradient at w is that of
  // Softplus: the gradient of step t shows which weight it read.
  const auto final_weight = [](bool prefetch) {
    FactorizationMachine model(Separable(2), std::nullopt, 0, 0);
    auto store =
        *LocalStore::Create(model.layout(), {.optimizer = "sgd", .rate = 1}, model.tables());
    REQUIRE(Train(&model, store.get(), {.steps = 3, .batch = 2, .prefetch = prefetch}).ok());
    const std::vector<uint64_t> key = {0};
    store->rows()->Lookup(0, 0, key);
    return store->rows()->rows(0, 0)[0];
  };
  // Both examples pull w up by sigmoid(-w) / 2 each.
  const auto push = [](double w) { return 1 / (1 + std::exp(w)); };
  const double w1 = push(0);
  const double w2 = w1 + push(w1);
  CHECK(final_weight(false) == Approx(w2 + push(w2)));
  const double late2 = w1 + push(0);  // the rows of step 1 were read before step 0 was pushed
  CHECK(final_weight(true) == Approx(late2 + push(w1)));
}

}  // namespace
}  // namespace verbena::worker
