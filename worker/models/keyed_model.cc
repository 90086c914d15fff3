#include "worker/models/keyed_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "worker/models/logistic.h"
#include "worker/train/measure.h"
#include "worker/train/random.h"

namespace verbena::worker {
namespace {

// Test examples looked up at a time.
constexpr size_t kEvaluationRows = 4096;

// The key of the feature of input `i`. It differs from every CriteoKey(), because its argument of
// Mix() is smaller.
uint64_t InputKey(uint32_t i) { return Mix((uint64_t{1} << 48) + i); }

}  // namespace

absl::Status KeyedModel::Fill(const ExampleSet& from, Batch* batch) {
  if (absl::Status status = from->Fetch(batch->ids, &fetched_); !status.ok()) return status;
  index_.Clear();
  batch->keys.resize(1);
  std::vector<uint64_t>* keys = batch->keys.data();
  keys->clear();
  batch->begin.assign(1, 0);
  batch->places.clear();
  batch->values.clear();
  batch->labels = fetched_.labels;
  batch->inputs.clear();
  for (size_t r = 0; r < fetched_.rows(); ++r) {
    for (uint64_t k = fetched_.row_begin[r]; k < fetched_.row_begin[r + 1]; ++k) {
      batch->places.push_back(index_.Place(fetched_.keys[k], keys));
      batch->values.push_back(fetched_.values.empty() ? 1.0f : fetched_.values[k]);
    }
    const float* inputs = fetched_.inputs.data() + r * fetched_.input_width;
    if (inputs_ == Inputs::kAsInputs) {
      batch->inputs.insert(batch->inputs.end(), inputs, inputs + fetched_.input_width);
    } else {
      for (uint32_t i = 0; i < fetched_.input_width; ++i) {
        if (inputs[i] == 0) continue;
        batch->places.push_back(index_.Place(InputKey(i), keys));
        batch->values.push_back(inputs[i]);
      }
    }
    batch->begin.push_back(static_cast<uint32_t>(batch->places.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> KeyedModel::Gradient(const Batch& batch, double scale,
                                            const Parameters& parameters,
                                            const Gradients& gradients) {
  const float* rows = parameters.rows[0];
  float* row_gradients = gradients.rows[0];
  std::fill_n(gradients.dense, layout_.floats(), 0.0f);
  std::fill_n(row_gradients, batch.keys[0].size() * table_.dim, 0.0f);
  scores_.resize(batch.ids.size());
  errors_.resize(batch.ids.size());
  Forward(batch, parameters, &scores_);
  double loss = 0;
  for (size_t r = 0; r < batch.ids.size(); ++r) {
    const double label = batch.labels[r];
    loss += Softplus(scores_[r]) - label * scores_[r];
    errors_[r] = scale * (Sigmoid(scores_[r]) - label);
  }
  Backward(batch, parameters, errors_, gradients);
  if (l2_ > 0) {
    const auto weight = static_cast<float>(l2_ * scale);
    for (const uint32_t place : batch.places) {
      const size_t at = size_t{place} * table_.dim;
      for (size_t i = at; i < at + table_.dim; ++i) row_gradients[i] += weight * rows[i];
    }
  }
  return loss;
}

absl::StatusOr<Quality> KeyedModel::Evaluate(const Evaluation& evaluation) {
  if (!test_) return absl::FailedPreconditionError("no test data was given");
  const uint64_t examples = std::min<uint64_t>((*test_)->rows(), evaluation.limit);
  ClassifierMeasure measure;
  std::vector<float> probabilities;
  Batch batch;
  for (uint64_t done = 0; done < examples;) {
    const size_t n = std::min<uint64_t>(kEvaluationRows, examples - done);
    batch.ids.resize(n);
    std::iota(batch.ids.begin(), batch.ids.end(), done);
    if (absl::Status status = Fill(*test_, &batch); !status.ok()) return status;
    const absl::StatusOr<Rows> rows = evaluation.rows(batch);
    if (!rows.ok()) return rows.status();
    scores_.resize(n);
    Forward(batch, {evaluation.parameters, *rows}, &scores_);
    probabilities.resize(n);
    for (size_t r = 0; r < n; ++r) probabilities[r] = static_cast<float>(Sigmoid(scores_[r]));
    measure.Add(probabilities, batch.labels);
    WritePredictions(probabilities, evaluation.predictions);
    done += n;
  }
  return measure.Result();
}

}  // namespace verbena::worker
