#include "worker/models/count_models.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>

namespace verbena::worker {
namespace {

// Worked by hand. Train "abab": order 0 counts a 2, b 2 (4 bytes, 2 distinct).
//   p0(a) = p0(b) = (2 + 2/256) / 6
//   after a: b 2 (2 bytes, 1 distinct); after b: a 1 (1 byte, 1 distinct)
//   p1(b | a) = (2 + p0) / 3, p1(a | b) = (1 + p0) / 2
//   after ab: a 1; after ba: b 1: p2(a | ab) = (1 + p1(a | b)) / 2
TEST_CASE("Witten-Bell by hand") {
  const double p0 = (2 + 2.0 / 256) / 6;
  const double p1_b_after_a = (2 + p0) / 3;
  const double p1_a_after_b = (1 + p0) / 2;
  const double p2_a_after_ab = (1 + p1_a_after_b) / 2;
  const auto bits = CountModelBitsPerByte("abab", "aba");
  CHECK(bits[0] == Approx(-std::log2(p0)));
  CHECK(bits[1] ==
        Approx(-(std::log2(p0) + std::log2(p1_b_after_a) + std::log2(p1_a_after_b)) / 3));
  CHECK(bits[2] ==
        Approx(-(std::log2(p0) + std::log2(p1_b_after_a) + std::log2(p2_a_after_ab)) / 3));
}

TEST_CASE("a byte never seen costs the uniform share of the escape") {
  // Train "aaaa": 4 bytes, 1 distinct: p0(z) = (1/256) / 5. Context z was never seen, so the byte
  // after it costs as much as of order 0.
  const double unseen = 1.0 / 256 / 5;
  const double seen = (4 + 1.0 / 256) / 5;
  const auto bits = CountModelBitsPerByte("aaaa", "za");
  CHECK(bits[0] == Approx(-(std::log2(unseen) + std::log2(seen)) / 2));
  CHECK(bits[1] == Approx(bits[0]));
}

TEST_CASE("without training bytes every byte costs eight bits") {
  const std::string test = "anything\xff";
  for (const double bits : CountModelBitsPerByte("", test)) CHECK(bits == Approx(8));
  for (const double bits : CountModelBitsPerByte("abc", "")) CHECK(bits == 0);
}

TEST_CASE("probabilities over all bytes sum to one") {
  const std::string train = "the theory of the thing";
  double sums[3] = {};
  const auto prefix = CountModelBitsPerByte(train, "th");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string test = std::string("th") + static_cast<char>(byte);
    const auto whole = CountModelBitsPerByte(train, test);
    for (size_t order = 0; order < 3; ++order) {
      sums[order] += std::exp2(-(whole[order] * 3 - prefix[order] * 2));
    }
  }
  for (const double sum : sums) CHECK(sum == Approx(1));
}

}  // namespace
}  // namespace verbena::worker
