#include "shard/kernel/fused_pass.h"

#include <algorithm>
#include <array>

#include "shard/kernel/convert.h"
#include "shard/kernel/gradient.h"
#include "shard/kernel/reduce.h"

namespace verbena::shard {
namespace {

// 8 KiB for the sum, with the blocks of parameters and of Adam's two arrays: half a 32 KiB L1.
constexpr size_t kBlock = 2048;
constexpr std::array<float, kBlock> kZeros = {};
static_assert(kBlock % SquaredNorm::kLanes == 0 && kBlock % kCodecBlock == 0);
static_assert(kBlock >= kMaxRowElements, "a row-wise optimizer sees its row in one block");

// The gradient of a block: in `sum`, or where it lies already.
const float* ReduceBlock(Isa isa, absl::Span<const Source> sources, float divisor, size_t first,
                         float* sum, size_t n) {
  if (sources.empty()) return kZeros.data();
  const float* gradient = sum;
  if (sources.size() == 1 && sources[0].f32()) {
    gradient = sources[0].floats() + first;
  } else {
    SumBlock(isa, sources, first, sum, n);
  }
  if (divisor != 1) {
    DivideBlock(isa, gradient, divisor, sum, n);
    gradient = sum;
  }
  return gradient;
}

// With the scale of clipping by the chunk's norm, where the optimizer has that.
ApplyScalars WithScale(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                       absl::Span<const Source> sources, float divisor, size_t n) {
  ApplyScalars with_scale = scalars;
  if (optimizer.clip_chunk_norm() > 0) {
    // The gradient is worked out once more afterwards: that needs no memory for a whole chunk.
    with_scale.gradient_scale =
        GradientScale(SquaredGradient(isa, sources, divisor, n), optimizer.clip_chunk_norm());
  }
  return with_scale;
}

}  // namespace

double SquaredGradient(Isa isa, absl::Span<const Source> sources, float divisor, size_t n) {
  alignas(64) float sum[kBlock];
  SquaredNorm norm;
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    norm.Add(isa, ReduceBlock(isa, sources, divisor, i, sum, count), count);
  }
  return norm.Total();
}

TrustParts MeasureTrust(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                        absl::Span<const Source> sources, float divisor, const float* in,
                        const float* state, size_t stride, size_t n) {
  alignas(64) float sum[kBlock];
  const float* arrays[kMaxStateArrays] = {};
  const ApplyScalars with_scale = WithScale(isa, optimizer, scalars, sources, divisor, n);
  SquaredNorm weights, update;
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    const float* gradient = ReduceBlock(isa, sources, divisor, i, sum, count);
    for (size_t a = 0; a < optimizer.state_arrays(); ++a) arrays[a] = state + a * stride + i;
    optimizer.MeasureTrust(isa, with_scale, in + i, arrays, gradient, count, &weights, &update);
  }
  return {weights.Total(), update.Total()};
}

void Accumulate(Isa isa, absl::Span<const Source> sources, float* accumulator, size_t n) {
  for (size_t i = 0; i < n; i += kBlock) {
    SumBlock(isa, sources, i, accumulator + i, std::min(kBlock, n - i));
  }
}

void ReduceAndApply(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                    absl::Span<const Source> sources, float divisor, const float* in, float* out,
                    float* state, size_t stride, size_t n, const RoundedCopy& rounded) {
  alignas(64) float sum[kBlock];
  float* arrays[kMaxStateArrays] = {};
  const ApplyScalars with_scale = WithScale(isa, optimizer, scalars, sources, divisor, n);
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    const float* gradient = ReduceBlock(isa, sources, divisor, i, sum, count);
    for (size_t a = 0; a < optimizer.state_arrays(); ++a) arrays[a] = state + a * stride + i;
    optimizer.Apply(isa, with_scale, in + i, out + i, arrays, gradient, count);
    if (rounded.to != nullptr) Round(isa, rounded.type, out + i, rounded.to + i, count);
  }
}

void FollowAssigned(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                    const float* parameters, float* state, size_t stride, size_t n) {
  float* arrays[kMaxStateArrays] = {};
  for (size_t a = 0; a < optimizer.state_arrays(); ++a) arrays[a] = state + a * stride;
  optimizer.Assigned(isa, scalars, parameters, arrays, n);
}

}  // namespace verbena::shard
