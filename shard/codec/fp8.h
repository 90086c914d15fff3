// The two formats of OCP 8-bit Floating Point Specification (OFP8), revision 1.0 (2023): E4M3,
// which has no infinities, and E5M2.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. From f32: to the nearest, ties to even, of numbers of at most kMax in magnitude. To f32:
//     exact; 0x7f and 0xff of E4M3, and 0x7d..0x7f of E5M2 with either sign, are NaNs.
#ifndef VERBENA_SHARD_CODEC_FP8_H_
#define VERBENA_SHARD_CODEC_FP8_H_

#include <bit>
#include <cstdint>

namespace verbena::codec {

template <int kMantissa, int kBias, uint32_t kSpecial>
struct Fp8 {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kRebias = uint32_t{127 - kBias} << 23;
  static constexpr uint32_t kLeastNormal = kRebias + (1u << 23);  // the bits of that f32
  // The distance between adjacent numbers below that, as the value of the last place of this f32.
  static constexpr float kTiny = std::bit_cast<float>((128u - kBias - kMantissa) << 23);
  static constexpr float kRounder = std::bit_cast<float>((151u - kBias - kMantissa) << 23);

  static constexpr uint8_t From(float value) {
    const auto all = std::bit_cast<uint32_t>(value);
    const uint32_t bits = all & 0x7fffffff;
    const uint32_t half = (1u << (kShift - 1)) - 1;
    const uint32_t normal = (bits - kRebias + half + (bits >> kShift & 1)) >> kShift;
    const float sum = std::bit_cast<float>(bits < kLeastNormal ? bits : 0) + kRounder;
    const uint32_t small = std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(kRounder);
    return static_cast<uint8_t>((bits < kLeastNormal ? small : normal) | (all >> 24 & 0x80));
  }

  static constexpr float To(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t normal = (magnitude << kShift) + kRebias;
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * kTiny;
    const uint32_t finite = magnitude < (1u << kMantissa) ? std::bit_cast<uint32_t>(small) : normal;
    const uint32_t bits = magnitude >= kSpecial ? magnitude << kShift | 0x7f800000u : finite;
    return std::bit_cast<float>(bits | uint32_t{code & 0x80u} << 24);
  }
};

struct E4m3 : Fp8<3, 7, 0x7f> {
  static constexpr float kMax = 448;
};
struct E5m2 : Fp8<2, 15, 0x7c> {
  static constexpr float kMax = 57344;
};

}  // namespace verbena::codec

#endif  // VERBENA_SHARD_CODEC_FP8_H_
