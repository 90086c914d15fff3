#include "shard/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "proto/half.h"
#include "shard/codec/fp8.h"
#include "shard/codec/top_k.h"

#define VERBENA_CODEC_BODY [[gnu::always_inline]] inline

namespace verbena::codec {
namespace {

constexpr size_t kBlock = kCodecBlock;
constexpr size_t kLanes = 16;
// A block whose greatest number is less is sent as zeros: the inverse of its scale would overflow.
// With a residual nothing is lost.
constexpr float kLeast = 0x1p-100f;

VERBENA_CODEC_BODY bool Finite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffff) < 0x7f800000;
}

// The bits of the greatest magnitude; a NaN's are more than any number's.
VERBENA_CODEC_BODY uint32_t Greatest(const float* x) {
  uint32_t most = 0;
  for (size_t i = 0; i < kBlock; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    most = most > bits ? most : bits;
  }
  return most;
}

// The scale of a block whose codes go up to `limit`.
VERBENA_CODEC_BODY float ScaleOf(const float* x, float limit) {
  const uint32_t bits = Greatest(x);
  const auto most = std::bit_cast<float>(bits);
  if (bits >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  return most < kLeast ? 0 : most / limit;
}

// Each codec of blocks: Scale() of a block with `n` numbers and zeros behind them, Put() of its
// codes, Get() of the numbers.
struct Int8Codec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kInt8);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t) { return ScaleOf(x, 127); }
  VERBENA_CODEC_BODY static void Put(const float* x, float inverse, uint8_t* codes) {
    for (size_t i = 0; i < kBlock; ++i) {
      // The sum's last place is 1, so the addition rounds to the nearest, ties to even.
      const float sum = x[i] * inverse + 0x1.8p23f;
      codes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(sum));
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out) {
    for (size_t i = 0; i < kBlock; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
    }
  }
};

template <typename Format>
struct Fp8Codec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kE4m3);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t) { return ScaleOf(x, Format::kMax); }
  VERBENA_CODEC_BODY static void Put(const float* x, float inverse, uint8_t* codes) {
    for (size_t i = 0; i < kBlock; ++i) {
      // The product may be rounded to more than kMax.
      const float y = x[i] * inverse;
      const float below = y > Format::kMax ? Format::kMax : y;
      codes[i] = Format::From(below < -Format::kMax ? -Format::kMax : below);
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out) {
    for (size_t i = 0; i < kBlock; ++i) out[i] = Format::To(codes[i]) * scale;
  }
};

// 1-bit SGD with the mean magnitude, which with error feedback converges as SGD does (Karimireddy
// et al. 2019).
struct SignCodec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kSign);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t n) {
    const uint32_t bits = Greatest(x);
    if (bits >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
    if (std::bit_cast<float>(bits) < kLeast) return 0;
    // In one fixed order. A sum of parts, which cannot overflow.
    float sums[kLanes] = {};
    for (size_t i = 0; i < kBlock; i += kLanes) {
      for (size_t k = 0; k < kLanes; ++k) {
        sums[k] += std::bit_cast<float>(std::bit_cast<uint32_t>(x[i + k]) & 0x7fffffff) * 0x1p-7f;
      }
    }
    for (size_t width = kLanes / 2; width > 0; width /= 2) {
      for (size_t k = 0; k < width; ++k) sums[k] += sums[k + width];
    }
    return n == kBlock ? sums[0] : sums[0] * (128 / static_cast<float>(n));
  }
  VERBENA_CODEC_BODY static void Put(const float* x, float, uint8_t* codes) {
    for (size_t i = 0; i < kBlock / 8; ++i) {
      uint32_t byte = 0;
      for (size_t k = 0; k < 8; ++k) byte |= std::bit_cast<uint32_t>(x[8 * i + k]) >> 31 << k;
      codes[i] = static_cast<uint8_t>(byte);
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out) {
    const auto bits = std::bit_cast<uint32_t>(scale);
    for (size_t w = 0; w < kBlock / 32; ++w) {
      uint32_t word;
      std::memcpy(&word, codes + 4 * w, sizeof(word));
      for (uint32_t k = 0; k < 32; ++k) {
        out[32 * w + k] = std::bit_cast<float>(bits ^ (word >> k & 1) << 31);
      }
    }
  }
};

// What has no blocks, a block at a time all the same.
struct Bf16Codec {
  static constexpr size_t kBytes = kBlock * 2;
  VERBENA_CODEC_BODY static uint16_t From(float x) { return BFloat16FromFloat(x); }
  VERBENA_CODEC_BODY static float To(uint16_t x) { return FloatFromBFloat16(x); }
};
struct F16Codec {
  static constexpr size_t kBytes = kBlock * 2;
  VERBENA_CODEC_BODY static uint16_t From(float x) { return HalfFromFloat(x); }
  VERBENA_CODEC_BODY static float To(uint16_t x) { return FloatFromHalf(x); }
};

template <typename Codec>
VERBENA_CODEC_BODY void DecodeBlock(const std::byte* in, float* out) {
  float scale;
  std::memcpy(&scale, in, sizeof(scale));
  Codec::Get(reinterpret_cast<const uint8_t*>(in + sizeof(scale)), scale, out);
}

template <typename Codec>
VERBENA_CODEC_BODY void DecodeHalves(const std::byte* in, float* out) {
  const auto* halves = reinterpret_cast<const uint16_t*>(in);
  for (size_t i = 0; i < kBlock; ++i) out[i] = Codec::To(halves[i]);
}

template <typename Codec>
VERBENA_CODEC_BODY void EncodeBlock(const float* x, std::byte* out, size_t n) {
  const float scale = Codec::Scale(x, n);
  std::memcpy(out, &scale, sizeof(scale));
  Codec::Put(x, scale > 0 ? 1 / scale : 0, reinterpret_cast<uint8_t*>(out + sizeof(scale)));
}

template <typename Codec>
VERBENA_CODEC_BODY void EncodeHalves(const float* x, std::byte* out, size_t) {
  auto* halves = reinterpret_cast<uint16_t*>(out);
  for (size_t i = 0; i < kBlock; ++i) halves[i] = Codec::From(x[i]);
}

// Of one block that is whole.
template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void EncodeOne(const float* in, float* residual, std::byte* out, size_t n) {
  float sum[kBlock];
  const float* x = in;
  if (residual != nullptr) {
    for (size_t i = 0; i < kBlock; ++i) sum[i] = in[i] + residual[i];
    x = sum;
  }
  if constexpr (kBlocks) {
    EncodeBlock<Codec>(x, out, n);
  } else {
    EncodeHalves<Codec>(x, out, n);
  }
  if (residual == nullptr) return;
  float back[kBlock];
  if constexpr (kBlocks) {
    DecodeBlock<Codec>(out, back);
  } else {
    DecodeHalves<Codec>(out, back);
  }
  for (size_t i = 0; i < kBlock; ++i) {
    const float rest = sum[i] - back[i];
    residual[i] = Finite(rest) ? rest : residual[i];
  }
}

template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void EncodeAll(const float* in, float* residual, std::byte* out, size_t n) {
  size_t i = 0;
  for (; i + kBlock <= n; i += kBlock, out += Codec::kBytes) {
    EncodeOne<Codec, kBlocks>(in + i, residual == nullptr ? nullptr : residual + i, out, kBlock);
  }
  if (i == n) return;
  // The rest, with zeros behind it.
  float last[kBlock] = {}, last_residual[kBlock] = {};
  alignas(4) std::byte encoded[Codec::kBytes];
  const size_t left = n - i;
  std::memcpy(last, in + i, left * sizeof(float));
  if (residual != nullptr) std::memcpy(last_residual, residual + i, left * sizeof(float));
  EncodeOne<Codec, kBlocks>(last, residual == nullptr ? nullptr : last_residual, encoded, left);
  if (residual != nullptr) std::memcpy(residual + i, last_residual, left * sizeof(float));
  std::memcpy(out, encoded, kBlocks ? Codec::kBytes : left * 2);
}

template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void DecodeAll(const std::byte* in, float* out, size_t n) {
  size_t i = 0;
  for (; i + kBlock <= n; i += kBlock, in += Codec::kBytes) {
    if constexpr (kBlocks) {
      DecodeBlock<Codec>(in, out + i);
    } else {
      DecodeHalves<Codec>(in, out + i);
    }
  }
  if (i == n) return;
  alignas(4) std::byte encoded[Codec::kBytes] = {};
  float last[kBlock];
  const size_t left = n - i;
  std::memcpy(encoded, in, kBlocks ? Codec::kBytes : left * 2);
  if constexpr (kBlocks) {
    DecodeBlock<Codec>(encoded, last);
  } else {
    DecodeHalves<Codec>(encoded, last);
  }
  std::memcpy(out + i, last, left * sizeof(float));
}

using Encoder = void (*)(const float*, float*, std::byte*, size_t);
using Decoder = void (*)(const std::byte*, float*, size_t);

// Name##Encode[isa] and Name##Decode[isa].
#define VERBENA_CODEC_IN(Name, Codec, kBlocks, Suffix, attribute)                       \
  attribute void Name##Encode##Suffix(const float* in, float* residual, std::byte* out, \
                                      size_t n) {                                       \
    EncodeAll<Codec, kBlocks>(in, residual, out, n);                                    \
  }                                                                                     \
  attribute void Name##Decode##Suffix(const std::byte* in, float* out, size_t n) {      \
    DecodeAll<Codec, kBlocks>(in, out, n);                                              \
  }
#if defined(__x86_64__)
#define VERBENA_CODEC(Name, Codec, kBlocks)                                                        \
  VERBENA_CODEC_IN(Name, Codec, kBlocks, Baseline, )                                               \
  VERBENA_CODEC_IN(Name, Codec, kBlocks, Avx2, __attribute__((target("avx2"))))                    \
  VERBENA_CODEC_IN(Name, Codec, kBlocks, Avx512,                                                   \
                   __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))))                  \
  constexpr Encoder Name##Encode[] = {Name##EncodeBaseline, Name##EncodeAvx2, Name##EncodeAvx512}; \
  constexpr Decoder Name##Decode[] = {Name##DecodeBaseline, Name##DecodeAvx2, Name##DecodeAvx512}
#else
#define VERBENA_CODEC(Name, Codec, kBlocks)                                       \
  VERBENA_CODEC_IN(Name, Codec, kBlocks, Baseline, )                              \
  constexpr Encoder Name##Encode[] = {Name##EncodeBaseline, Name##EncodeBaseline, \
                                      Name##EncodeBaseline};                      \
  constexpr Decoder Name##Decode[] = {Name##DecodeBaseline, Name##DecodeBaseline, \
                                      Name##DecodeBaseline}
#endif

VERBENA_CODEC(Bf16, Bf16Codec, false);
VERBENA_CODEC(F16, F16Codec, false);
VERBENA_CODEC(Int8, Int8Codec, true);
VERBENA_CODEC(E4m3, Fp8Codec<codec::E4m3>, true);
VERBENA_CODEC(E5m2, Fp8Codec<codec::E5m2>, true);
VERBENA_CODEC(Sign, SignCodec, true);

}  // namespace

void Encode(Isa isa, ElementType type, const float* in, float* residual, std::byte* out, size_t n) {
  const auto w = static_cast<size_t>(isa);
  switch (type) {
    case ElementType::kBf16:
      return Bf16Encode[w](in, residual, out, n);
    case ElementType::kF16:
      return F16Encode[w](in, residual, out, n);
    case ElementType::kInt8:
      return Int8Encode[w](in, residual, out, n);
    case ElementType::kE4m3:
      return E4m3Encode[w](in, residual, out, n);
    case ElementType::kE5m2:
      return E5m2Encode[w](in, residual, out, n);
    case ElementType::kSign:
      return SignEncode[w](in, residual, out, n);
    case ElementType::kTopK:
      return EncodeTopK(isa, in, residual, out, n);
    case ElementType::kNone:
    case ElementType::kF32:
      std::memcpy(out, in, n * sizeof(float));
  }
}

void Decode(Isa isa, ElementType type, const std::byte* payload, size_t first, float* out,
            size_t n) {
  const auto w = static_cast<size_t>(isa);
  const std::byte* in = payload + PayloadBytes(type, first);
  switch (type) {
    case ElementType::kBf16:
      return Bf16Decode[w](in, out, n);
    case ElementType::kF16:
      return F16Decode[w](in, out, n);
    case ElementType::kInt8:
      return Int8Decode[w](in, out, n);
    case ElementType::kE4m3:
      return E4m3Decode[w](in, out, n);
    case ElementType::kE5m2:
      return E5m2Decode[w](in, out, n);
    case ElementType::kSign:
      return SignDecode[w](in, out, n);
    case ElementType::kTopK:
      return DecodeTopK(payload, first, out, n);
    case ElementType::kNone:
    case ElementType::kF32:
      std::memcpy(out, in, n * sizeof(float));
  }
}

bool WellFormed(ElementType type, const std::byte* payload, size_t n) {
  return type != ElementType::kTopK || TopKAscends(payload, n);
}

}  // namespace verbena::codec
