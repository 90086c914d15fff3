#include "shard/codec/codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "shard/codec/fp8.h"
#include "shard/codec/top_k.h"
#include "verbena/half.h"

#define VERBENA_CODEC_BODY [[gnu::always_inline]] inline

namespace verbena::codec {
namespace {

constexpr size_t kBlock = kCodecBlock;
constexpr size_t kLanes = 16;
// A block whose greatest number is less is sent as zeros: the inverse of its scale would overflow.
// With a residual nothing is lost.
constexpr float kLeast = 0x1p-100f;

constexpr size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

VERBENA_CODEC_BODY bool Finite(float value) {
  return (std::bit_cast<uint32_t>(value) & 0x7fffffff) < 0x7f800000;
}

// Below, `n` is of numbers with zeros behind them: kBlock, or of a row's rest a multiple of kLanes.

// The bits of the greatest magnitude; a NaN's are more than any number's.
VERBENA_CODEC_BODY uint32_t Greatest(const float* x, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7fffffff;
    most = most > bits ? most : bits;
  }
  return most;
}

// The scale of a block whose codes go up to `limit`.
VERBENA_CODEC_BODY float ScaleOf(const float* x, size_t n, float limit) {
  const uint32_t bits = Greatest(x, n);
  const auto most = std::bit_cast<float>(bits);
  if (bits >= 0x7f800000) return std::numeric_limits<float>::quiet_NaN();
  return most < kLeast ? 0 : most / limit;
}

// Each codec of blocks: Scale() of a block, Put() of its codes, Get() of the numbers. `used`:
// without the zeros.
struct Int8Codec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kInt8);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t n, size_t) {
    return ScaleOf(x, n, 127);
  }
  VERBENA_CODEC_BODY static void Put(const float* x, float inverse, uint8_t* codes, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      // The sum's last place is 1, so the addition rounds to the nearest, ties to even.
      const float sum = x[i] * inverse + 0x1.8p23f;
      codes[i] = static_cast<uint8_t>(std::bit_cast<uint32_t>(sum));
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(codes[i])) * scale;
    }
  }
};

template <typename Format>
struct Fp8Codec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kE4m3);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t n, size_t) {
    return ScaleOf(x, n, Format::kMax);
  }
  VERBENA_CODEC_BODY static void Put(const float* x, float inverse, uint8_t* codes, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      // The product may be rounded to more than kMax.
      const float y = x[i] * inverse;
      const float below = y > Format::kMax ? Format::kMax : y;
      codes[i] = Format::From(below < -Format::kMax ? -Format::kMax : below);
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = Format::To(codes[i]) * scale;
  }
};

// 1-bit SGD with the mean magnitude, which with error feedback converges as SGD does (Karimireddy
// et al. 2019).
struct SignCodec {
  static constexpr size_t kBytes = CodecBlockBytes(ElementType::kSign);
  VERBENA_CODEC_BODY static float Scale(const float* x, size_t, size_t used) {
    const uint32_t bits = Greatest(x, kBlock);
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
    return used == kBlock ? sums[0] : sums[0] * (128 / static_cast<float>(used));
  }
  VERBENA_CODEC_BODY static void Put(const float* x, float, uint8_t* codes, size_t) {
    for (size_t i = 0; i < kBlock / 8; ++i) {
      uint32_t byte = 0;
      for (size_t k = 0; k < 8; ++k) byte |= std::bit_cast<uint32_t>(x[8 * i + k]) >> 31 << k;
      codes[i] = static_cast<uint8_t>(byte);
    }
  }
  VERBENA_CODEC_BODY static void Get(const uint8_t* codes, float scale, float* out, size_t) {
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

// A codec without blocks; it is processed in blocks all the same.
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
VERBENA_CODEC_BODY void DecodeBlock(const std::byte* in, float* out, size_t n) {
  float scale;
  std::memcpy(&scale, in, sizeof(scale));
  Codec::Get(reinterpret_cast<const uint8_t*>(in + sizeof(scale)), scale, out, n);
}

template <typename Codec>
VERBENA_CODEC_BODY void DecodeHalves(const std::byte* in, float* out, size_t n) {
  const auto* halves = reinterpret_cast<const uint16_t*>(in);
  for (size_t i = 0; i < n; ++i) out[i] = Codec::To(halves[i]);
}

template <typename Codec>
VERBENA_CODEC_BODY void EncodeBlock(const float* x, std::byte* out, size_t n, size_t used) {
  const float scale = Codec::Scale(x, n, used);
  std::memcpy(out, &scale, sizeof(scale));
  Codec::Put(x, scale > 0 ? 1 / scale : 0, reinterpret_cast<uint8_t*>(out + sizeof(scale)), n);
}

template <typename Codec>
VERBENA_CODEC_BODY void EncodeHalves(const float* x, std::byte* out, size_t n) {
  auto* halves = reinterpret_cast<uint16_t*>(out);
  for (size_t i = 0; i < n; ++i) halves[i] = Codec::From(x[i]);
}

// Encodes one whole block.
template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void EncodeOne(const float* in, float* residual, std::byte* out, size_t used) {
  float sum[kBlock];
  const float* x = in;
  if (residual != nullptr) {
    for (size_t i = 0; i < kBlock; ++i) sum[i] = in[i] + residual[i];
    x = sum;
  }
  if constexpr (kBlocks) {
    EncodeBlock<Codec>(x, out, kBlock, used);
  } else {
    EncodeHalves<Codec>(x, out, kBlock);
  }
  if (residual == nullptr) return;
  float back[kBlock];
  if constexpr (kBlocks) {
    DecodeBlock<Codec>(out, back, kBlock);
  } else {
    DecodeHalves<Codec>(out, back, kBlock);
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
      DecodeBlock<Codec>(in, out + i, kBlock);
    } else {
      DecodeHalves<Codec>(in, out + i, kBlock);
    }
  }
  if (i == n) return;
  alignas(4) std::byte encoded[Codec::kBytes] = {};
  float last[kBlock];
  const size_t left = n - i;
  std::memcpy(encoded, in, kBlocks ? Codec::kBytes : left * 2);
  if constexpr (kBlocks) {
    DecodeBlock<Codec>(encoded, last, kBlock);
  } else {
    DecodeHalves<Codec>(encoded, last, kBlock);
  }
  std::memcpy(out + i, last, left * sizeof(float));
}

// The numbers of a row after its whole blocks: `rest` of them, fewer than a block.
template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void EncodeRest(const float* x, std::byte* out, size_t n, size_t rest) {
  if constexpr (kBlocks) {
    EncodeBlock<Codec>(x, out, n, rest);
  } else {
    EncodeHalves<Codec>(x, out, n);
  }
}

template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void DecodeRest(const std::byte* in, float* out, size_t n) {
  if constexpr (kBlocks) {
    DecodeBlock<Codec>(in, out, n);
  } else {
    DecodeHalves<Codec>(in, out, n);
  }
}

template <bool kBlocks>
VERBENA_CODEC_BODY size_t RestBytes(size_t rest) {
  return RoundUp(kBlocks ? sizeof(float) + rest : rest * sizeof(uint16_t), 4);
}

template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void EncodeOneRow(const float* in, std::byte* out, size_t dim) {
  size_t i = 0;
  for (; i + kBlock <= dim; i += kBlock, out += Codec::kBytes) {
    EncodeOne<Codec, kBlocks>(in + i, nullptr, out, kBlock);
  }
  const size_t rest = dim - i, n = RoundUp(rest, kLanes);
  if (rest == 0) return;
  if (rest == n) return EncodeRest<Codec, kBlocks>(in + i, out, n, rest);
  float last[kBlock];
  alignas(4) std::byte encoded[Codec::kBytes];
  std::memcpy(last, in + i, rest * sizeof(float));
  std::fill(last + rest, last + n, 0.0f);
  EncodeRest<Codec, kBlocks>(last, encoded, n, rest);
  std::memcpy(out, encoded, RestBytes<kBlocks>(rest));
}

template <typename Codec, bool kBlocks>
VERBENA_CODEC_BODY void DecodeOneRow(const std::byte* in, float* out, size_t dim) {
  size_t i = 0;
  for (; i + kBlock <= dim; i += kBlock, in += Codec::kBytes) {
    DecodeRest<Codec, kBlocks>(in, out + i, kBlock);
  }
  const size_t rest = dim - i, n = RoundUp(rest, kLanes);
  if (rest == 0) return;
  if (rest == n) return DecodeRest<Codec, kBlocks>(in, out + i, n);
  float last[kBlock];
  alignas(4) std::byte encoded[Codec::kBytes] = {};
  std::memcpy(encoded, in, RestBytes<kBlocks>(rest));
  DecodeRest<Codec, kBlocks>(encoded, last, n);
  std::memcpy(out + i, last, rest * sizeof(float));
}

using Encoder = void (*)(const float*, float*, std::byte*, size_t);
using Decoder = void (*)(const std::byte*, float*, size_t);
using RowEncoder = void (*)(const float*, std::byte*, size_t);

// Name##Encode[isa], Name##Decode[isa]; and of those that rows may have, Name##EncodeRow[isa],
// Name##DecodeRow[isa].
#define VERBENA_CODEC_IN(Name, Codec, kBlocks, Suffix, attribute)                       \
  attribute void Name##Encode##Suffix(const float* in, float* residual, std::byte* out, \
                                      size_t n) {                                       \
    EncodeAll<Codec, kBlocks>(in, residual, out, n);                                    \
  }                                                                                     \
  attribute void Name##Decode##Suffix(const std::byte* in, float* out, size_t n) {      \
    DecodeAll<Codec, kBlocks>(in, out, n);                                              \
  }
#define VERBENA_ROW_CODEC_IN(Name, Codec, kBlocks, Suffix, attribute)                   \
  attribute void Name##EncodeRow##Suffix(const float* in, std::byte* out, size_t dim) { \
    EncodeOneRow<Codec, kBlocks>(in, out, dim);                                         \
  }                                                                                     \
  attribute void Name##DecodeRow##Suffix(const std::byte* in, float* out, size_t dim) { \
    DecodeOneRow<Codec, kBlocks>(in, out, dim);                                         \
  }
#if defined(__x86_64__)
#define VERBENA_AVX2 __attribute__((target("avx2")))
#define VERBENA_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define VERBENA_CODEC_FOR_EACH(In, Name, Codec, kBlocks)                            \
  In(Name, Codec, kBlocks, Baseline, ) In(Name, Codec, kBlocks, Avx2, VERBENA_AVX2) \
      In(Name, Codec, kBlocks, Avx512, VERBENA_AVX512)
#define VERBENA_BY_ISA(Name) \
  { Name##Baseline, Name##Avx2, Name##Avx512 }
#else
#define VERBENA_CODEC_FOR_EACH(In, Name, Codec, kBlocks) In(Name, Codec, kBlocks, Baseline, )
#define VERBENA_BY_ISA(Name) \
  { Name##Baseline, Name##Baseline, Name##Baseline }
#endif
#define VERBENA_CODEC(Name, Codec, kBlocks)                        \
  VERBENA_CODEC_FOR_EACH(VERBENA_CODEC_IN, Name, Codec, kBlocks)   \
  constexpr Encoder Name##Encode[] = VERBENA_BY_ISA(Name##Encode); \
  constexpr Decoder Name##Decode[] = VERBENA_BY_ISA(Name##Decode)
#define VERBENA_ROW_CODEC(Name, Codec, kBlocks)                             \
  VERBENA_CODEC(Name, Codec, kBlocks);                                      \
  VERBENA_CODEC_FOR_EACH(VERBENA_ROW_CODEC_IN, Name, Codec, kBlocks)        \
  constexpr RowEncoder Name##EncodeRow[] = VERBENA_BY_ISA(Name##EncodeRow); \
  constexpr Decoder Name##DecodeRow[] = VERBENA_BY_ISA(Name##DecodeRow)

VERBENA_ROW_CODEC(Bf16, Bf16Codec, false);
VERBENA_ROW_CODEC(F16, F16Codec, false);
VERBENA_ROW_CODEC(Int8, Int8Codec, true);
VERBENA_ROW_CODEC(E4m3, Fp8Codec<codec::E4m3>, true);
VERBENA_ROW_CODEC(E5m2, Fp8Codec<codec::E5m2>, true);
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

void EncodeRow(Isa isa, ElementType type, const float* in, std::byte* out, size_t dim) {
  const auto w = static_cast<size_t>(isa);
  switch (type) {
    case ElementType::kBf16:
      return Bf16EncodeRow[w](in, out, dim);
    case ElementType::kF16:
      return F16EncodeRow[w](in, out, dim);
    case ElementType::kInt8:
      return Int8EncodeRow[w](in, out, dim);
    case ElementType::kE4m3:
      return E4m3EncodeRow[w](in, out, dim);
    case ElementType::kE5m2:
      return E5m2EncodeRow[w](in, out, dim);
    default:
      std::memcpy(out, in, dim * sizeof(float));
  }
}

void DecodeRow(Isa isa, ElementType type, const std::byte* in, float* out, size_t dim) {
  const auto w = static_cast<size_t>(isa);
  switch (type) {
    case ElementType::kBf16:
      return Bf16DecodeRow[w](in, out, dim);
    case ElementType::kF16:
      return F16DecodeRow[w](in, out, dim);
    case ElementType::kInt8:
      return Int8DecodeRow[w](in, out, dim);
    case ElementType::kE4m3:
      return E4m3DecodeRow[w](in, out, dim);
    case ElementType::kE5m2:
      return E5m2DecodeRow[w](in, out, dim);
    default:
      std::memcpy(out, in, dim * sizeof(float));
  }
}

bool WellFormed(ElementType type, const std::byte* payload, size_t n) {
  return type != ElementType::kTopK || TopKAscends(payload, n);
}

}  // namespace verbena::codec
