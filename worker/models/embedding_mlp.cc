#include "worker/models/embedding_mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace verbena::worker {
namespace {

enum : size_t { kHiddenWeights, kHiddenBias, kOutputWeights, kOutputBias };

// Rows of a matrix worked on at once: each element of W that was loaded is used so many times.
constexpr size_t kBlock = 4;

// out[r] += a[r] w, with a [rows, n] and w [n, m], row-major.
void AddProduct(const float* a, const float* w, size_t rows, size_t n, size_t m, float* out) {
  size_t r = 0;
  for (; r + kBlock <= rows; r += kBlock) {
    const float* const a0 = a + r * n;
    float* const o0 = out + r * m;
    for (size_t i = 0; i < n; ++i) {
      const float a00 = a0[i];
      const float a10 = a0[n + i];
      const float a20 = a0[2 * n + i];
      const float a30 = a0[3 * n + i];
      const float* const row = w + i * m;
      for (size_t j = 0; j < m; ++j) {
        o0[j] += a00 * row[j];
        o0[m + j] += a10 * row[j];
        o0[2 * m + j] += a20 * row[j];
        o0[3 * m + j] += a30 * row[j];
      }
    }
  }
  for (; r < rows; ++r) {
    for (size_t i = 0; i < n; ++i) {
      const float* const row = w + i * m;
      for (size_t j = 0; j < m; ++j) out[r * m + j] += a[r * n + i] * row[j];
    }
  }
}

// out += sum over r of a[r]^T d[r], with a [rows, n] and d [rows, m]; out is [n, m].
void AddOuter(const float* a, const float* d, size_t rows, size_t n, size_t m, float* out) {
  size_t r = 0;
  for (; r + kBlock <= rows; r += kBlock) {
    const float* const a0 = a + r * n;
    const float* const d0 = d + r * m;
    for (size_t i = 0; i < n; ++i) {
      const float a00 = a0[i];
      const float a10 = a0[n + i];
      const float a20 = a0[2 * n + i];
      const float a30 = a0[3 * n + i];
      float* const row = out + i * m;
      for (size_t j = 0; j < m; ++j) {
        row[j] += a00 * d0[j] + a10 * d0[m + j] + a20 * d0[2 * m + j] + a30 * d0[3 * m + j];
      }
    }
  }
  for (; r < rows; ++r) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < m; ++j) out[i * m + j] += a[r * n + i] * d[r * m + j];
    }
  }
}

// out[r] = d[r] w^T, by the transpose of w, so that the inner loop goes along memory.
void MultiplyTransposed(const float* d, const float* w, size_t rows, size_t n, size_t m,
                        std::vector<float>* transposed, float* out) {
  transposed->resize(n * m);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) (*transposed)[j * n + i] = w[i * m + j];
  }
  std::fill_n(out, rows * n, 0.0f);
  AddProduct(d, transposed->data(), rows, m, n, out);
}

}  // namespace

EmbeddingMlp::EmbeddingMlp(ExampleSet train, std::optional<ExampleSet> test, uint32_t embedding,
                           uint32_t hidden, double l2)
    : KeyedModel(std::move(train), std::move(test), l2, Inputs::kAsInputs), hidden_(hidden) {
  width_ = size_t{fields()} * embedding + input_width();
  // He et al. (2015): behind a rectifier, activations keep their size.
  const double hidden_scale = std::sqrt(6.0 / static_cast<double>(width_));
  const double output_scale = std::sqrt(6.0 / static_cast<double>(hidden_));
  Layout layout({{"hidden_weights",
                  {width_, hidden_},
                  Tensor::Initial::kUniform,
                  hidden_scale,
                  false,
                  {"", "--hidden"}},
                 {"hidden_bias", {hidden_}},
                 {"output_weights", {hidden_}, Tensor::Initial::kUniform, output_scale},
                 {"output_bias", {1}}});
  Define(std::move(layout),
         {"embedding", embedding, Tensor::Initial::kNormal, 0.05, "--embedding"});
}

void EmbeddingMlp::Forward(const Batch& batch, const Parameters& parameters,
                           std::vector<double>* scores) {
  const size_t examples = batch.begin.size() - 1;
  x_.assign(examples * width_, 0.0f);
  for (size_t r = 0; r < examples; ++r) {
    float* const x = x_.data() + r * width_;
    for (uint32_t k = batch.begin[r]; k < batch.begin[r + 1]; ++k) {
      const float* const row = parameters.rows[0] + size_t{batch.places[k]} * dim();
      float* const bag = x + BagOf(k - batch.begin[r]);
      for (size_t i = 0; i < dim(); ++i) bag[i] += batch.values[k] * row[i];
    }
    std::copy_n(batch.inputs.data() + r * input_width(), input_width(), x + width_ - input_width());
  }
  const float* const bias = parameters.dense + layout().offset(kHiddenBias);
  const float* const output = parameters.dense + layout().offset(kOutputWeights);
  h_.resize(examples * hidden_);
  for (size_t r = 0; r < examples; ++r) std::copy_n(bias, hidden_, h_.data() + r * hidden_);
  AddProduct(x_.data(), parameters.dense + layout().offset(kHiddenWeights), examples, width_,
             hidden_, h_.data());
  for (size_t r = 0; r < examples; ++r) {
    float* const h = h_.data() + r * hidden_;
    double score = parameters.dense[layout().offset(kOutputBias)];
    for (size_t j = 0; j < hidden_; ++j) {
      h[j] = std::max(h[j], 0.0f);
      score += static_cast<double>(h[j]) * output[j];
    }
    (*scores)[r] = score;
  }
}

void EmbeddingMlp::Backward(const Batch& batch, const Parameters& parameters,
                            const std::vector<double>& errors, const Gradients& gradients) {
  const size_t examples = errors.size();
  const float* const weights = parameters.dense + layout().offset(kHiddenWeights);
  const float* const output = parameters.dense + layout().offset(kOutputWeights);
  float* const weights_out = gradients.dense + layout().offset(kHiddenWeights);
  float* const bias_out = gradients.dense + layout().offset(kHiddenBias);
  float* const output_out = gradients.dense + layout().offset(kOutputWeights);
  dh_.resize(examples * hidden_);
  double output_bias = 0;
  for (size_t r = 0; r < examples; ++r) {
    const auto error = static_cast<float>(errors[r]);
    const float* const h = h_.data() + r * hidden_;
    float* const dh = dh_.data() + r * hidden_;
    for (size_t j = 0; j < hidden_; ++j) {
      output_out[j] += error * h[j];
      dh[j] = h[j] > 0 ? error * output[j] : 0.0f;
      bias_out[j] += dh[j];
    }
    output_bias += errors[r];
  }
  gradients.dense[layout().offset(kOutputBias)] += static_cast<float>(output_bias);
  AddOuter(x_.data(), dh_.data(), examples, width_, hidden_, weights_out);
  const auto l2_weight = static_cast<float>(l2() * batch.penalty);
  for (size_t i = 0; i < width_ * hidden_; ++i) weights_out[i] += l2_weight * weights[i];
  for (size_t j = 0; j < hidden_; ++j) output_out[j] += l2_weight * output[j];

  dx_.resize(examples * width_);
  MultiplyTransposed(dh_.data(), weights, examples, width_, hidden_, &transposed_, dx_.data());
  for (size_t r = 0; r < examples; ++r) {
    for (uint32_t k = batch.begin[r]; k < batch.begin[r + 1]; ++k) {
      const float* const bag = dx_.data() + r * width_ + BagOf(k - batch.begin[r]);
      float* const out = gradients.rows[0] + size_t{batch.places[k]} * dim();
      for (size_t i = 0; i < dim(); ++i) out[i] += batch.values[k] * bag[i];
    }
  }
}

}  // namespace verbena::worker
