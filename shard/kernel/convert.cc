#include "shard/kernel/convert.h"

#include <bit>

namespace verbena::shard {
namespace {

constexpr uint32_t kInfinity = 0x7f800000;

VERBENA_KERNEL_BODY FromBf16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(uint32_t{in[i]} << 16);
}

VERBENA_KERNEL_BODY ToBf16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN whose payload lies in the low half would become an infinity: it is made quiet.
    const uint32_t nan = (bits >> 16) | 0x40;
    out[i] = static_cast<uint16_t>((bits & 0x7fffffff) > kInfinity ? nan : rounded);
  }
}

// The exponent's bias is 15 instead of 127.
constexpr uint32_t kRebias = (127 - 15) << 23;

VERBENA_KERNEL_BODY FromF16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = in[i] & 0x7fffu;
    const uint32_t normal = (magnitude << 13) + kRebias;
    const uint32_t special = (magnitude << 13) | kInfinity;
    // Below 2^-14: a multiple of 2^-24.
    const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
    const uint32_t bits = magnitude >= 0x7c00   ? special
                          : magnitude >= 0x0400 ? normal
                                                : std::bit_cast<uint32_t>(small);
    out[i] = std::bit_cast<float>(bits | (in[i] & 0x8000u) << 16);
  }
}

VERBENA_KERNEL_BODY ToF16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto all = std::bit_cast<uint32_t>(in[i]);
    const uint32_t bits = all & 0x7fffffff;
    const uint32_t normal = (bits - kRebias + 0xfff + ((bits >> 13) & 1)) >> 13;
    // Adding 0.5, whose last place is 2^-24, rounds to a multiple of that.
    const uint32_t small = std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + 0.5f) - 0x3f000000;
    const uint32_t special = bits > kInfinity ? 0x7e00 : 0x7c00;
    const uint32_t magnitude = bits >= 0x47800000 ? special : bits >= 0x38800000 ? normal : small;
    out[i] = static_cast<uint16_t>(magnitude | (all >> 16 & 0x8000));
  }
}

VERBENA_KERNEL(FromBf16, (const uint16_t* in, float* out, size_t n), (in, out, n));
VERBENA_KERNEL(ToBf16, (const float* in, uint16_t* out, size_t n), (in, out, n));
VERBENA_KERNEL(FromF16, (const uint16_t* in, float* out, size_t n), (in, out, n));
VERBENA_KERNEL(ToF16, (const float* in, uint16_t* out, size_t n), (in, out, n));

}  // namespace

void FloatsFromBf16(Isa isa, const uint16_t* in, float* out, size_t n) {
  FromBf16[static_cast<size_t>(isa)](in, out, n);
}
void FloatsFromF16(Isa isa, const uint16_t* in, float* out, size_t n) {
  FromF16[static_cast<size_t>(isa)](in, out, n);
}
void Bf16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n) {
  ToBf16[static_cast<size_t>(isa)](in, out, n);
}
void F16FromFloats(Isa isa, const float* in, uint16_t* out, size_t n) {
  ToF16[static_cast<size_t>(isa)](in, out, n);
}

void Round(Isa isa, ElementType type, const float* in, uint16_t* out, size_t n) {
  return type == ElementType::kBf16 ? Bf16FromFloats(isa, in, out, n)
                                    : F16FromFloats(isa, in, out, n);
}

}  // namespace verbena::shard
