// A binary classifier whose parameters lie in one embedding table and some dense tensors: the
// common part of all such models. Subclasses define an example's score, and how the score changes.
//
// The loss is logistic. L2 falls on the rows that an example uses, once for each use, so a row that
// nobody uses is left alone, and how a batch is split among workers does not matter.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_KEYED_MODEL_H_
#define VERBENA_WORKER_MODELS_KEYED_MODEL_H_

#include <optional>
#include <utility>
#include <vector>

#include "worker/data/example_set.h"
#include "worker/data/key_index.h"
#include "worker/models/model.h"

namespace verbena::worker {

class KeyedModel : public Model {
 public:
  const Layout& layout() const override { return layout_; }
  absl::Span<const EmbeddingTable> tables() const override { return {&table_, 1}; }
  uint64_t examples() const override { return train_->rows(); }
  bool has_test() const override { return test_.has_value(); }
  InputOrder order() const override { return train_->order(); }
  absl::Status Prepare(Batch* batch) override { return Fill(train_, batch); }
  void WillPrepare(absl::Span<const uint64_t> ids) override { train_->WillFetch(ids); }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;
  absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) override;

 protected:
  // The use of the numbers that an example has beside its keys.
  enum class Inputs {
    kAsFeatures,  // number i is the value of a feature with a row of its own; zeros are left out
    kAsInputs,    // they stay in Batch::inputs
  };

  KeyedModel(ExampleSet train, std::optional<ExampleSet> test, double l2, Inputs inputs)
      : train_(std::move(train)), test_(std::move(test)), l2_(l2), inputs_(inputs) {}

  // To be called once, by the constructor of the model.
  void Define(Layout layout, EmbeddingTable table) {
    layout_ = std::move(layout);
    table_ = std::move(table);
  }
  uint32_t dim() const { return table_.dim; }
  double l2() const { return l2_; }
  // 1 with one bag, else how many fields each example has.
  uint32_t fields() const { return train_->shape().fields; }
  uint32_t input_width() const {
    return inputs_ == Inputs::kAsInputs ? train_->shape().input_width : 0;
  }

 private:
  // scores[r]: the log-odds of example r.
  virtual void Forward(const Batch& batch, const Parameters& parameters,
                       std::vector<double>* scores) = 0;
  // After Forward() of the same: adds errors[r] times the gradient of score r, of all examples, to
  // gradients, and the whole gradient of an L2 on dense weights.
  virtual void Backward(const Batch& batch, const Parameters& parameters,
                        const std::vector<double>& errors, const Gradients& gradients) = 0;

  absl::Status Fill(const ExampleSet& from, Batch* batch);

  ExampleSet train_;
  std::optional<ExampleSet> test_;
  KeyedExamples fetched_;
  double l2_;
  Inputs inputs_;
  Layout layout_;
  EmbeddingTable table_;
  KeyIndex index_;
  std::vector<double> scores_, errors_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_KEYED_MODEL_H_
