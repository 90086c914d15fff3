// The arithmetic of a reduction over one block: sum in a fixed order, divide, look for NaN and Inf.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. SumBlock() rounds as ((s0 + s1) + s2) + ..., whatever the instruction set.
#ifndef VERBENA_SHARD_KERNEL_REDUCE_H_
#define VERBENA_SHARD_KERNEL_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "shard/kernel/isa.h"

namespace verbena::shard {

// out[i] = ((sources[0][first + i] + sources[1][first + i]) + ...) for i < n. At least one source;
// out may be sources[0] + first.
void SumBlock(Isa isa, absl::Span<const float* const> sources, size_t first, float* out, size_t n);

// out[i] = in[i] / divisor; out may be in.
void DivideBlock(Isa isa, const float* in, float divisor, float* out, size_t n);

bool HasNonFinite(Isa isa, const float* values, size_t n);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_REDUCE_H_
