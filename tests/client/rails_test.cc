// Which partition is on which rail.
#include "client/core/rails.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <vector>

namespace verbena::client {
namespace rails_test {

constexpr uint32_t kPartitions = 16;

std::vector<uint32_t> Rails(RailPins* pins, uint32_t partitions = kPartitions) {
  std::vector<uint32_t> rails;
  for (uint32_t p = 0; p < partitions; ++p) rails.push_back(pins->Of(p));
  return rails;
}

uint32_t Count(const std::vector<uint32_t>& rails, uint32_t rail) {
  return static_cast<uint32_t>(std::count(rails.begin(), rails.end(), rail));
}

TEST_CASE("before any rail is up, everything waits on the first") {
  RailPins pins;
  CHECK(Count(Rails(&pins), 0) == kPartitions);
  // Whichever comes first has it all.
  pins.Up(1);
  CHECK(Count(Rails(&pins), 1) == kPartitions);
}

TEST_CASE("partitions are spread evenly over the rails that are up, and move no more than needed") {
  RailPins pins;
  Rails(&pins);
  pins.Up(0);
  const std::vector<uint32_t> one = Rails(&pins);
  CHECK(Count(one, 0) == kPartitions);
  pins.Up(1);
  const std::vector<uint32_t> two = Rails(&pins);
  CHECK(Count(two, 0) == kPartitions / 2);
  CHECK(Count(two, 1) == kPartitions / 2);
  pins.Up(2);
  const std::vector<uint32_t> three = Rails(&pins);
  for (uint32_t rail = 0; rail < 3; ++rail) {
    CHECK(Count(three, rail) >= 5);
    CHECK(Count(three, rail) <= 6);
  }
  for (uint32_t p = 0; p < kPartitions; ++p) CHECK((three[p] == two[p] || three[p] == 2));
}

TEST_CASE("only pins of a lost rail move to the others, and they return with it") {
  RailPins pins;
  Rails(&pins);
  pins.Up(0);
  pins.Up(1);
  const std::vector<uint32_t> before = Rails(&pins);
  pins.Down(1);
  CHECK(Count(Rails(&pins), 0) == kPartitions);
  pins.Up(1);
  CHECK(Count(Rails(&pins), 1) == kPartitions / 2);
  SECTION("the last one's stay: there is nowhere to go") {
    pins.Down(0);
    pins.Down(1);
    CHECK(Count(Rails(&pins), 1) == kPartitions);
    pins.Up(0);
    CHECK(Count(Rails(&pins), 0) == kPartitions);
  }
}

TEST_CASE("rails are even in bytes, not in partitions") {
  RailPins pins;
  pins.Up(0);
  pins.Up(1);
  Rails(&pins);
  pins.Add(3, 9000);
  for (uint32_t p = 0; p < kPartitions; ++p) pins.Add(p, 600);
  pins.Balance();
  const std::vector<uint32_t> rails = Rails(&pins);
  CHECK(Count(rails, rails[3]) == 1);
  CHECK(pins.load(0) + pins.load(1) > 0);
  SECTION("small differences move nothing") {
    pins.Add(0, 500);
    pins.Balance();
    CHECK(Rails(&pins) == rails);
  }
}

TEST_CASE("a partition that is new goes to the emptiest rail; one that left is not counted") {
  RailPins pins;
  pins.Up(0);
  pins.Up(1);
  const uint32_t first = pins.Of(0);
  pins.Add(0, 1000);
  CHECK(pins.Of(1) != first);
  CHECK(pins.Of(2) != first);
  pins.Forget(0);
  CHECK(pins.load(first) == 0);
  CHECK(pins.Of(3) == first);
}

TEST_CASE("old traffic counts less and less") {
  RailPins pins;
  pins.Up(0);
  Rails(&pins, 2);
  pins.Add(0, 1 << 20);
  for (int i = 0; i < 30; ++i) {
    pins.Up(1);
    pins.Down(1);
  }
  CHECK(pins.load(0) < 10);
}

}  // namespace rails_test
}  // namespace verbena::client
