// Logistic regression on sparse examples: weights and a bias, with a little L2 on the weights.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_MODELS_LOGISTIC_REGRESSION_H_
#define VERBENA_WORKER_MODELS_LOGISTIC_REGRESSION_H_

#include <optional>
#include <vector>

#include "worker/data/example_set.h"
#include "worker/models/model.h"

namespace verbena::worker {

class LogisticRegression : public Model {
 public:
  // A weight for each of the training examples' features. `test` may be absent. Test features that
  // no training example has are ignored: their weights would be zero.
  LogisticRegression(ExampleSet train, std::optional<ExampleSet> test, double l2);

  const Layout& layout() const override { return layout_; }
  uint64_t examples() const override { return train_->rows(); }
  InputOrder order() const override { return train_->order(); }
  absl::Status Prepare(Batch* batch) override { return Fill(train_, batch); }
  void WillPrepare(absl::Span<const uint64_t> ids) override { train_->WillFetch(ids); }
  bool has_test() const override { return test_.has_value(); }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;
  absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) override;

 private:
  // Places are indices of weights; features without one are left out.
  absl::Status Fill(const ExampleSet& from, Batch* batch);
  // The score of example `row` of the batch.
  double Score(const Batch& batch, size_t row, const float* parameters) const;

  ExampleSet train_;
  std::optional<ExampleSet> test_;
  KeyedExamples fetched_;
  double l2_;
  Layout layout_;
  std::vector<double> sums_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_LOGISTIC_REGRESSION_H_
