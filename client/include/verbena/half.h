// 16-bit numbers of tables with dtype bf16 and f16 in a region: bfloat16, the upper half of an f32,
// and IEEE 754 binary16.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. From f32: rounds to the nearest, ties to even. A NaN stays a NaN; a number that is too large
//     becomes an infinity. To f32: exact. Scalar and array functions give the same bits.
#ifndef VERBENA_HALF_H_
#define VERBENA_HALF_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "verbena/export.h"

namespace verbena {

// Converts the bits of a bfloat16 to f32.
constexpr float FloatFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// The bits of the nearest bfloat16.
constexpr uint16_t BFloat16FromFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t upper = bits >> 16;
  const uint32_t rounded = (bits + 0x7fff + (upper & 1)) >> 16;
  // A NaN whose payload is only in the lower half would become an infinity, so it is made quiet.
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? upper | 0x40 : rounded);
}

// Converts the bits of a binary16 to f32.
constexpr float FloatFromHalf(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  // The exponent bias is 127 instead of 15.
  const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000;
  // Below 2^-14: a multiple of 2^-24.
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t all = magnitude >= 0x7c00   ? special
                       : magnitude >= 0x0400 ? normal
                                             : std::bit_cast<uint32_t>(small);
  return std::bit_cast<float>(all | (bits & 0x8000u) << 16);
}

// The bits of the nearest binary16.
constexpr uint16_t HalfFromFloat(float value) {
  const auto all = std::bit_cast<uint32_t>(value);
  const uint32_t bits = all & 0x7fffffff;
  const uint32_t normal = (bits - ((127 - 15) << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;
  // Below 2^-14: the sum with 0.5 has a last place of 2^-24, so it rounds to a multiple of that.
  const float sum = std::bit_cast<float>(bits < 0x38800000 ? bits : 0) + 0.5f;
  const uint32_t small = std::bit_cast<uint32_t>(sum) - 0x3f000000;
  const uint32_t special = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  // Numbers from 65520 up would round to 65536, which is an infinity.
  const uint32_t magnitude = bits >= 0x477ff000 ? special : bits >= 0x38800000 ? normal : small;
  return static_cast<uint16_t>(magnitude | (all >> 16 & 0x8000));
}

// Converts `n` numbers from bfloat16 to f32; `in` and `out` must not overlap.
VERBENA_EXPORT void FloatsFromBFloat16s(const uint16_t* in, float* out, size_t n);
// Converts `n` numbers from f32 to bfloat16; `in` and `out` must not overlap.
VERBENA_EXPORT void BFloat16sFromFloats(const float* in, uint16_t* out, size_t n);
// Converts `n` numbers from binary16 to f32; `in` and `out` must not overlap.
VERBENA_EXPORT void FloatsFromHalves(const uint16_t* in, float* out, size_t n);
// Converts `n` numbers from f32 to binary16; `in` and `out` must not overlap.
VERBENA_EXPORT void HalvesFromFloats(const float* in, uint16_t* out, size_t n);

}  // namespace verbena

#endif  // VERBENA_HALF_H_
