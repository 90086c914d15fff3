// Logistic regression on sparse examples: weights and a bias, with a little L2 on the weights.
//
// **Thread safety**: one thread at a time.
#ifndef VERBENA_WORKER_LOGISTIC_REGRESSION_H_
#define VERBENA_WORKER_LOGISTIC_REGRESSION_H_

#include <optional>
#include <vector>

#include "worker/libsvm_reader.h"
#include "worker/model.h"

namespace verbena::worker {

class LogisticRegression : public Model {
 public:
  // `test` may be absent. Test features that no training example has are ignored: their weights
  // would be zero.
  LogisticRegression(SparseExamples train, std::optional<SparseExamples> test, double l2);

  const Layout& layout() const override { return layout_; }
  uint64_t examples() const override { return train_.rows(); }
  bool has_test() const override { return test_.has_value(); }
  absl::StatusOr<double> Gradient(const Batch& batch, double scale, const Parameters& parameters,
                                  const Gradients& gradients) override;
  absl::StatusOr<Quality> Evaluate(const Evaluation& evaluation) override;

 private:
  double Score(const SparseExamples& examples, size_t row, const float* parameters) const;

  SparseExamples train_;
  std::optional<SparseExamples> test_;
  double l2_;
  Layout layout_;
  std::vector<double> sums_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_LOGISTIC_REGRESSION_H_
