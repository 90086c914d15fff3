#include "worker/logistic_regression.h"

#include <algorithm>
#include <utility>

#include "worker/logistic.h"
#include "worker/metrics.h"

namespace verbena::worker {
namespace {

constexpr size_t kWeights = 0;
constexpr size_t kBias = 1;

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

absl::StatusOr<double> LogisticRegression::Gradient(const Batch& batch, double scale,
                                                    const Parameters& parameters,
                                                    const Gradients& gradients) {
  // Sums in double: how a batch is split among workers then shows only in the last bit.
  std::fill(sums_.begin(), sums_.end(), 0.0);
  double bias = 0;
  double loss = 0;
  for (const uint32_t id : batch.ids) {
    const double label = train_.labels[id];
    const double score = Score(train_, id, parameters.dense);
    const double error = Sigmoid(score) - label;
    loss += Softplus(score) - label * score;
    bias += error;
    for (uint64_t k = train_.row_begin[id]; k < train_.row_begin[id + 1]; ++k) {
      sums_[train_.indices[k]] += error * train_.values[k];
    }
  }
  const float* weights = parameters.dense + layout_.offset(kWeights);
  float* out = gradients.dense + layout_.offset(kWeights);
  for (size_t i = 0; i < sums_.size(); ++i) {
    out[i] = static_cast<float>(scale * sums_[i] + l2_ * static_cast<double>(weights[i]));
  }
  gradients.dense[layout_.offset(kBias)] = static_cast<float>(scale * bias);
  return loss;
}

absl::StatusOr<Quality> LogisticRegression::Evaluate(const Evaluation& evaluation) {
  if (!test_) return absl::FailedPreconditionError("no test data was given");
  const size_t examples = std::min<uint64_t>(test_->rows(), evaluation.limit);
  std::vector<float> probabilities(examples);
  for (size_t row = 0; row < examples; ++row) {
    probabilities[row] = static_cast<float>(Sigmoid(Score(*test_, row, evaluation.parameters)));
    if (evaluation.predictions != nullptr) {
      // Nine digits name every float exactly, so that ties in the file are ties here.
      std::fprintf(evaluation.predictions, "%.9g\n", static_cast<double>(probabilities[row]));
    }
  }
  const absl::Span<const float> labels = absl::MakeConstSpan(test_->labels).first(examples);
  Quality quality;
  quality.examples = examples;
  quality.not_finite = CountNotFinite(probabilities);
  if (quality.not_finite > 0) return quality;
  quality.auc = AreaUnderCurve(probabilities, labels);
  quality.accuracy = Accuracy(probabilities, labels);
  return quality;
}

}  // namespace verbena::worker
