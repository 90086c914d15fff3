// Compares a model's gradient with finite differences of its loss.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_
#define VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <vector>

#include "worker/model.h"
#include "worker/random.h"

namespace verbena::worker {

inline std::vector<float> RandomArena(const Layout& layout, double scale, uint64_t seed) {
  std::vector<float> arena(layout.floats());
  Random random(seed);
  for (size_t t = 0; t < layout.size(); ++t) {
    for (uint64_t i = 0; i < layout[t].elements(); ++i) {
      arena[layout.offset(t) + i] = static_cast<float>((2 * random.Uniform() - 1) * scale);
    }
  }
  return arena;
}

// `penalty` is the part of the loss that Gradient() does not return. Checks the elements of every
// tensor whose derivative is largest, and as many others.
inline void CheckGradient(Model* model, const std::vector<uint32_t>& ids, double step,
                          double tolerance, const std::function<double(const float*)>& penalty) {
  const Layout& layout = model->layout();
  std::vector<float> parameters = RandomArena(layout, 0.3, 7);
  std::vector<float> gradient(layout.floats()), unused(layout.floats());
  const double scale = 1.0 / static_cast<double>(ids.size());
  model->Gradient(ids, scale, parameters.data(), gradient.data());
  const auto loss_at = [&](float* where, float value) {
    const float old = std::exchange(*where, value);
    const double loss = scale * model->Gradient(ids, scale, parameters.data(), unused.data()) +
                        penalty(parameters.data());
    *where = old;
    return loss;
  };
  Random random(11);
  for (size_t t = 0; t < layout.size(); ++t) {
    const auto first = static_cast<std::ptrdiff_t>(layout.offset(t));
    const auto last = first + static_cast<std::ptrdiff_t>(layout[t].elements());
    double greatest = 0;
    std::ptrdiff_t at = first;
    for (std::ptrdiff_t i = first; i < last; ++i) {
      if (std::abs(gradient[static_cast<size_t>(i)]) > greatest) {
        greatest = std::abs(gradient[static_cast<size_t>(i)]);
        at = i;
      }
    }
    REQUIRE(greatest > 0);
    for (int k = 0; k < 12; ++k) {
      const auto i =
          static_cast<size_t>(k == 0 ? at
                                     : first + static_cast<std::ptrdiff_t>(random.Below(
                                                   static_cast<uint64_t>(last - first))));
      const auto up = static_cast<float>(parameters[i] + step);
      const auto down = static_cast<float>(parameters[i] - step);
      const double numeric = (loss_at(&parameters[i], up) - loss_at(&parameters[i], down)) /
                             (static_cast<double>(up) - static_cast<double>(down));
      INFO(layout[t].name << "[" << i - layout.offset(t) << "]: " << gradient[i] << ", numeric "
                          << numeric);
      CHECK(std::abs(numeric - gradient[i]) <= tolerance * greatest);
    }
  }
}

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_GRADIENT_CHECK_H_
