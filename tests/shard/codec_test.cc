// Codecs: against a plain reference on every instruction set, bounds of their loss, inputs with NaN
// or Inf, and the sums and scans of the kernels over encoded numbers.
#include "shard/codec/codec.h"

#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "shard/codec/fp8.h"
#include "shard/kernel/reduce.h"
#include "tests/shard/isas.h"
#include "verbena/half.h"

namespace verbena::codec {
namespace {

constexpr ElementType kCoded[] = {ElementType::kBf16, ElementType::kF16,  ElementType::kInt8,
                                  ElementType::kE4m3, ElementType::kE5m2, ElementType::kSign,
                                  ElementType::kTopK};
constexpr size_t kCounts[] = {1, 2, 19, 20, 21, 127, 128, 129, 640, 2048, 2048 + 77};

std::vector<std::byte> Encoded(Isa isa, ElementType type, const std::vector<float>& in,
                               std::vector<float>* residual = nullptr) {
  std::vector<std::byte> out(PayloadBytes(type, in.size()));
  Encode(isa, type, in.data(), residual == nullptr ? nullptr : residual->data(), out.data(),
         in.size());
  return out;
}

std::vector<float> Decoded(Isa isa, ElementType type, const std::vector<std::byte>& in, size_t n) {
  std::vector<float> out(n);
  Decode(isa, type, in.data(), 0, out.data(), n);
  return out;
}

// Gradients of all usual exponents and beyond; `wide`: down to denormals.
std::vector<float> Numbers(size_t n, uint32_t seed, bool wide) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(n);
  for (float& x : numbers) {
    const int exponent = wide ? static_cast<int>(random() % 250) - 149 : 0;
    x = std::ldexp(normal(random), exponent);
  }
  return numbers;
}

// The value of an FP8 number by the specification's fields; NaN for a NaN.
double Fp8Value(uint8_t code, int mantissa, int bias, bool infinities) {
  const int exponents = 7 - mantissa;
  const int exponent = code >> mantissa & ((1 << exponents) - 1);
  const int fraction = code & ((1 << mantissa) - 1);
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (exponent == (1 << exponents) - 1) {
    if (infinities) return fraction == 0 ? sign * INFINITY : NAN;
    if (fraction == (1 << mantissa) - 1) return NAN;
  }
  const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - mantissa);
  return sign * unit * ((exponent > 0 ? 1 << mantissa : 0) + fraction);
}

template <typename Format>
void CheckFormat(int mantissa, int bias, bool infinities) {
  std::vector<double> finite;
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    const double value = Fp8Value(code, mantissa, bias, infinities);
    CAPTURE(c, mantissa);
    if (std::isnan(value)) {
      CHECK(std::isnan(Format::To(code)));
      continue;
    }
    CHECK(Format::To(code) == value);
    if (std::isinf(value)) continue;
    CHECK(std::abs(value) <= Format::kMax);
    CHECK(Format::From(static_cast<float>(value)) == code);
    if (value >= 0 && code < 0x80) finite.push_back(value);
  }
  CHECK(finite.back() == Format::kMax);
  // Between two neighbours: the nearer one, and of a tie the one with an even code.
  for (size_t i = 0; i + 1 < finite.size(); ++i) {
    const auto middle = static_cast<float>((finite[i] + finite[i + 1]) / 2);
    CAPTURE(i, middle);
    CHECK(Format::From(middle) == (i % 2 == 0 ? i : i + 1));
    CHECK(Format::From(std::nextafter(middle, 0.0f)) == i);
    CHECK(Format::From(std::nextafter(middle, 1e9f)) == i + 1);
    CHECK(Format::From(-std::nextafter(middle, 1e9f)) == (i + 1) + 0x80);
  }
}

TEST_CASE("every FP8 number has the value of the specification, and rounding is to the nearest") {
  CheckFormat<E4m3>(3, 7, false);
  CheckFormat<E5m2>(2, 15, true);
}

// One block, as docs/codecs.md describes it, number by number.
void ReferenceBlock(ElementType type, const float* x, size_t n, std::byte* out) {
  float most = 0, sums[16] = {};
  for (size_t i = 0; i < n; ++i) {
    most = std::max(most, std::abs(x[i]));
    sums[i % 16] += std::abs(x[i]) / 128;
  }
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t k = 0; k < width; ++k) sums[k] += sums[k + width];
  }
  const float limit = type == ElementType::kInt8   ? 127
                      : type == ElementType::kE4m3 ? 448.0f
                                                   : 57344.0f;
  float scale = type != ElementType::kSign ? most / limit
                : n == 128                 ? sums[0]
                                           : sums[0] * (128 / static_cast<float>(n));
  if (most < 0x1p-100f) scale = 0;
  std::memcpy(out, &scale, sizeof(scale));
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (size_t i = 0; i < n; ++i) {
    const float y = std::clamp(x[i] * inverse, -limit, limit);
    std::byte& code = out[type == ElementType::kSign ? 4 + i / 8 : 4 + i];
    if (type == ElementType::kSign) {
      code |= static_cast<std::byte>((std::signbit(x[i]) ? 1 : 0) << i % 8);
    } else if (type == ElementType::kInt8) {
      code = static_cast<std::byte>(static_cast<int8_t>(std::nearbyint(y)));
    } else {
      code = static_cast<std::byte>(type == ElementType::kE4m3 ? E4m3::From(y) : E5m2::From(y));
    }
  }
}

// A block of top_k, likewise.
void ReferenceTopK(const float* x, size_t n, std::byte* out) {
  const auto magnitude = [x](size_t i) { return std::bit_cast<uint32_t>(x[i]) & 0x7fffffff; };
  std::vector<uint16_t> order(n);
  std::iota(order.begin(), order.end(), uint16_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](uint16_t a, uint16_t b) { return magnitude(a) > magnitude(b); });
  order.resize(std::min<size_t>(n, 20));
  std::sort(order.begin(), order.end());
  for (size_t k = 0; k < 20; ++k) {
    const float value = k < order.size() ? x[order[k]] : 0;
    const uint16_t place = k < order.size() ? order[k] : 65535;
    std::memcpy(out + 4 * k, &value, sizeof(value));
    std::memcpy(out + 80 + 2 * k, &place, sizeof(place));
  }
}

std::vector<std::byte> Reference(ElementType type, const std::vector<float>& in) {
  std::vector<std::byte> out(PayloadBytes(type, in.size()));
  for (size_t i = 0; i < in.size(); i += InBlocks(type) ? CodecBlock(type) : 1) {
    const size_t block = i / CodecBlock(type);
    std::byte* to = out.data() + (InBlocks(type) ? block * CodecBlockBytes(type) : 2 * i);
    if (type == ElementType::kTopK) {
      ReferenceTopK(&in[i], std::min<size_t>(2048, in.size() - i), to);
    } else if (InBlocks(type)) {
      ReferenceBlock(type, &in[i], std::min<size_t>(kCodecBlock, in.size() - i), to);
    } else {
      const uint16_t half =
          type == ElementType::kF16 ? HalfFromFloat(in[i]) : BFloat16FromFloat(in[i]);
      std::memcpy(to, &half, sizeof(half));
    }
  }
  return out;
}

TEST_CASE("every codec has the reference's bits, on any instruction set") {
  for (const ElementType type : kCoded) {
    for (const size_t n : kCounts) {
      for (const bool wide : {false, true}) {
        const std::vector<float> in = Numbers(n, static_cast<uint32_t>(n), wide);
        const std::vector<std::byte> expected = Reference(type, in);
        const std::vector<float> back = Decoded(Isa::kBaseline, type, expected, n);
        for (const Isa isa : shard::SupportedIsas()) {
          CAPTURE(static_cast<int>(type), n, wide, static_cast<int>(isa));
          REQUIRE(Encoded(isa, type, in) == expected);
          const std::vector<float> again = Decoded(isa, type, expected, n);
          REQUIRE(std::memcmp(again.data(), back.data(), n * sizeof(float)) == 0);
        }
      }
    }
  }
}

TEST_CASE("the loss of a codec is bounded by its block's greatest number") {
  for (const ElementType type : kCoded) {
    const std::vector<float> in = Numbers(4096, 3, false);
    const std::vector<float> out =
        Decoded(shard::BestIsa(), type, Encoded(shard::BestIsa(), type, in), in.size());
    for (size_t b = 0; b < in.size(); b += kCodecBlock) {
      float most = 0;
      for (size_t i = b; i < b + kCodecBlock; ++i) most = std::max(most, std::abs(in[i]));
      for (size_t i = b; i < b + kCodecBlock; ++i) {
        // Half a step: of int8 of the scale, of the others of the number itself or of their
        // smallest one.
        const float x = std::abs(in[i]);
        const float bound = type == ElementType::kInt8 ? most / 127 * 0.501f
                            : type == ElementType::kE4m3
                                ? std::max(x / 16, most / 448 / 512) * 1.01f
                            : type == ElementType::kE5m2 ? std::max(x / 8, most * 1e-9f) * 1.01f
                            : type == ElementType::kBf16 ? x / 256
                            : type == ElementType::kF16  ? std::max(x / 2048, 0x1p-25f)
                                                         : most;
        CAPTURE(static_cast<int>(type), i, in[i], out[i]);
        REQUIRE(std::abs(in[i] - out[i]) <= bound);
      }
    }
  }
}

// Blocks that leave more, or fewer, candidates for top_k than its first bound expects.
std::vector<std::vector<float>> OddBlocks() {
  std::vector<std::vector<float>> blocks;
  const auto add = [&](const auto& of) {
    std::vector<float> x(4096 + 300);
    for (size_t i = 0; i < x.size(); ++i) x[i] = of(i);
    blocks.push_back(std::move(x));
  };
  const std::vector<float> normal = Numbers(4096 + 300, 11, false);
  add([](size_t) { return 0.0f; });
  add([](size_t) { return -0.0f; });
  add([](size_t i) { return i % 2 == 0 ? 1.5f : -1.5f; });
  add([](size_t i) { return static_cast<float>(i); });
  add([](size_t i) { return -1.0f / static_cast<float>(i + 1); });
  for (const size_t period : {3, 64, 128, 256, 320, 700}) {
    add([&](size_t i) { return i % period == 2 ? 100 + normal[i] : 0; });
    add([&](size_t i) { return normal[i] * (i % period == 1 ? 100.0f : 1.0f); });
    add([&](size_t i) { return i / period % 7 == 1 ? normal[i] : 0; });
    add([&](size_t i) { return i % period == 0 ? 2.0f : 1.0f; });
  }
  add([](size_t i) { return std::bit_cast<float>(static_cast<uint32_t>(i % 64 + 1)); });
  add([](size_t i) { return std::bit_cast<float>(i % 9 != 0 ? 0x7fffffff : 0xffffffff); });
  add([](size_t i) { return std::bit_cast<float>(i == 77 ? 0x7fffffff : 0); });
  add([](size_t i) { return i % 3 == 0 ? INFINITY : 1.0f; });
  return blocks;
}

TEST_CASE(
    "top_k finds the greatest numbers also where many are equal, or all in one row or column") {
  size_t which = 0;
  for (const std::vector<float>& in : OddBlocks()) {
    const std::vector<std::byte> expected = Reference(ElementType::kTopK, in);
    for (const Isa isa : shard::SupportedIsas()) {
      CAPTURE(which, static_cast<int>(isa));
      REQUIRE(Encoded(isa, ElementType::kTopK, in) == expected);
    }
    CHECK(WellFormed(ElementType::kTopK, expected.data(), in.size()));
    ++which;
  }
}

TEST_CASE(
    "top_k drops no number greater than the sent ones, and the residual keeps the dropped ones") {
  const std::vector<float> in = Numbers(2 * 2048 + 500, 12, false);
  std::vector<float> residual(in.size());
  const std::vector<std::byte> bytes = Encoded(shard::BestIsa(), ElementType::kTopK, in, &residual);
  CHECK(bytes.size() == 3 * 120);
  const std::vector<float> out = Decoded(shard::BestIsa(), ElementType::kTopK, bytes, in.size());
  for (size_t b = 0; b < in.size(); b += 2048) {
    float least = INFINITY, most_lost = 0;
    size_t travels = 0;
    for (size_t i = b; i < std::min(b + 2048, in.size()); ++i) {
      REQUIRE((out[i] == 0 || out[i] == in[i]));
      REQUIRE(out[i] + residual[i] == in[i]);
      travels += out[i] != 0 ? 1 : 0;
      if (out[i] != 0) least = std::min(least, std::abs(out[i]));
      if (out[i] == 0) most_lost = std::max(most_lost, std::abs(in[i]));
    }
    CHECK(travels == 20);
    CHECK(most_lost <= least);
  }
}

TEST_CASE("invalid places of top_k are not well formed, and decode within the buffer") {
  const size_t n = 2048 + 30;
  const std::vector<std::byte> good =
      Encoded(shard::BestIsa(), ElementType::kTopK, Numbers(n, 13, false));
  REQUIRE(WellFormed(ElementType::kTopK, good.data(), n));
  const auto with = [&](size_t block, size_t k, int32_t place) {
    std::vector<std::byte> bad = good;
    const auto narrow = static_cast<uint16_t>(place);
    std::memcpy(bad.data() + block * 120 + 80 + 2 * k, &narrow, sizeof(narrow));
    // Decodes up to the end of the buffer, so that a sanitizer sees a write beyond it; and in
    // pieces.
    const std::vector<float> whole = Decoded(shard::BestIsa(), ElementType::kTopK, bad, n);
    for (size_t first = 0; first < n; first += 128) {
      std::vector<float> piece(std::min<size_t>(128, n - first), 7);
      Decode(shard::BestIsa(), ElementType::kTopK, bad.data(), first, piece.data(), piece.size());
      CHECK(std::equal(piece.begin(), piece.end(), whole.begin() + static_cast<int>(first)));
    }
    return WellFormed(ElementType::kTopK, bad.data(), n);
  };
  const auto place_of = [&](size_t block, size_t k) {
    uint16_t place;
    std::memcpy(&place, good.data() + block * 120 + 80 + 2 * k, sizeof(place));
    return int32_t{place};
  };
  CHECK(with(0, 3, place_of(0, 3)));
  CHECK_FALSE(with(0, 3, place_of(0, 2)));      // twice
  CHECK_FALSE(with(0, 3, place_of(0, 2) - 1));  // does not ascend
  CHECK_FALSE(with(0, 19, 2048));               // of the next block
  CHECK_FALSE(with(0, 19, 65535));              // none, where there is one
  CHECK_FALSE(with(1, 19, 30));                 // beyond the numbers
  CHECK_FALSE(with(1, 0, 65535));
  // Where there are fewer numbers than places the rest is marked as unused.
  const std::vector<std::byte> few = Encoded(shard::BestIsa(), ElementType::kTopK, {1, 0, 3});
  CHECK(WellFormed(ElementType::kTopK, few.data(), 3));
  CHECK_FALSE(WellFormed(ElementType::kTopK, few.data(), 4));
  CHECK_FALSE(WellFormed(ElementType::kTopK, few.data(), 2));
}

TEST_CASE(
    "error feedback: the sum of the pushes is the sum of the gradients but for one residual") {
  for (const ElementType type : kCoded) {
    const size_t n = 300;
    std::vector<float> residual(n);
    std::vector<double> given(n), pushed(n);
    for (uint32_t step = 0; step < 200; ++step) {
      const std::vector<float> gradient = Numbers(n, step, false);
      const std::vector<std::byte> bytes = Encoded(shard::BestIsa(), type, gradient, &residual);
      const std::vector<float> out = Decoded(shard::BestIsa(), type, bytes, n);
      for (size_t i = 0; i < n; ++i) {
        given[i] += gradient[i];
        pushed[i] += out[i];
      }
    }
    for (size_t i = 0; i < n; ++i) {
      CAPTURE(static_cast<int>(type), i, given[i], pushed[i], residual[i]);
      REQUIRE(std::abs(residual[i]) < 100);
      REQUIRE(given[i] - pushed[i] == Approx(residual[i]).margin(1e-3));
    }
  }
}

TEST_CASE("residuals have the same bits on any instruction set") {
  for (const ElementType type : kCoded) {
    const std::vector<float> in = Numbers(1000, 9, true);
    std::vector<float> expected = Numbers(1000, 10, false);
    const std::vector<float> before = expected;
    const std::vector<std::byte> bytes = Encoded(Isa::kBaseline, type, in, &expected);
    for (const Isa isa : shard::SupportedIsas()) {
      std::vector<float> residual = before;
      CAPTURE(static_cast<int>(type), static_cast<int>(isa));
      REQUIRE(Encoded(isa, type, in, &residual) == bytes);
      REQUIRE(std::memcmp(residual.data(), expected.data(), 1000 * sizeof(float)) == 0);
    }
  }
}

TEST_CASE("a scan finds a NaN or an Inf, and the residual stays unchanged") {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const ElementType type : kCoded) {
    for (const float bad : {NAN, kInf, -kInf}) {
      for (const size_t at : {size_t{0}, size_t{200}, size_t{299}}) {
        std::vector<float> in = Numbers(300, 5, false);
        in[at] = bad;
        std::vector<float> residual(300, 0.25f);
        const std::vector<std::byte> bytes = Encoded(shard::BestIsa(), type, in, &residual);
        for (const shard::Isa isa : shard::SupportedIsas()) {
          CAPTURE(static_cast<int>(type), bad, at);
          CHECK(shard::HasNonFinite(isa, {bytes.data(), type}, 300));
        }
        CHECK(residual[at] == 0.25f);
        for (const float r : residual) REQUIRE(std::isfinite(r));
      }
    }
    const std::vector<float> good = Numbers(300, 5, true);
    const std::vector<std::byte> bytes = Encoded(shard::BestIsa(), type, good);
    CHECK_FALSE((type == ElementType::kF16) !=
                shard::HasNonFinite(shard::BestIsa(), {bytes.data(), type}, 300));
  }
}

TEST_CASE("a scale that is a NaN, or whose products are not finite, is found") {
  for (const ElementType type : kCoded) {
    if (!InBlocks(type) || type == ElementType::kTopK) continue;
    for (const float scale : {NAN, INFINITY, -INFINITY, 3e38f}) {
      std::vector<std::byte> bytes = Encoded(shard::BestIsa(), type, Numbers(300, 5, false));
      std::memcpy(bytes.data() + CodecBlockBytes(type), &scale, sizeof(scale));
      CAPTURE(static_cast<int>(type), scale);
      const bool finite = type == ElementType::kSign && std::isfinite(scale);
      CHECK(shard::HasNonFinite(shard::BestIsa(), {bytes.data(), type}, 300) != finite);
    }
  }
}

TEST_CASE("sums of encoded sources round as sums of the decoded ones") {
  const size_t n = 2048 + 77;
  for (const shard::Isa isa : shard::SupportedIsas()) {
    std::vector<std::vector<std::byte>> encoded;
    std::vector<std::vector<float>> decoded;
    std::vector<shard::Source> coded, plain;
    for (uint32_t s = 0; s < 7; ++s) {
      const ElementType type = kCoded[s % std::size(kCoded)];
      encoded.push_back(Encoded(shard::BestIsa(), type, Numbers(n, s, false)));
      decoded.push_back(Decoded(shard::BestIsa(), type, encoded.back(), n));
    }
    for (uint32_t s = 0; s < 7; ++s) {
      coded.emplace_back(encoded[s].data(), kCoded[s % std::size(kCoded)]);
      plain.emplace_back(decoded[s].data());
    }
    for (const size_t first : {size_t{0}, size_t{1024}}) {
      std::vector<float> a(n), b(n);
      shard::SumBlock(isa, coded, first, a.data(), n - first);
      shard::SumBlock(isa, plain, first, b.data(), n - first);
      CHECK(a == b);
    }
  }
}

}  // namespace
}  // namespace verbena::codec
