#include "shard/kernel/convert.h"

#include <bit>

#include "verbena/half.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verbena::shard {
namespace {

VERBENA_KERNEL_BODY FromBf16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromBFloat16(in[i]);
}
VERBENA_KERNEL_BODY ToBf16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = BFloat16FromFloat(in[i]);
}
VERBENA_KERNEL_BODY FromF16Body(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = FloatFromHalf(in[i]);
}
VERBENA_KERNEL_BODY ToF16Body(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = HalfFromFloat(in[i]);
}

// Chris Wellons, "Prospecting for Hash Functions" (2018): lowbias32.
uint32_t RandomBits(uint32_t seed, size_t i) {
  uint32_t x = seed + static_cast<uint32_t>(i) * 0x9e3779b9u;
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
VERBENA_KERNEL_BODY ChanceBf16Body(uint32_t seed, const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t carried = (bits + (RandomBits(seed, i) >> 16)) >> 16;
    const bool finite = (bits & 0x7f800000) != 0x7f800000;
    out[i] = finite ? static_cast<uint16_t>(carried) : BFloat16FromFloat(in[i]);
  }
}
VERBENA_KERNEL_BODY ChanceF16Body(uint32_t seed, const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(in[i]);
    const uint32_t carried = (bits + (RandomBits(seed, i) >> 19)) & ~uint32_t{0x1fff};
    const uint32_t magnitude = bits & 0x7fffffff;
    const bool normal = magnitude >= 0x38800000 && magnitude < 0x47800000;
    out[i] = HalfFromFloat(std::bit_cast<float>(normal ? carried : bits));
  }
}
VERBENA_KERNEL(ChanceBf16, (uint32_t seed, const float* in, uint16_t* out, size_t n),
               (seed, in, out, n));
VERBENA_KERNEL(ChanceF16, (uint32_t seed, const float* in, uint16_t* out, size_t n),
               (seed, in, out, n));

VERBENA_KERNEL(FromBf16, (const uint16_t* in, float* out, size_t n), (in, out, n));
VERBENA_KERNEL(ToBf16, (const float* in, uint16_t* out, size_t n), (in, out, n));

// The processor has instructions for binary16 (F16C, AVX-512F), which round like half.h. They give
// NaNs other bits, so a vector with a NaN is converted by the code of half.h.
#if defined(__x86_64__)
// Masked, because the header of gcc 12 has an uninitialised variable in those that are not (bug
// 105593).
constexpr __mmask16 kAll = 0xffff;
__attribute__((target("avx2,f16c"))) void FromF16Avx2(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256 floats = _mm256_cvtph_ps(halves);
    _mm256_storeu_ps(out + i, floats);
    const __m256 nan = _mm256_cmp_ps(floats, floats, _CMP_UNORD_Q);
    if (_mm256_movemask_ps(nan) != 0) FromF16Body(in + i, out + i, 8);
  }
  FromF16Body(in + i, out + i, n - i);
}
__attribute__((target("avx2,f16c"))) void ToF16Avx2(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 floats = _mm256_loadu_ps(in + i);
    const __m256 nan = _mm256_cmp_ps(floats, floats, _CMP_UNORD_Q);
    if (_mm256_movemask_ps(nan) != 0) {
      ToF16Body(in + i, out + i, 8);
      continue;
    }
    const __m128i halves = _mm256_cvtps_ph(floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
  }
  ToF16Body(in + i, out + i, n - i);
}
__attribute__((target("avx512f"))) void FromF16Avx512(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    const __m512 floats = _mm512_maskz_cvtph_ps(kAll, halves);
    _mm512_storeu_ps(out + i, floats);
    if (_mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q) != 0) FromF16Body(in + i, out + i, 16);
  }
  FromF16Body(in + i, out + i, n - i);
}
__attribute__((target("avx512f"))) void ToF16Avx512(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 floats = _mm512_loadu_ps(in + i);
    if (_mm512_cmp_ps_mask(floats, floats, _CMP_UNORD_Q) != 0) {
      ToF16Body(in + i, out + i, 16);
      continue;
    }
    const __m256i halves =
        _mm512_maskz_cvtps_ph(kAll, floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), halves);
  }
  ToF16Body(in + i, out + i, n - i);
}
#endif
void FromF16Baseline(const uint16_t* in, float* out, size_t n) { FromF16Body(in, out, n); }
void ToF16Baseline(const float* in, uint16_t* out, size_t n) { ToF16Body(in, out, n); }
#if defined(__x86_64__)
constexpr decltype(&FromF16Baseline) FromF16[] = {FromF16Baseline, FromF16Avx2, FromF16Avx512};
constexpr decltype(&ToF16Baseline) ToF16[] = {ToF16Baseline, ToF16Avx2, ToF16Avx512};
#else
constexpr decltype(&FromF16Baseline) FromF16[] = {FromF16Baseline, FromF16Baseline,
                                                  FromF16Baseline};
constexpr decltype(&ToF16Baseline) ToF16[] = {ToF16Baseline, ToF16Baseline, ToF16Baseline};
#endif

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

void Widen(Isa isa, ElementType type, const uint16_t* in, float* out, size_t n) {
  return type == ElementType::kBf16 ? FloatsFromBf16(isa, in, out, n)
                                    : FloatsFromF16(isa, in, out, n);
}

void Round(Isa isa, ElementType type, const float* in, uint16_t* out, size_t n) {
  return type == ElementType::kBf16 ? Bf16FromFloats(isa, in, out, n)
                                    : F16FromFloats(isa, in, out, n);
}

void RoundByChance(Isa isa, ElementType type, uint64_t seed, const float* in, uint16_t* out,
                   size_t n) {
  const auto folded = static_cast<uint32_t>(seed ^ (seed >> 32));
  const auto& chance = type == ElementType::kBf16 ? ChanceBf16 : ChanceF16;
  chance[static_cast<size_t>(isa)](folded, in, out, n);
}

}  // namespace verbena::shard
