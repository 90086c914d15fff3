// One pass over a chunk: sum the contributions and, in the last run of a step, apply the optimizer
// to each block while its sum is in the first-level cache.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SHARD_KERNEL_FUSED_PASS_H_
#define VERBENA_SHARD_KERNEL_FUSED_PASS_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "shard/codec/isa.h"
#include "shard/kernel/reduce.h"
#include "shard/optimizer/optimizer.h"

namespace verbena::shard {

// accumulator = sources[0] + sources[1] + ... in this order; it may be sources[0].
void Accumulate(Isa isa, absl::Span<const Source> sources, float* accumulator, size_t n);

// A second destination of the result, in 16 bits.
struct RoundedCopy {
  uint16_t* to = nullptr;  // null: nowhere
  ElementType type = ElementType::kNone;
};

// out = optimizer(in, sum of sources / divisor). No source: the gradient is zero. `state` holds the
// optimizer's arrays, `stride` elements apart. out may be in. Clipping by the chunk's norm costs a
// pass over the sources before this one.
void ReduceAndApply(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                    absl::Span<const Source> sources, float divisor, const float* in, float* out,
                    float* state, size_t stride, size_t n, const RoundedCopy& rounded = {});

// After parameters were written in place of what ReduceAndApply() has left: see
// Optimizer::Assigned().
void FollowAssigned(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                    const float* parameters, float* state, size_t stride, size_t n);

// The squared L2 norm of sum of sources / divisor.
double SquaredGradient(Isa isa, absl::Span<const Source> sources, float divisor, size_t n);

// For an optimizer with a trust ratio: the amounts that ReduceAndApply() with the same arguments
// adds to the squared L2 norms of the weights and of the update. Changes nothing.
struct TrustParts {
  double weights = 0;
  double update = 0;
};
TrustParts MeasureTrust(Isa isa, const Optimizer& optimizer, const ApplyScalars& scalars,
                        absl::Span<const Source> sources, float divisor, const float* in,
                        const float* state, size_t stride, size_t n);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_FUSED_PASS_H_
