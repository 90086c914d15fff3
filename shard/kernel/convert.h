// Converts blocks of f32 from and to the two 16-bit types, like client/include/verbena/half.h for
// single numbers.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. From f32: rounds to nearest, ties to even, on every instruction set. A NaN stays a NaN; a
//     value that is too large becomes an infinity. To f32: exact.
#ifndef VERBENA_SHARD_KERNEL_CONVERT_H_
#define VERBENA_SHARD_KERNEL_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "proto/wire/record.h"
#include "shard/codec/isa.h"

namespace verbena::shard {

void FloatsFromBf16(Isa isa, const uint16_t* in, float* out, size_t n);
void FloatsFromF16(Isa isa, const uint16_t* in, float* out, size_t n);
void Bf16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n);
void F16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n);

// From and to `type`, which is kBf16 or kF16.
void Widen(Isa isa, ElementType type, const uint16_t* in, float* out, size_t n);
void Round(Isa isa, ElementType type, const float* in, uint16_t* out, size_t n);

// Stochastic rounding: the mean of the results is the number. A random number is added to the bits
// that `type` does not have, and carries into those that it has. The result for element i depends
// on `seed` and i alone. Below the least normal number of binary16, rounds to nearest.
void RoundByChance(Isa isa, ElementType type, uint64_t seed, const float* in, uint16_t* out,
                   size_t n);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_CONVERT_H_
