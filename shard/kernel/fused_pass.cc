#include "shard/kernel/fused_pass.h"

#include <algorithm>
#include <array>

#include "shard/kernel/reduce.h"

namespace verbena::shard {
namespace {

// 8 KiB of sum beside the blocks of parameters and of Adam's two arrays: half a 32 KiB L1.
constexpr size_t kBlock = 2048;
constexpr std::array<float, kBlock> kZeros = {};

}  // namespace

void Accumulate(Isa isa, absl::Span<const float* const> sources, float* accumulator, size_t n) {
  for (size_t i = 0; i < n; i += kBlock) {
    SumBlock(isa, sources, i, accumulator + i, std::min(kBlock, n - i));
  }
}

void ReduceAndApply(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                    absl::Span<const float* const> sources, float divisor, const float* in,
                    float* out, float* state, size_t stride, size_t n) {
  alignas(64) float sum[kBlock];
  float* arrays[kMaxStateArrays] = {};
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t count = std::min(kBlock, n - i);
    const float* gradient = kZeros.data();
    if (sources.size() == 1) {
      gradient = sources[0] + i;
    } else if (!sources.empty()) {
      SumBlock(isa, sources, i, sum, count);
      gradient = sum;
    }
    if (divisor != 1 && !sources.empty()) {
      DivideBlock(isa, gradient, divisor, sum, count);
      gradient = sum;
    }
    for (size_t a = 0; a < optimizer.state_arrays(); ++a) arrays[a] = state + a * stride + i;
    optimizer.Apply(isa, scalars, in + i, out + i, arrays, gradient, count);
  }
}

}  // namespace verbena::shard
