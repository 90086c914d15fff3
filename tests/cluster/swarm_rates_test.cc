// The swarm's model of rates: which a partition may have in an apply.
#include "tests/cluster/swarm_rates.h"

#include <catch2/catch.hpp>

namespace verbena::test {
namespace {

bool Is(const SwarmBounds& bounds, double low, double high) {
  return bounds.low == low && bounds.high == high;
}

TEST_CASE("a change of the rate is in force from its step on, once it is acknowledged") {
  SwarmRates rates(1, 2);
  const uint64_t change = rates.Attempt(3, 0, 4);
  CHECK(Is(rates.At(0, 2), 1, 1));
  CHECK(Is(rates.At(0, 3), 1, 4));
  rates.Acknowledge(change);
  CHECK(Is(rates.At(0, 2), 1, 1));
  CHECK(Is(rates.At(1, 3), 4, 4));
  CHECK(Is(rates.At(1, 9), 4, 4));
  rates.Reset(0);
  CHECK(Is(rates.At(0, 9), 1, 1));
  CHECK(Is(rates.At(1, 9), 4, 4));
}

TEST_CASE("in a step the change by the greatest rank counts, and of a rank the last one") {
  SwarmRates rates(1, 1);
  rates.Acknowledge(rates.Attempt(0, 1, 2));
  rates.Acknowledge(rates.Attempt(0, 0, 4));
  CHECK(Is(rates.At(0, 0), 2, 2));
  rates.Acknowledge(rates.Attempt(0, 1, 3));
  CHECK(Is(rates.At(0, 0), 3, 3));
  rates.Attempt(0, 2, 4);
  CHECK(Is(rates.At(0, 0), 3, 4));
}

TEST_CASE("a change from a process that died may be in force after later changes") {
  SwarmRates rates(1, 1);
  rates.Orphan(rates.Attempt(1, 0, 4));
  rates.Acknowledge(rates.Attempt(2, 0, 2));
  CHECK(Is(rates.At(0, 0), 1, 1));
  CHECK(Is(rates.At(0, 1), 1, 4));
  CHECK(Is(rates.At(0, 2), 2, 4));
}

TEST_CASE("a generation begins with all changes of the one before") {
  SwarmRates rates(1, 1);
  rates.Acknowledge(rates.Attempt(2, 0, 2));
  rates.Attempt(7, 0, 4);
  rates.BeginGeneration();
  CHECK(Is(rates.At(0, 0), 2, 4));
  SwarmRates restored(1, 1);
  restored.Restore(rates);
  CHECK(Is(restored.At(0, 0), 1, 4));
}

}  // namespace
}  // namespace verbena::test
