#include "worker/logistic_regression.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/metrics.h"

namespace verbena::worker {
namespace {

constexpr size_t kWeights = 0;
constexpr size_t kBias = 1;

// log(1 + exp(x)) without overflow.
double Softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

LogisticRegression::LogisticRegression(SparseExamples train, std::optional<SparseExamples> test,
                                       double l2)
    : train_(std::move(train)), test_(std::move(test)), l2_(l2) {
  const uint64_t features = std::max<uint32_t>(train_.features, 1);
  layout_ = Layout({{"weights", {features}}, {"bias", {1}}});
  sums_.resize(features);
}

double LogisticRegression::Score(const SparseExamples& examples, size_t row,
                                 const float* parameters) const {
  const float* weights = parameters + layout_.offset(kWeights);
  double score = parameters[layout_.offset(kBias)];
  for (uint64_t k = examples.row_begin[row]; k < examples.row_begin[row + 1]; ++k) {
    const uint32_t index = examples.indices[k];
    if (index < sums_.size()) score += static_cast<double>(weights[index]) * examples.values[k];
  }
  return score;
}

double LogisticRegression::Gradient(absl::Span<const uint32_t> ids, double scale,
                                    const float* parameters, float* gradient) {
  // Sums in double: how a batch is split among workers then shows only in the last bit.
  std::fill(sums_.begin(), sums_.end(), 0.0);
  double bias = 0;
  double loss = 0;
  for (const uint32_t id : ids) {
    const double label = train_.labels[id];
    const double score = Score(train_, id, parameters);
    const double error = Sigmoid(score) - label;
    loss += Softplus(score) - label * score;
    bias += error;
    for (uint64_t k = train_.row_begin[id]; k < train_.row_begin[id + 1]; ++k) {
      sums_[train_.indices[k]] += error * train_.values[k];
    }
  }
  const float* weights = parameters + layout_.offset(kWeights);
  float* out = gradient + layout_.offset(kWeights);
  for (size_t i = 0; i < sums_.size(); ++i) {
    out[i] = static_cast<float>(scale * sums_[i] + l2_ * static_cast<double>(weights[i]));
  }
  gradient[layout_.offset(kBias)] = static_cast<float>(scale * bias);
  return loss;
}

absl::StatusOr<Quality> LogisticRegression::Evaluate(const float* parameters,
                                                     std::FILE* predictions) {
  if (!test_) return absl::FailedPreconditionError("no test data was given");
  std::vector<float> probabilities(test_->rows());
  for (size_t row = 0; row < test_->rows(); ++row) {
    probabilities[row] = static_cast<float>(Sigmoid(Score(*test_, row, parameters)));
    if (predictions != nullptr) {
      // Nine digits name every float exactly, so that ties in the file are ties here.
      std::fprintf(predictions, "%.9g\n", static_cast<double>(probabilities[row]));
    }
  }
  Quality quality;
  quality.examples = test_->rows();
  quality.auc = AreaUnderCurve(probabilities, test_->labels);
  quality.accuracy = Accuracy(probabilities, test_->labels);
  return quality;
}

}  // namespace verbena::worker
