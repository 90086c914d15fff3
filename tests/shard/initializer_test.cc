#include "shard/table/initializer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

v1::Initializer Make(v1::Initializer::Kind kind, double a, double b, uint64_t seed) {
  v1::Initializer init;
  init.set_kind(kind);
  init.set_a(a);
  init.set_b(b);
  init.set_seed(seed);
  return init;
}

std::vector<float> Run(const v1::Initializer& init, uint64_t first, size_t n) {
  std::vector<float> out(n, -7);
  Initialize(init, first, out.data(), n);
  return out;
}

TEST_CASE("an element's initial value does not depend on chunks and partitions") {
  for (const auto kind : {v1::Initializer::UNIFORM, v1::Initializer::NORMAL}) {
    const v1::Initializer init = Make(kind, -1, 2, 42);
    const std::vector<float> whole = Run(init, 0, 1000);
    for (const size_t piece : {1, 7, 64, 333}) {
      std::vector<float> pieces;
      for (size_t i = 0; i < whole.size(); i += piece) {
        const std::vector<float> part = Run(init, i, std::min(piece, whole.size() - i));
        pieces.insert(pieces.end(), part.begin(), part.end());
      }
      CHECK(SameBits(pieces, whole));
    }
    CHECK_FALSE(SameBits(whole, Run(Make(kind, -1, 2, 43), 0, 1000)));
  }
}

// A restart without a checkpoint, and every other machine, must compute these bits.
TEST_CASE("initial values are the same on every machine and in every build") {
  const std::vector<float> uniform = Run(Make(v1::Initializer::UNIFORM, 0, 1, 1), 0, 3);
  const std::vector<float> normal = Run(Make(v1::Initializer::NORMAL, 0, 1, 1), 0, 3);
  CHECK(uniform == std::vector<float>{0x1.b9c848p-1f, 0x1.7906acp-2f, 0x1.e31adap-1f});
  CHECK(normal == std::vector<float>{0x1.17debp+0f, -0x1.58bb6p-2f, 0x1.95ddeap+0f});
}

TEST_CASE("uniform values fill [a, b) evenly") {
  const std::vector<float> v = Run(Make(v1::Initializer::UNIFORM, -0.5, 1.5, 3), 0, 200000);
  double sum = 0;
  std::vector<int> bins(10);
  for (const float x : v) {
    REQUIRE(x >= -0.5f);
    REQUIRE(x < 1.5f);
    sum += x;
    ++bins[static_cast<size_t>((x + 0.5f) / 0.2f)];
  }
  CHECK(sum / 200000 == Approx(0.5).margin(0.006));
  for (const int b : bins) CHECK(b == Approx(20000).margin(700));
}

TEST_CASE("the upper end of a uniform range is never reached, not even by rounding") {
  // Between a and b there is no other float: half the draws would round to b.
  const float b = std::nextafter(1.0f, 2.0f);
  for (const float x : Run(Make(v1::Initializer::UNIFORM, 1, b, 3), 0, 1000)) REQUIRE(x == 1.0f);
}

TEST_CASE("normal values have the requested mean, deviation and tails") {
  const std::vector<float> v = Run(Make(v1::Initializer::NORMAL, 3, 0.5, 9), 1 << 20, 200000);
  double sum = 0;
  double squares = 0;
  int beyond2 = 0;
  for (const float x : v) {
    sum += x - 3;
    squares += (x - 3) * (x - 3);
    beyond2 += std::abs(x - 3) > 1 ? 1 : 0;
  }
  CHECK(sum / 200000 == Approx(0).margin(0.005));
  CHECK(std::sqrt(squares / 200000) == Approx(0.5).margin(0.005));
  CHECK(beyond2 / 200000.0 == Approx(0.0455).margin(0.002));
}

TEST_CASE("the inverse of the normal distribution inverts it") {
  for (double p = 1e-16; p < 1; p = p < 1e-3 ? p * 3 : p + 0.001) {
    const double x = InverseNormal(p);
    CHECK(0.5 * std::erfc(-x / std::sqrt(2.0)) == Approx(p).epsilon(1e-12));
  }
  CHECK(InverseNormal(0.5) == 0);
  CHECK(InverseNormal(0.25) == -InverseNormal(0.75));
}

TEST_CASE("zeros and constants") {
  CHECK(Run(Make(v1::Initializer::ZEROS, 5, 5, 1), 3, 4) == Filled(4, 0));
  CHECK(Run(Make(v1::Initializer::CONSTANT, 2.5, 0, 1), 3, 4) == Filled(4, 2.5f));
}

// One table over 1, 2 and 3 servers: every chunk has the same bits wherever it is.
TEST_CASE("a table starts with the same parameters for any number of servers") {
  const auto start = [](uint32_t servers) {
    std::vector<std::vector<float>> chunks(12);
    FixtureOptions o;
    o.partitions = 6;
    o.chunks = 12;
    o.last_elements = 5;
    for (uint32_t s = 0; s < servers; ++s) {
      Fixture f(o);
      v1::TableSpec* spec = f.view.mutable_tables(0)->mutable_spec();
      *spec->mutable_initializer() = Make(v1::Initializer::NORMAL, 0, 1, 77);
      for (v1::Partition& p : *f.view.mutable_partitions()) {
        p.set_primary(kServer + p.id() % servers);
      }
      EngineOptions options;
      options.server = kServer + s;
      f.engine = std::make_unique<Engine>(options);
      REQUIRE(f.Apply().ok());
      for (uint32_t c = 0; c < 12; ++c) {
        const std::vector<float> values = f.Read(c);
        if (f.PartitionOf(c) % servers != s) {
          CHECK(values.empty());
          continue;
        }
        chunks[c] = values;
      }
    }
    std::vector<float> all;
    for (const auto& c : chunks) all.insert(all.end(), c.begin(), c.end());
    return all;
  };
  const std::vector<float> one = start(1);
  REQUIRE(one.size() == 11 * 16 + 5);
  CHECK(SameBits(one, start(2)));
  CHECK(SameBits(one, start(3)));
}

TEST_CASE("a row is a function of seed and key, and rows are as random as elements") {
  const v1::Initializer init = Make(v1::Initializer::NORMAL, 0, 1, 42);
  const auto row = [&](uint64_t key, size_t dim) {
    std::vector<float> out(dim, -7);
    InitializeRow(init, key, out.data(), dim);
    return out;
  };
  // Keys that a product with dim, or a sum with an element's index, would confuse.
  CHECK_FALSE(SameBits(row(0, 8), row(uint64_t{1} << 61, 8)));
  CHECK(row(5, 8)[1] != row(6, 8)[0]);
  std::vector<float> shorter = row(9, 8);
  shorter.resize(4);
  CHECK(SameBits(shorter, row(9, 4)));
  CHECK_FALSE(SameBits(row(0, 8), Run(init, 0, 8)));
  double sum = 0;
  double squares = 0;
  double neighbours = 0;  // of the same element in the rows of keys that count up
  constexpr uint64_t kKeys = 20000;
  float last = 0;
  for (uint64_t key = 0; key < kKeys; ++key) {
    const float x = row(key, 3)[2];
    sum += x;
    squares += double{x} * x;
    neighbours += double{x} * last;
    last = x;
  }
  CHECK(sum / kKeys == Approx(0).margin(0.03));
  CHECK(squares / kKeys == Approx(1).margin(0.05));
  CHECK(neighbours / kKeys == Approx(0).margin(0.03));
  std::vector<float> zeros(5, 1);
  InitializeRow(Make(v1::Initializer::ZEROS, 0, 0, 1), 3, zeros.data(), 5);
  CHECK(zeros == std::vector<float>(5, 0));
}

}  // namespace
}  // namespace verbena::shard
