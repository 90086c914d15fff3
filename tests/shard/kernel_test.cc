#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shard/kernel/fused_pass.h"
#include "shard/kernel/gradient.h"
#include "shard/kernel/reduce.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/isas.h"

namespace verbena::shard {
namespace {

std::vector<float> Random(std::mt19937& random, size_t n) {
  // Many magnitudes, so that another order of additions would round differently.
  std::uniform_real_distribution<float> exponent(-12, 12);
  std::vector<float> v(n);
  for (float& x : v) x = std::exp2(exponent(random)) * (random() % 2 == 0 ? 1.0f : -1.0f);
  return v;
}

TEST_CASE("a sum rounds in the order of its sources, on every instruction set") {
  std::mt19937 random(5);
  for (const size_t n : {1, 15, 16, 17, 2048, 5003}) {
    for (size_t count = 1; count <= 12; ++count) {
      std::vector<std::vector<float>> data;
      std::vector<Source> sources;
      for (size_t s = 0; s < count; ++s) data.push_back(Random(random, n));
      for (const auto& d : data) sources.emplace_back(d.data());
      std::vector<float> expected = data[0];
      for (size_t s = 1; s < count; ++s) {
        for (size_t i = 0; i < n; ++i) {
          volatile const float sum = expected[i] + data[s][i];  // one rounding at a time
          expected[i] = sum;
        }
      }
      for (const Isa isa : SupportedIsas()) {
        std::vector<float> out(n, 99);
        Accumulate(isa, sources, out.data(), n);
        CHECK(SameBits(out, expected));
        // In place: the accumulator is the first source.
        std::vector<float> accumulator = data[0];
        std::vector<Source> with = sources;
        with[0] = accumulator.data();
        Accumulate(isa, with, accumulator.data(), n);
        CHECK(SameBits(accumulator, expected));
      }
    }
  }
}

TEST_CASE(
    "a sum of bf16 equals that of their f32 values, with or without an f32 accumulator first") {
  std::mt19937 random(6);
  for (const size_t n : {1, 15, 16, 17, 2048, 5003}) {
    for (size_t count = 1; count <= 9; ++count) {
      for (const bool accumulator : {false, true}) {
        std::vector<std::vector<uint16_t>> narrow(count, std::vector<uint16_t>(n));
        std::vector<std::vector<float>> wide(count, std::vector<float>(n));
        const std::vector<float> first = Random(random, n);
        std::vector<Source> sources, same;
        std::vector<float> sum = first;
        if (accumulator) {
          sources.emplace_back(sum.data());
          same.emplace_back(first.data());
        }
        for (size_t s = 0; s < count; ++s) {
          Bf16FromFloats(Isa::kBaseline, Random(random, n).data(), narrow[s].data(), n);
          FloatsFromBf16(Isa::kBaseline, narrow[s].data(), wide[s].data(), n);
          sources.emplace_back(reinterpret_cast<const std::byte*>(narrow[s].data()),
                               ElementType::kBf16);
          same.emplace_back(wide[s].data());
        }
        std::vector<float> expected(n);
        Accumulate(Isa::kBaseline, same, expected.data(), n);
        for (const Isa isa : SupportedIsas()) {
          std::vector<float> out(n, 99);
          Accumulate(isa, sources, out.data(), n);
          CHECK(SameBits(out, expected));
          if (!accumulator) continue;
          Accumulate(isa, sources, sum.data(), n);
          CHECK(SameBits(sum, expected));
          sum = first;
        }
      }
    }
  }
}

TEST_CASE("NaN and Inf of bf16 are found, and nothing else is") {
  constexpr size_t kNumbers = 40000;
  std::vector<uint16_t> v(kNumbers);
  // Every finite bf16, so without exponents of all ones.
  for (size_t i = 0; i < kNumbers; ++i) {
    v[i] = static_cast<uint16_t>(i % 0x7f80 | (i & 1) << 15);
  }
  const auto found = [&](Isa isa, size_t n) {
    return HasNonFinite(isa, {reinterpret_cast<const std::byte*>(v.data()), ElementType::kBf16}, n);
  };
  for (const Isa isa : SupportedIsas()) {
    CHECK_FALSE(found(isa, kNumbers));
    for (const size_t at : {size_t{0}, size_t{17}, size_t{16384}, kNumbers - 1}) {
      for (const uint16_t bad : {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff}) {
        const uint16_t good = std::exchange(v[at], bad);
        CHECK(found(isa, kNumbers));
        CHECK_FALSE(found(isa, at));
        v[at] = good;
      }
    }
  }
}

TEST_CASE("NaN and Inf are found wherever they are, and nothing else is") {
  std::vector<float> v(40000, std::numeric_limits<float>::max());
  v[1] = std::numeric_limits<float>::denorm_min();
  v[2] = -0.0f;
  v[3] = std::numeric_limits<float>::lowest();
  for (const Isa isa : SupportedIsas()) {
    CHECK_FALSE(HasNonFinite(isa, v.data(), v.size()));
    for (const size_t at : {size_t{0}, size_t{17}, size_t{16384}, v.size() - 1}) {
      for (const float bad : {kNan, -kNan, std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
        std::vector<float> w = v;
        w[at] = bad;
        CHECK(HasNonFinite(isa, w.data(), w.size()));
        CHECK_FALSE(HasNonFinite(isa, w.data(), at));
      }
    }
  }
}

TEST_CASE("a squared norm is the same on every instruction set and for any blocks") {
  std::mt19937 random(7);
  for (const size_t n : {1, 15, 16, 17, 2048, 5003}) {
    const std::vector<float> v = Random(random, n);
    double exact = 0;
    for (const float x : v) exact += double{x} * double{x};
    double first = -1;
    for (const Isa isa : SupportedIsas()) {
      for (const size_t block : {size_t{16}, size_t{48}, size_t{2048}, size_t{8192}}) {
        SquaredNorm norm;
        for (size_t i = 0; i < n; i += block) norm.Add(isa, &v[i], std::min(block, n - i));
        if (first < 0) first = norm.Total();
        CHECK(norm.Total() == first);
      }
    }
    CHECK(first == Approx(exact).epsilon(1e-12));
  }
  // No f32 vector overflows it.
  const std::vector<float> huge(100, std::numeric_limits<float>::max());
  SquaredNorm norm;
  norm.Add(BestIsa(), huge.data(), huge.size());
  CHECK(std::sqrt(norm.Total()) == Approx(10.0 * std::numeric_limits<float>::max()));
}

struct BitsCase {
  std::string name;
  double clip_value;
  double clip_chunk_norm;
  double weight_decay;
};

v1::Optimizer SpecOf(const BitsCase& c) {
  v1::Optimizer spec;
  spec.set_name(c.name);
  spec.set_rate(0.37);
  spec.set_clip_value(c.clip_value);
  spec.set_clip_chunk_norm(c.clip_chunk_norm);
  if (c.weight_decay != 0) (*spec.mutable_parameters())["weight_decay"] = c.weight_decay;
  return spec;
}

TEST_CASE("an apply gives the same bits on every instruction set, in place or not") {
  std::mt19937 random(11);
  for (const BitsCase& c : std::vector<BitsCase>{{"adagrad", 0, 0, 0},
                                                 {"adam", 0, 0, 0},
                                                 {"adamw", 0, 0, 0},
                                                 {"ftrl", 0, 0, 0},
                                                 {"momentum", 0, 0, 0},
                                                 {"nesterov", 0, 0, 0},
                                                 {"rmsprop", 0, 0, 0},
                                                 {"sgd", 0, 0, 0},
                                                 {"adam", 0, 100, 0.01},
                                                 {"ftrl", 0, 100, 0},
                                                 {"momentum", 30, 0, 0.01},
                                                 {"sgd", 0, 100, 0}}) {
    INFO(c.name << " " << c.clip_value << " " << c.clip_chunk_norm << " " << c.weight_decay);
    const std::unique_ptr<Optimizer> optimizer = *MakeOptimizer(SpecOf(c));
    for (const size_t n : {1, 31, 2048, 4999}) {
      for (const size_t count : {0, 1, 3}) {
        const std::vector<float> weights = Random(random, n);
        std::vector<std::vector<float>> data;
        for (size_t s = 0; s < count; ++s) data.push_back(Random(random, n));
        std::vector<Source> sources;
        for (const auto& d : data) sources.emplace_back(d.data());
        const std::vector<float> state0(2 * n, 0.25f);
        std::vector<float> expected_weights;
        std::vector<float> expected_state;
        for (const Isa isa : SupportedIsas()) {
          for (const bool in_place : {false, true}) {
            std::vector<float> in = weights;
            std::vector<float> out(n);
            std::vector<float> state = state0;
            float* target = in_place ? in.data() : out.data();
            ReduceAndApply(isa, *optimizer, optimizer->Prepare(3), sources, 3.0f, in.data(), target,
                           state.data(), n, n);
            const std::vector<float> result(target, target + n);
            if (expected_weights.empty()) {
              expected_weights = result;
              expected_state = state;
            }
            CHECK(SameBits(result, expected_weights));
            CHECK(SameBits(state, expected_state));
            if (!in_place) CHECK(SameBits(in, weights));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace verbena::shard
