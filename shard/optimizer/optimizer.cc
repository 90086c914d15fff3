#include "shard/optimizer/optimizer.h"

#include <algorithm>
#include <cmath>

#include "proto/wire/record.h"

namespace verbena::shard {
namespace {

// The adjusted gradient, in addition to the fused pass's blocks: 4 KiB of the first-level cache.
constexpr size_t kBlock = 1024;
static_assert(kBlock >= kMaxRowElements, "a row-wise optimizer sees its row in one block");

}  // namespace

ApplyScalars Optimizer::Prepare(uint64_t step, uint64_t t) const {
  const double rate = terms_.schedule.RateAt(step);
  ApplyScalars scalars = Scalars(rate, t);
  scalars.rate_changes = terms_.changed || !terms_.schedule.constant();
  // Subtracted as decay * w: a factor of 1 - decay, rounded to f32, loses most of a small decay.
  scalars.decay = static_cast<float>(rate * terms_.decoupled_weight_decay);
  return scalars;
}

bool Optimizer::ignores_zero() const {
  return terms_.weight_decay == 0 && terms_.decoupled_weight_decay == 0 && StaysAtZero();
}

const float* Optimizer::Adjust(Isa isa, const ApplyScalars& scalars, const float* in,
                               const float* gradient, float* room, size_t n) const {
  const float* g = gradient;
  if (terms_.clip_value != 0) {
    ClipBlock(isa, g, terms_.clip_value, room, n);
    g = room;
  }
  if (scalars.gradient_scale != 1) {
    ScaleBlock(isa, g, scalars.gradient_scale, room, n);
    g = room;
  }
  if (terms_.weight_decay != 0) {
    AddScaledBlock(isa, g, terms_.weight_decay, in, room, n);
    g = room;
  }
  return g;
}

void Optimizer::Apply(Isa isa, const ApplyScalars& scalars, const float* in, float* out,
                      float* const* state, const float* gradient, size_t n) const {
  const bool decoupled = terms_.decoupled_weight_decay != 0;
  if (terms_.clip_value == 0 && scalars.gradient_scale == 1 && terms_.weight_decay == 0 &&
      !decoupled) {
    return Update(isa, scalars, in, out, state, gradient, n);
  }
  alignas(64) float adjusted[kBlock];
  float* arrays[kMaxStateArrays] = {};
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    const float* w = in + i;
    const float* g = Adjust(isa, scalars, w, gradient + i, adjusted, count);
    if (decoupled) {
      // Not w * (1 - decay): f32 would round most of a small decay away.
      AddScaledBlock(isa, w, -scalars.decay, w, out + i, count);
      w = out + i;
    }
    for (size_t a = 0; a < state_arrays(); ++a) arrays[a] = state[a] + i;
    Update(isa, scalars, w, out + i, arrays, g, count);
  }
}

void Optimizer::MeasureTrust(Isa isa, const ApplyScalars& scalars, const float* in,
                             const float* const* state, const float* gradient, size_t n,
                             SquaredNorm* weights, SquaredNorm* update) const {
  static_assert(kBlock % SquaredNorm::kLanes == 0);
  alignas(64) float adjusted[kBlock];
  alignas(64) float direction[kBlock];
  const float* arrays[kMaxStateArrays] = {};
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    const float* g = Adjust(isa, scalars, in + i, gradient + i, adjusted, count);
    for (size_t a = 0; a < state_arrays(); ++a) arrays[a] = state[a] + i;
    Direction(isa, scalars, in + i, arrays, g, direction, count);
    weights->Add(isa, in + i, count);
    update->Add(isa, direction, count);
  }
}

float GradientScale(double squared_norm, double limit) {
  const double norm = std::sqrt(squared_norm);
  return norm > limit ? static_cast<float>(limit / norm) : 1.0f;
}

float TrustRatio(double squared_weights, double squared_update) {
  const double ratio = std::sqrt(squared_weights) / std::sqrt(squared_update);
  return ratio > 0 && std::isfinite(static_cast<float>(ratio)) ? static_cast<float>(ratio) : 1.0f;
}

}  // namespace verbena::shard
