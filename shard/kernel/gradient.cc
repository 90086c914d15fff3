#include "shard/kernel/gradient.h"

#include <algorithm>

namespace verbena::shard {
namespace {

// ivdep: `out` may be an input, but only at the same index, which no vector width can reorder.
VERBENA_KERNEL_BODY ClipBody(const float* in, float limit, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    // Both comparisons are false for a NaN, which therefore stays.
    const float below = in[i] > limit ? limit : in[i];
    out[i] = below < -limit ? -limit : below;
  }
}
VERBENA_KERNEL_BODY ScaleBody(const float* in, float factor, float* out, size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = in[i] * factor;
}
VERBENA_KERNEL_BODY AddScaledBody(const float* a, float factor, const float* b, float* out,
                                  size_t n) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) out[i] = a[i] + factor * b[i];
}
// n is a multiple of the lanes. The copy lets the sums stay in registers.
VERBENA_KERNEL_BODY SquaresBody(const float* in, double* lanes, size_t n) {
  double sums[SquaredNorm::kLanes];
  for (size_t k = 0; k < SquaredNorm::kLanes; ++k) sums[k] = lanes[k];
  for (size_t i = 0; i < n; i += SquaredNorm::kLanes) {
    for (size_t k = 0; k < SquaredNorm::kLanes; ++k) {
      const auto x = static_cast<double>(in[i + k]);
      sums[k] += x * x;
    }
  }
  for (size_t k = 0; k < SquaredNorm::kLanes; ++k) lanes[k] = sums[k];
}

VERBENA_KERNEL(Clip, (const float* in, float limit, float* out, size_t n), (in, limit, out, n));
VERBENA_KERNEL(Scale, (const float* in, float factor, float* out, size_t n), (in, factor, out, n));
VERBENA_KERNEL(AddScaled, (const float* a, float factor, const float* b, float* out, size_t n),
               (a, factor, b, out, n));
VERBENA_KERNEL(Squares, (const float* in, double* lanes, size_t n), (in, lanes, n));

}  // namespace

void ClipBlock(Isa isa, const float* in, float limit, float* out, size_t n) {
  Clip[static_cast<size_t>(isa)](in, limit, out, n);
}

void ScaleBlock(Isa isa, const float* in, float factor, float* out, size_t n) {
  Scale[static_cast<size_t>(isa)](in, factor, out, n);
}

void AddScaledBlock(Isa isa, const float* a, float factor, const float* b, float* out, size_t n) {
  AddScaled[static_cast<size_t>(isa)](a, factor, b, out, n);
}

void SquaredNorm::Add(Isa isa, const float* block, size_t n) {
  const size_t whole = n / kLanes * kLanes;
  Squares[static_cast<size_t>(isa)](block, lanes_, whole);
  if (whole == n) return;
  // Zeros fill the last row: adding them changes no sum.
  float last[kLanes] = {};
  std::copy(block + whole, block + n, last);
  Squares[static_cast<size_t>(isa)](last, lanes_, kLanes);
}

double SquaredNorm::Total() const {
  double tree[kLanes];
  std::copy(lanes_, lanes_ + kLanes, tree);
  for (size_t width = kLanes; width > 1; width /= 2) {
    for (size_t k = 0; k < width / 2; ++k) tree[k] = tree[2 * k] + tree[2 * k + 1];
  }
  return tree[0];
}

}  // namespace verbena::shard
