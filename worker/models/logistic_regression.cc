#include "worker/models/logistic_regression.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/models/logistic.h"
#include "worker/train/measure.h"

namespace verbena::worker {
namespace {

constexpr size_t kWeights = 0;
constexpr size_t kBias = 1;
// Test examples in memory at a time.
constexpr size_t kTestRowsAtOnce = 4096;

}  // namespace

LogisticRegression::LogisticRegression(ExampleSet train, std::optional<ExampleSet> test, double l2)
    : train_(std::move(train)), test_(std::move(test)), l2_(l2) {
  const uint64_t features = std::max<uint64_t>(train_->shape().features, 1);
  layout_ = Layout({{"weights", {features}}, {"bias", {1}}});
  sums_.resize(features);
}

absl::Status LogisticRegression::Fill(const ExampleSet& from, Batch* batch) {
  if (absl::Status status = from->Fetch(batch->ids, &fetched_); !status.ok()) return status;
  batch->labels = fetched_.labels;
  batch->begin.assign(1, 0);
  batch->places.clear();
  batch->values.clear();
  for (size_t r = 0; r < fetched_.rows(); ++r) {
    for (uint64_t k = fetched_.row_begin[r]; k < fetched_.row_begin[r + 1]; ++k) {
      if (fetched_.keys[k] >= sums_.size()) continue;
      batch->places.push_back(static_cast<uint32_t>(fetched_.keys[k]));
      batch->values.push_back(fetched_.values.empty() ? 1.0f : fetched_.values[k]);
    }
    batch->begin.push_back(static_cast<uint32_t>(batch->places.size()));
  }
  return absl::OkStatus();
}

double LogisticRegression::Score(const Batch& batch, size_t row, const float* parameters) const {
  const float* weights = parameters + layout_.offset(kWeights);
  double score = parameters[layout_.offset(kBias)];
  for (uint32_t k = batch.begin[row]; k < batch.begin[row + 1]; ++k) {
    score += static_cast<double>(weights[batch.places[k]]) * batch.values[k];
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
  for (size_t r = 0; r < batch.ids.size(); ++r) {
    const double label = batch.labels[r];
    const double score = Score(batch, r, parameters.dense);
    const double error = Sigmoid(score) - label;
    loss += Softplus(score) - label * score;
    bias += error;
    for (uint32_t k = batch.begin[r]; k < batch.begin[r + 1]; ++k) {
      sums_[batch.places[k]] += error * batch.values[k];
    }
  }
  const float* weights = parameters.dense + layout_.offset(kWeights);
  float* out = gradients.dense + layout_.offset(kWeights);
  const double l2 = l2_ * batch.penalty;
  for (size_t i = 0; i < sums_.size(); ++i) {
    out[i] = static_cast<float>(scale * sums_[i] + l2 * static_cast<double>(weights[i]));
  }
  gradients.dense[layout_.offset(kBias)] = static_cast<float>(scale * bias);
  return loss;
}

absl::StatusOr<Quality> LogisticRegression::Evaluate(const Evaluation& evaluation) {
  if (!test_) return absl::FailedPreconditionError("no test data was given");
  const uint64_t examples = std::min<uint64_t>((*test_)->rows(), evaluation.limit);
  ClassifierMeasure measure;
  std::vector<float> probabilities;
  Batch batch;
  for (uint64_t done = 0; done < examples;) {
    const size_t n = std::min<uint64_t>(kTestRowsAtOnce, examples - done);
    batch.ids.resize(n);
    std::iota(batch.ids.begin(), batch.ids.end(), done);
    if (absl::Status status = Fill(*test_, &batch); !status.ok()) return status;
    probabilities.resize(n);
    for (size_t r = 0; r < n; ++r) {
      probabilities[r] = static_cast<float>(Sigmoid(Score(batch, r, evaluation.parameters)));
    }
    measure.Add(probabilities, batch.labels);
    WritePredictions(probabilities, evaluation.predictions);
    done += n;
  }
  return measure.Result();
}

}  // namespace verbena::worker
