#include "worker/models/factorization_machine.h"

#include <algorithm>
#include <utility>

namespace verbena::worker {
namespace {

// Small, so that training starts near the linear model; not zero, where all factors' gradients are.
constexpr double kInitialScale = 0.01;

}  // namespace

FactorizationMachine::FactorizationMachine(ExampleSet train, std::optional<ExampleSet> test,
                                           uint32_t factors, double l2)
    : KeyedModel(std::move(train), std::move(test), l2, Inputs::kAsFeatures) {
  EmbeddingTable table = {factors == 0 ? "weights" : "factors", 1 + factors};
  if (factors > 0) {
    table.initial = Tensor::Initial::kNormal;
    table.scale = kInitialScale;
  }
  Define(Layout({{"bias", {1}}}), std::move(table));
}

void FactorizationMachine::Forward(const Batch& batch, const Parameters& parameters,
                                   std::vector<double>* scores) {
  const size_t factors = dim() - 1;
  const size_t examples = batch.begin.size() - 1;
  sums_.assign(examples * factors, 0.0f);
  for (size_t r = 0; r < examples; ++r) {
    float* sums = sums_.data() + r * factors;
    double score = parameters.dense[0];
    // 2 sum_{i<j} (v_i . v_j) x_i x_j = |sum_i v_i x_i|^2 - sum_i |v_i x_i|^2: linear in the
    // features (Rendle, lemma 3.1).
    double own = 0;
    for (uint32_t k = batch.begin[r]; k < batch.begin[r + 1]; ++k) {
      const float* row = parameters.rows[0] + size_t{batch.places[k]} * dim();
      const float value = batch.values[k];
      score += static_cast<double>(row[0]) * value;
      float squares = 0;
      for (size_t f = 0; f < factors; ++f) {
        const float product = row[1 + f] * value;
        sums[f] += product;
        squares += product * product;
      }
      own += squares;
    }
    double all = 0;
    for (size_t f = 0; f < factors; ++f) all += static_cast<double>(sums[f]) * sums[f];
    (*scores)[r] = score + (all - own) / 2;
  }
}

void FactorizationMachine::Backward(const Batch& batch, const Parameters& parameters,
                                    const std::vector<double>& errors, const Gradients& gradients) {
  const size_t factors = dim() - 1;
  double bias = 0;
  for (size_t r = 0; r < errors.size(); ++r) {
    const float* sums = sums_.data() + r * factors;
    bias += errors[r];
    for (uint32_t k = batch.begin[r]; k < batch.begin[r + 1]; ++k) {
      const size_t at = size_t{batch.places[k]} * dim();
      const float* row = parameters.rows[0] + at;
      float* out = gradients.rows[0] + at;
      const float value = batch.values[k];
      const float slope = static_cast<float>(errors[r]) * value;
      out[0] += slope;
      for (size_t f = 0; f < factors; ++f) out[1 + f] += slope * (sums[f] - row[1 + f] * value);
    }
  }
  gradients.dense[0] += static_cast<float>(bias);
}

}  // namespace verbena::worker
