// Steps between a gradient's reduction and the optimizer's formula: clip, scale, weight decay.
//
// **Thread safety**: pure functions; a SquaredNorm has one owner.
//
// Invariants:
//  1. SquaredNorm adds in one fixed order, whatever the instruction set: element i goes to lane
//     i % 16, lanes are added as a tree of neighbours.
#ifndef VERBENA_SHARD_KERNEL_GRADIENT_H_
#define VERBENA_SHARD_KERNEL_GRADIENT_H_

#include <cstddef>

#include "shard/codec/isa.h"

namespace verbena::shard {

// out[i] = in[i] clamped to [-limit, limit]; a NaN stays a NaN. out may be in.
void ClipBlock(Isa isa, const float* in, float limit, float* out, size_t n);

// out[i] = in[i] * factor; out may be in.
void ScaleBlock(Isa isa, const float* in, float factor, float* out, size_t n);

// out[i] = a[i] + factor * b[i]; out may be a or b.
void AddScaledBlock(Isa isa, const float* a, float factor, const float* b, float* out, size_t n);

// The sum of squares of a vector that comes in blocks, in double precision: the square of an f32 is
// exact there, and no f32 vector overflows.
class SquaredNorm {
 public:
  static constexpr size_t kLanes = 16;

  // Every block but the last has a multiple of kLanes elements.
  void Add(Isa isa, const float* block, size_t n);
  double Total() const;

 private:
  double lanes_[kLanes] = {};
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_GRADIENT_H_
