#include "worker/local_store.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "worker/random.h"

namespace verbena::worker {
namespace {

// The defaults of the servers' optimizers.
constexpr float kMomentum = 0.9f;
constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.999;
constexpr float kEpsilon = 1e-8f;

}  // namespace

absl::StatusOr<std::unique_ptr<LocalStore>> LocalStore::Create(const Layout& layout,
                                                               const TrainingSpec& spec) {
  Kind kind;
  if (spec.optimizer == "sgd") {
    kind = Kind::kSgd;
  } else if (spec.optimizer == "momentum") {
    kind = Kind::kMomentum;
  } else if (spec.optimizer == "adam") {
    kind = Kind::kAdam;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "the local store has no optimizer \"", spec.optimizer, "\"; it has: sgd, momentum, adam"));
  }
  if (!(spec.rate > 0) || !std::isfinite(spec.rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate ", spec.rate, " is not allowed; it must be positive and finite"));
  }
  return std::unique_ptr<LocalStore>(new LocalStore(layout, spec, kind));
}

LocalStore::LocalStore(const Layout& layout, const TrainingSpec& spec, Kind kind)
    : layout_(layout), spec_(spec), kind_(kind) {
  gradient_.resize(layout.floats());
  parameters_.resize(layout.floats());
  master_.resize(layout.floats());
  if (kind != Kind::kSgd) first_.resize(layout.floats());
  if (kind == Kind::kAdam) second_.resize(layout.floats());
  pushed_.resize(layout.size());
  statistics_.transport = "local";
  Initialize();
}

void LocalStore::Initialize() {
  for (size_t i = 0; i < layout_.size(); ++i) {
    const Tensor& tensor = layout_[i];
    Random random(spec_.seed * 0x9e3779b97f4a7c15u + i);
    float* out = master_.data() + layout_.offset(i);
    for (uint64_t k = 0; k < tensor.elements(); ++k) {
      switch (tensor.initial) {
        case Tensor::Initial::kZeros:
          out[k] = 0;
          break;
        case Tensor::Initial::kUniform:
          out[k] = static_cast<float>((2 * random.Uniform() - 1) * tensor.scale);
          break;
        case Tensor::Initial::kNormal: {  // Box and Muller, 1958
          const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
          const double angle = 2 * std::numbers::pi * random.Uniform();
          out[k] = static_cast<float>(radius * std::cos(angle) * tensor.scale);
          break;
        }
      }
    }
  }
}

void LocalStore::Reset(const float* parameters) {
  std::copy_n(parameters, layout_.floats(), master_.begin());
  std::fill(first_.begin(), first_.end(), 0.0f);
  std::fill(second_.begin(), second_.end(), 0.0f);
  step_ = 0;
}

void LocalStore::Push(size_t tensor) {
  pushed_[tensor] = true;
  statistics_.bytes_pushed += layout_[tensor].elements() * sizeof(float);
}

void LocalStore::Pull(size_t tensor) {
  std::copy_n(master_.data() + layout_.offset(tensor), layout_[tensor].elements(),
              parameters_.data() + layout_.offset(tensor));
  statistics_.bytes_pulled += layout_[tensor].elements() * sizeof(float);
}

void LocalStore::EndStep() {
  ++step_;
  for (size_t i = 0; i < layout_.size(); ++i) {
    if (!pushed_[i]) {  // what was not pushed counts as zero
      std::fill_n(gradient_.data() + layout_.offset(i), layout_[i].elements(), 0.0f);
    }
    Apply(i);
    pushed_[i] = false;
  }
}

void LocalStore::Apply(size_t tensor) {
  const uint64_t first = layout_.offset(tensor);
  const uint64_t last = first + layout_[tensor].elements();
  const float rate = static_cast<float>(spec_.rate);
  switch (kind_) {
    case Kind::kSgd:
      for (uint64_t i = first; i < last; ++i) master_[i] -= rate * gradient_[i];
      return;
    case Kind::kMomentum:
      for (uint64_t i = first; i < last; ++i) {
        first_[i] = kMomentum * first_[i] + gradient_[i];
        master_[i] -= rate * first_[i];
      }
      return;
    case Kind::kAdam: {  // Kingma and Ba, 2015, algorithm 1
      const auto t = static_cast<double>(step_);
      const auto correct1 = static_cast<float>(1 / (1 - std::pow(kBeta1, t)));
      const auto correct2 = static_cast<float>(1 / (1 - std::pow(kBeta2, t)));
      constexpr auto beta1 = static_cast<float>(kBeta1);
      constexpr auto beta2 = static_cast<float>(kBeta2);
      for (uint64_t i = first; i < last; ++i) {
        const float g = gradient_[i];
        first_[i] = beta1 * first_[i] + (1 - beta1) * g;
        second_[i] = beta2 * second_[i] + (1 - beta2) * g * g;
        master_[i] -= rate * (first_[i] * correct1) / (std::sqrt(second_[i] * correct2) + kEpsilon);
      }
      return;
    }
  }
}

}  // namespace verbena::worker
