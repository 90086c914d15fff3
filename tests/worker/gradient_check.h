// Compares a model's gradient with finite differences of its loss.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_
#define VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/models/model.h"
#include "worker/train/random.h"

namespace verbena::worker {

inline void FillRandom(Random* random, double scale, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>((2 * random->Uniform() - 1) * scale);
  }
}

inline std::vector<float> RandomArena(const Layout& layout, double scale, uint64_t seed) {
  std::vector<float> arena(layout.floats());
  Random random(seed);
  for (size_t t = 0; t < layout.size(); ++t) {
    FillRandom(&random, scale, arena.data() + layout.offset(t), layout[t].elements());
  }
  return arena;
}

// Parameters and gradient of one batch, rows included.
class GradientAt {
 public:
  GradientAt(Model* model, const std::vector<uint64_t>& ids, uint64_t seed = 7)
      : model_(*model), parameters(RandomArena(model->layout(), 0.3, seed)) {
    batch.ids = ids;
    REQUIRE(model->Prepare(&batch).ok());
    gradient.resize(parameters.size());
    Random random(seed + 1);
    for (size_t t = 0; t < model->tables().size(); ++t) {
      const size_t floats = batch.keys[t].size() * model->tables()[t].dim;
      rows.emplace_back(floats);
      FillRandom(&random, 0.3, rows.back().data(), floats);
      row_gradients.emplace_back(floats);
    }
  }

  // Returns the loss.
  double Compute(double scale) {
    std::vector<const float*> from;
    std::vector<float*> to;
    for (const std::vector<float>& of_table : rows) from.push_back(of_table.data());
    for (std::vector<float>& of_table : row_gradients) to.push_back(of_table.data());
    return model_
        .Gradient(batch, scale, {parameters.data(), from}, {gradient.data(), absl::MakeSpan(to)})
        .value();
  }

 private:
  Model& model_;

 public:
  Batch batch;
  std::vector<float> parameters, gradient;
  std::vector<std::vector<float>> rows, row_gradients;  // by table
};

// The loss of a dense model, and its gradient in *gradient.
inline double DenseGradient(Model* model, const std::vector<uint64_t>& ids, double scale,
                            const std::vector<float>& parameters, std::vector<float>* gradient) {
  Batch batch;
  batch.ids = ids;
  REQUIRE(model->Prepare(&batch).ok());
  return model->Gradient(batch, scale, {parameters.data(), {}}, {gradient->data(), {}}).value();
}

// `penalty` is the part of the loss that Gradient() does not return. Checks the elements of every
// tensor and table whose derivative is largest, and as many others.
inline void CheckGradient(Model* model, const std::vector<uint64_t>& ids, double step,
                          double tolerance, const std::function<double(const float*)>& penalty) {
  const Layout& layout = model->layout();
  const double scale = 1.0 / static_cast<double>(ids.size());
  GradientAt at(model, ids);
  at.Compute(scale);
  GradientAt moved(model, ids);
  const auto loss_at = [&](float* where, float value) {
    const float old = std::exchange(*where, value);
    const double loss = scale * moved.Compute(scale) + penalty(moved.parameters.data());
    *where = old;
    return loss;
  };
  Random random(11);
  const auto check = [&](const std::string& name, float* parameters, const float* gradient,
                         size_t n) {
    const auto* greatest = std::max_element(
        gradient, gradient + n, [](float a, float b) { return std::abs(a) < std::abs(b); });
    REQUIRE(*greatest != 0);
    for (int k = 0; k < 12; ++k) {
      const size_t i = k == 0 ? static_cast<size_t>(greatest - gradient) : random.Below(n);
      const auto up = static_cast<float>(parameters[i] + step);
      const auto down = static_cast<float>(parameters[i] - step);
      const double numeric = (loss_at(&parameters[i], up) - loss_at(&parameters[i], down)) /
                             (static_cast<double>(up) - static_cast<double>(down));
      INFO(name << "[" << i << "]: " << gradient[i] << ", numeric " << numeric);
      CHECK(std::abs(numeric - gradient[i]) <= tolerance * std::abs(*greatest));
    }
  };
  for (size_t t = 0; t < layout.size(); ++t) {
    check(layout[t].name, moved.parameters.data() + layout.offset(t),
          at.gradient.data() + layout.offset(t), layout[t].elements());
  }
  for (size_t t = 0; t < at.rows.size(); ++t) {
    check(model->tables()[t].name, moved.rows[t].data(), at.row_gradients[t].data(),
          at.rows[t].size());
  }
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_
