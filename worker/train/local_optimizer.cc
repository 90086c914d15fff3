#include "worker/train/local_optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/train/random.h"

namespace verbena::worker {
namespace {

// The defaults of the servers' optimizers.
constexpr float kMomentum = 0.9f;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr float kEpsilon = 1e-8f;

}  // namespace

absl::StatusOr<LocalOptimizer> LocalOptimizer::Create(std::string_view name, double rate) {
  Kind kind;
  if (name == "sgd") {
    kind = Kind::kSgd;
  } else if (name == "momentum") {
    kind = Kind::kMomentum;
  } else if (name == "adam") {
    kind = Kind::kAdam;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("the local store has no optimizer \"",
                                                   std::string(name),
                                                   "\"; it has: sgd, momentum, adam"));
  }
  if (!(rate > 0) || !std::isfinite(rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate ", rate, " is not allowed; it must be positive and finite"));
  }
  return LocalOptimizer(kind, rate);
}

void LocalOptimizer::Apply(uint64_t count, const float* gradient, size_t n, float* parameters,
                           float* first, float* second) const {
  switch (kind_) {
    case Kind::kSgd:
      for (size_t i = 0; i < n; ++i) parameters[i] -= rate_ * gradient[i];
      return;
    case Kind::kMomentum:
      for (size_t i = 0; i < n; ++i) {
        first[i] = kMomentum * first[i] + gradient[i];
        parameters[i] -= rate_ * first[i];
      }
      return;
    case Kind::kAdam: {  // Kingma and Ba, 2015, algorithm 1
      const auto t = static_cast<double>(count);
      const auto correct1 = static_cast<float>(1 / (1 - std::pow(kBeta1, t)));
      const auto correct2 = static_cast<float>(1 / (1 - std::pow(kBeta2, t)));
      constexpr auto beta1 = static_cast<float>(kBeta1);
      constexpr auto beta2 = static_cast<float>(kBeta2);
      for (size_t i = 0; i < n; ++i) {
        const float g = gradient[i];
        first[i] = beta1 * first[i] + (1 - beta1) * g;
        second[i] = beta2 * second[i] + (1 - beta2) * g * g;
        parameters[i] -=
            rate_ * (first[i] * correct1) / (std::sqrt(second[i] * correct2) + kEpsilon);
      }
      return;
    }
  }
}

void LocalInitialize(Tensor::Initial initial, double scale, uint64_t seed, float* out, size_t n) {
  Random random(seed);
  switch (initial) {
    case Tensor::Initial::kZeros:
      std::fill_n(out, n, 0.0f);
      return;
    case Tensor::Initial::kUniform:
      for (size_t i = 0; i < n; ++i) {
        out[i] = static_cast<float>((2 * random.Uniform() - 1) * scale);
      }
      return;
    case Tensor::Initial::kNormal:  // Box and Muller, 1958
      for (size_t i = 0; i < n; ++i) {
        const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
        const double angle = 2 * std::numbers::pi * random.Uniform();
        out[i] = static_cast<float>(radius * std::cos(angle) * scale);
      }
      return;
  }
}

}  // namespace verbena::worker
