// Conversions between f32 and 16-bit numbers: every such number, and the f32 values between two
// neighbours.
#include "verbena/half.h"

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

namespace verbena::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Type {
  const char* name;
  float (*wide)(uint16_t);
  uint16_t (*narrow)(float);
  void (*wide_all)(const uint16_t*, float*, size_t);
  void (*narrow_all)(const float*, uint16_t*, size_t);
  uint16_t infinity;
};
constexpr Type kTypes[] = {
    {"bf16", FloatFromBFloat16, BFloat16FromFloat, FloatsFromBFloat16s, BFloat16sFromFloats,
     0x7f80},
    {"f16", FloatFromHalf, HalfFromFloat, FloatsFromHalves, HalvesFromFloats, 0x7c00},
};

// One by one and as an array of one must agree; at the end of an odd array they are other code.
uint16_t Narrow(const Type& type, float value) {
  const std::vector<float> in(9, value);
  std::vector<uint16_t> out(9);
  type.narrow_all(in.data(), out.data(), in.size());
  const uint16_t one = type.narrow(value);
  for (const uint16_t bits : out) {
    if (bits != one) FAIL(type.name << ": " << value << " is " << bits << " or " << one);
  }
  return one;
}

TEST_CASE("f16 is IEEE 754 binary16, and bf16 the upper half of an f32") {
  CHECK(FloatFromHalf(0x3c00) == 1);
  CHECK(FloatFromHalf(0xc000) == -2);
  CHECK(FloatFromHalf(0x7bff) == 65504);
  CHECK(FloatFromHalf(0x0400) == std::ldexp(1.0f, -14));
  CHECK(FloatFromHalf(0x0001) == std::ldexp(1.0f, -24));
  CHECK(FloatFromHalf(0x03ff) == std::ldexp(1023.0f, -24));
  CHECK(FloatFromHalf(0x7c00) == kInf);
  CHECK(std::isnan(FloatFromHalf(0x7e00)));
  CHECK(FloatFromBFloat16(0x3f80) == 1);
  CHECK(FloatFromBFloat16(0xc049) == -3.140625f);
  CHECK(FloatFromBFloat16(0xff80) == -kInf);
  CHECK(std::isnan(FloatFromBFloat16(0x7f81)));
}

TEST_CASE("every number of 16 bits comes back as it was, and the sign of zero too") {
  for (const Type& type : kTypes) {
    std::vector<uint16_t> all(65536);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
    std::vector<float> wide(all.size());
    std::vector<uint16_t> back(all.size());
    type.wide_all(all.data(), wide.data(), all.size());
    type.narrow_all(wide.data(), back.data(), all.size());
    size_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const float one = type.wide(all[i]);
      wrong += std::bit_cast<uint32_t>(one) != std::bit_cast<uint32_t>(wide[i]);
      if (std::isnan(one)) {
        wrong += !std::isnan(type.wide(back[i])) || (back[i] & 0x8000) != (all[i] & 0x8000);
      } else {
        wrong += back[i] != all[i];
      }
    }
    INFO(type.name);
    CHECK(wrong == 0);
  }
}

TEST_CASE("rounding takes the nearest number, and the even one of two equally near") {
  for (const Type& type : kTypes) {
    size_t wrong = 0;
    // The last step goes from the greatest number to infinity, which stands for the next number
    // after it.
    for (uint16_t low = 0; low < type.infinity; ++low) {
      const auto high = static_cast<uint16_t>(low + 1);
      const double from = type.wide(low);
      const double to = high == type.infinity ? 2 * from - type.wide(low - 1) : type.wide(high);
      const auto middle = static_cast<float>((from + to) / 2);
      // For denormal bf16 the middle is an f32 number as well.
      REQUIRE(middle == (from + to) / 2);
      const uint16_t even = low % 2 == 0 ? low : high;
      for (const float sign : {1.0f, -1.0f}) {
        const uint16_t bit = sign < 0 ? 0x8000 : 0;
        wrong += Narrow(type, sign * middle) != (even | bit);
        wrong += Narrow(type, sign * std::nextafter(middle, 0.0f)) != (low | bit);
        wrong += Narrow(type, sign * std::nextafter(middle, kInf)) != (high | bit);
      }
    }
    INFO(type.name);
    CHECK(wrong == 0);
  }
}

TEST_CASE("too large numbers become infinity, and a NaN stays a NaN") {
  CHECK(HalfFromFloat(65519.0f) == 0x7bff);
  CHECK(HalfFromFloat(65520.0f) == 0x7c00);
  CHECK(HalfFromFloat(-1e30f) == 0xfc00);
  CHECK(BFloat16FromFloat(std::numeric_limits<float>::max()) == 0x7f80);
  for (const Type& type : kTypes) {
    CHECK(Narrow(type, kInf) == type.infinity);
    CHECK(Narrow(type, -kInf) == (type.infinity | 0x8000));
    // Quiet and signalling; any single bit of the mantissa distinguishes it from infinity.
    for (int place = 0; place < 23; ++place) {
      const auto nan = std::bit_cast<float>(0x7f800000u | 1u << place);
      INFO(type.name << " " << place);
      CHECK(std::isnan(type.wide(Narrow(type, nan))));
    }
  }
}

}  // namespace
}  // namespace verbena::test
