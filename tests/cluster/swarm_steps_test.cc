// The swarm's model of steps: bounds that hold, and that distinguish a wrong norm from a right one.
#include "tests/cluster/swarm_steps.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

namespace verbena::test {
namespace {

constexpr double kLimit = 30;
constexpr uint64_t kElements = 1000;

SwarmSteps MakeSteps(uint32_t units) {
  return {std::vector<uint64_t>(units, kElements), false, [](double value) { return value; }, true};
}

// One worker pushes 1 to all units in step 0 of generation 1, and ends it.
void MakeStep(SwarmSteps* steps, uint32_t units) {
  steps->FollowJob(1, 1, 0);
  for (uint32_t u = 0; u < units; ++u) steps->Attempt(1, 0, u, 1);
  for (uint32_t u = 0; u < units; ++u) REQUIRE(steps->Acknowledge(1, 0, u, 1).empty());
  steps->End(1, 0, 0);
}

// The amount that a step whose norm spans so many units adds to each number.
double Clipped(uint32_t units) { return kLimit / std::sqrt(double{kElements} * units); }

TEST_CASE("regression: a generation begins with values clipped by the whole norm of the last one") {
  SwarmNorm norm;
  SwarmSteps first = MakeSteps(2), second = MakeSteps(1);
  for (SwarmSteps* steps : {&first, &second}) {
    steps->Clip(&norm, kLimit);
    norm.Add(steps);
  }
  MakeStep(&first, 2);
  MakeStep(&second, 1);
  for (uint32_t u = 0; u < 2; ++u) first.Commit(1, u, 1);
  second.Commit(1, 0, 1);
  for (SwarmSteps* steps : {&first, &second}) steps->Leave(2);
  for (SwarmSteps* steps : {&first, &second}) steps->FollowJob(2, 1, 0);
  SECTION("the norm of all tables is right") {
    CHECK(first.Check(2, 0, 0, Clipped(3), false).empty());
    CHECK(first.Check(2, 1, 0, Clipped(3), false).empty());
    CHECK(second.Check(2, 0, 0, Clipped(3), false).empty());
  }
  SECTION("that of one table, or of one unit, is not, nor a step that is applied twice") {
    for (const double wrong : {Clipped(2), Clipped(1), 2 * Clipped(3), 1.0, 0.0}) {
      CAPTURE(wrong);
      CHECK_FALSE(first.Check(2, 1, 0, wrong, false).empty());
      CHECK_FALSE(second.Check(2, 0, 0, wrong, false).empty());
    }
  }
}

TEST_CASE("regression: a lost unit stays in the norm of the steps that it was in") {
  SwarmNorm norm;
  SwarmSteps steps = MakeSteps(2);
  steps.Clip(&norm, kLimit);
  norm.Add(&steps);
  MakeStep(&steps, 2);
  steps.Commit(1, 1, 1);
  norm.Disturb(&steps, false);
  steps.Reset(0);
  CHECK(steps.Check(1, 1, 1, Clipped(2), false).empty());
}

TEST_CASE("regression: a step's norm lacks the gradients that an assignment of state replaces") {
  SwarmNorm norm;
  SwarmSteps steps = MakeSteps(2);
  steps.Clip(&norm, kLimit);
  norm.Add(&steps);
  MakeStep(&steps, 2);
  SECTION("they count without one") {
    CHECK_FALSE(steps.Check(1, 1, 1, Clipped(1), false).empty());
    CHECK(steps.Check(1, 1, 1, Clipped(2), false).empty());
  }
  SECTION("they may not count with one") {
    steps.AttemptState(1, 0, 0);
    CHECK_FALSE(steps.Check(1, 1, 1, 1, false).empty());
    CHECK(steps.Check(1, 1, 1, Clipped(1), false).empty());
  }
}

TEST_CASE("a restored unit begins with its restored value, in any generation") {
  SwarmSteps steps = MakeSteps(1);
  steps.FollowJob(3, 1, 0);
  steps.Restore(0, 7);
  CHECK(steps.Low(0) == 7);
  CHECK(steps.High(0) == 7);
  CHECK_FALSE(steps.Check(3, 0, 0, 8, false).empty());
  steps.Attempt(3, 0, 0, 2);
  CHECK(steps.High(0) == 9);
  REQUIRE(steps.Acknowledge(3, 0, 0, 2).empty());
  CHECK(steps.Check(3, 0, 1, 9, true).empty());
  CHECK_FALSE(steps.Check(3, 0, 1, 11, true).empty());
}

TEST_CASE("an assignment takes the place of the gradients of its step") {
  SwarmSteps steps = MakeSteps(1);
  steps.FollowJob(1, 2, 0);
  steps.Attempt(1, 0, 0, 2);
  REQUIRE(steps.Acknowledge(1, 0, 0, 2).empty());
  const auto assigned = static_cast<double>(steps.AttemptAssign(1, 0, 0));
  REQUIRE(assigned > 2);
  CHECK(steps.High(0) == assigned);
  SECTION("acknowledged, it is there, and nothing else of its step") {
    REQUIRE(steps.AcknowledgeAssign(1, 0, 0).empty());
    CHECK_FALSE(steps.Check(1, 0, 1, 2, true).empty());
    CHECK_FALSE(steps.Check(1, 0, 1, assigned + 2, true).empty());
    CHECK(steps.Check(1, 0, 1, assigned, true).empty());
    steps.Attempt(1, 1, 0, 3);
    REQUIRE(steps.Acknowledge(1, 1, 0, 3).empty());
    CHECK(steps.Check(1, 0, 2, assigned + 3, true).empty());
  }
  SECTION("else the step has it or the gradients") {
    CHECK(steps.Check(1, 0, 1, 2, true).empty());
    CHECK_FALSE(steps.AcknowledgeAssign(1, 0, 0).empty());
  }
  SECTION("of two, one") {
    const auto second = static_cast<double>(steps.AttemptAssign(1, 0, 0));
    REQUIRE(steps.AcknowledgeAssign(1, 0, 0).empty());
    CHECK_FALSE(steps.Check(1, 0, 1, assigned + second, true).empty());
    CHECK(steps.Check(1, 0, 1, assigned, true).empty());
    CHECK(steps.MayAssign(1, 0));
    CHECK(static_cast<double>(steps.AttemptAssign(1, 1, 0)) > assigned);
    CHECK_FALSE(steps.MayAssign(0, 0));
  }
}

TEST_CASE("regression: bags of narrow rows are not rounded, other reads of them are") {
  // As bf16 has numbers from 512 on.
  const auto shown = [](double value) { return value < 512 ? value : std::floor(value / 4) * 4; };
  SwarmSteps steps({kElements}, false, shown, false);
  steps.FollowJob(1, 1, 0);
  steps.Attempt(1, 0, 0, 514);
  REQUIRE(steps.Acknowledge(1, 0, 0, 514).empty());
  CHECK(steps.Check(1, 0, 1, 512, false).empty());
  CHECK_FALSE(steps.Check(1, 0, 1, 514, false).empty());
  CHECK_FALSE(steps.Check(1, 0, 1, 512, true).empty());
  CHECK(steps.Check(1, 0, 1, 514, true).empty());
}

}  // namespace
}  // namespace verbena::test
