// 16-bit floats: each of them in both directions, and the rounding of the numbers between them.
#include "shard/kernel/convert.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/shard/isas.h"
#include "verbena/half.h"

namespace verbena::shard {
namespace {

// The value of a 16-bit float from its fields, in double precision; NaN for a NaN.
double ValueOf(uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction == 0 ? sign * INFINITY : NAN;
  const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - fraction_bits);
  return sign * unit * ((exponent > 0 ? 1 << fraction_bits : 0) + fraction);
}

struct Type {
  int exponent_bits;
  void (*to)(Isa, const float*, uint16_t*, size_t);
  void (*from)(Isa, const uint16_t*, float*, size_t);
};
const Type kTypes[] = {{8, Bf16FromFloats, FloatsFromBf16}, {5, F16FromFloats, FloatsFromF16}};

TEST_CASE("every 16-bit float is exact as f32, and converts back") {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const Type& type : kTypes) {
    for (const Isa isa : SupportedIsas()) {
      std::vector<float> floats(all.size());
      type.from(isa, all.data(), floats.data(), all.size());
      std::vector<uint16_t> back(all.size());
      type.to(isa, floats.data(), back.data(), back.size());
      for (size_t i = 0; i < all.size(); ++i) {
        const double value = ValueOf(all[i], type.exponent_bits);
        CAPTURE(type.exponent_bits, i);
        if (std::isnan(value)) {
          REQUIRE(std::isnan(floats[i]));
          REQUIRE(std::isnan(ValueOf(back[i], type.exponent_bits)));
        } else {
          REQUIRE(floats[i] == value);
          REQUIRE(std::signbit(floats[i]) == std::signbit(value));
          REQUIRE(back[i] == all[i]);
        }
      }
    }
  }
}

TEST_CASE("a number between two 16-bit floats goes to the nearer, halfway to the even one") {
  std::mt19937 random(3);
  for (const Type& type : kTypes) {
    std::vector<float> in;
    std::vector<uint16_t> expected;
    const auto largest = static_cast<uint16_t>((0x7fff >> (15 - type.exponent_bits))
                                               << (15 - type.exponent_bits));  // infinity
    for (uint16_t low = 0; low + 1 < largest; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double a = ValueOf(low, type.exponent_bits);
      const double b = ValueOf(high, type.exponent_bits);
      const auto middle = static_cast<float>((a + b) / 2);
      REQUIRE(middle == (a + b) / 2);
      const uint16_t sign = random() % 2 == 0 ? 0 : 0x8000;
      const auto add = [&](float value, uint16_t bits) {
        in.push_back(sign != 0 ? -value : value);
        expected.push_back(bits | sign);
      };
      add(middle, low % 2 == 0 ? low : high);
      add(std::nextafter(middle, 0.0f), low);
      add(std::nextafter(middle, INFINITY), high);
    }
    for (const Isa isa : SupportedIsas()) {
      std::vector<uint16_t> out(in.size());
      type.to(isa, in.data(), out.data(), in.size());
      CHECK(out == expected);
    }
  }
}

TEST_CASE("every instruction set gives the bits that half.h gives, of NaNs too") {
  std::mt19937 random(7);
  std::vector<float> floats(100'003);  // no multiple of a vector
  for (float& value : floats) value = std::bit_cast<float>(static_cast<uint32_t>(random()));
  // NaNs alone and beside one another, quiet and signalling.
  for (size_t i = 0; i < floats.size(); i += 1 + random() % 20) {
    const auto payload = static_cast<uint32_t>(1 + random() % 0x7ffffe);
    floats[i] = std::bit_cast<float>(payload | (random() % 2 == 0 ? 0x7f800000u : 0xff800000u));
  }
  std::vector<uint16_t> halves(65536 + 3);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i * 40503u);
  for (const Isa isa : SupportedIsas()) {
    std::vector<uint16_t> to(floats.size());
    F16FromFloats(isa, floats.data(), to.data(), to.size());
    for (size_t i = 0; i < to.size(); ++i) REQUIRE(to[i] == HalfFromFloat(floats[i]));
    Bf16FromFloats(isa, floats.data(), to.data(), to.size());
    for (size_t i = 0; i < to.size(); ++i) REQUIRE(to[i] == BFloat16FromFloat(floats[i]));
    std::vector<float> from(halves.size());
    FloatsFromF16(isa, halves.data(), from.data(), from.size());
    for (size_t i = 0; i < from.size(); ++i) {
      REQUIRE(std::bit_cast<uint32_t>(from[i]) ==
              std::bit_cast<uint32_t>(FloatFromHalf(halves[i])));
    }
  }
}

TEST_CASE("too large numbers become infinity, and every NaN stays a NaN") {
  const float in[] = {65519.99f,
                      65520.0f,
                      -1e38f,
                      INFINITY,
                      -INFINITY,
                      0x1p-25f,
                      0x1.8p-25f,
                      std::bit_cast<float>(0x7f800001u),
                      std::bit_cast<float>(0xffc00000u)};
  uint16_t out[std::size(in)];
  for (const Isa isa : SupportedIsas()) {
    F16FromFloats(isa, in, out, std::size(in));
    const uint16_t expected[] = {0x7bff, 0x7c00, 0xfc00, 0x7c00, 0xfc00, 0, 1};
    CHECK(std::memcmp(out, expected, sizeof(expected)) == 0);
    CHECK(std::isnan(ValueOf(out[7], 5)));
    CHECK(std::isnan(ValueOf(out[8], 5)));
    Bf16FromFloats(isa, in, out, std::size(in));
    CHECK(std::isnan(ValueOf(out[7], 8)));
    CHECK(std::isnan(ValueOf(out[8], 8)));
    const float largest = 3.4028235e38f;
    Bf16FromFloats(isa, &largest, out, 1);
    CHECK(out[0] == 0x7f80);
  }
}

TEST_CASE("stochastic rounding gives a neighbour of the number, and on average the number") {
  const ElementType type = GENERATE(ElementType::kBf16, ElementType::kF16);
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> in(1003);
  for (float& x : in) x = normal(random);
  std::vector<uint16_t> nearest(in.size()), rounded(in.size()), other(in.size());
  std::vector<float> back(in.size());
  std::vector<double> sum(in.size());
  constexpr int kTimes = 4000;
  for (int seed = 0; seed < kTimes; ++seed) {
    const auto s = static_cast<uint64_t>(seed) * 0x9e3779b97f4a7c15u;
    RoundByChance(Isa::kBaseline, type, s, in.data(), rounded.data(), in.size());
    if (seed < 5) {
      for (const Isa isa : SupportedIsas()) {
        RoundByChance(isa, type, s, in.data(), other.data(), in.size());
        REQUIRE(other == rounded);
      }
    }
    Widen(Isa::kBaseline, type, rounded.data(), back.data(), in.size());
    for (size_t i = 0; i < in.size(); ++i) sum[i] += back[i];
    // Numbers that need no rounding stay.
    RoundByChance(Isa::kBaseline, type, s + 1, back.data(), other.data(), in.size());
    REQUIRE(other == rounded);
  }
  const float place = type == ElementType::kBf16 ? 0x1p-7f : 0x1p-10f;
  for (size_t i = 0; i < in.size(); ++i) {
    const float unit = std::abs(in[i]) * place;
    CHECK(std::abs(back[i] - in[i]) <= unit);
    CHECK(std::abs(sum[i] / kTimes - in[i]) < unit * 0.05);
  }
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> special = {0.0f, -0.0f, inf, -inf, std::nanf(""), 1e-40f};
  Round(Isa::kBaseline, type, special.data(), nearest.data(), special.size());
  RoundByChance(Isa::kBaseline, type, 77, special.data(), rounded.data(), special.size());
  for (size_t i = 0; i < 5; ++i) CHECK(rounded[i] == nearest[i]);
}

}  // namespace
}  // namespace verbena::shard
