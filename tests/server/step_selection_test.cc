// The steps at which a checkpoint saves tables, selected from the steps that shards report.
#include "server/checkpoint/step_selection.h"

#include <catch2/catch.hpp>
#include <vector>

#include "server/checkpoint/files/failpoints.h"

namespace verbena::server {
namespace {

using Steps = std::vector<uint64_t>;

Steps After(StepChoice* choice, const Steps& first, const Steps& second,
            std::vector<bool> open = {}) {
  open.resize(first.size());
  REQUIRE(choice->looking());
  choice->Looked(first, open);
  REQUIRE(choice->looking());
  choice->Looked(second, open);
  REQUIRE_FALSE(choice->looking());
  return choice->steps();
}

TEST_CASE("step choice: without progress, the newest step is chosen") {
  StepChoice choice(2);
  CHECK(After(&choice, {0, 0}, {0, 0}) == Steps{0, 0});
}

TEST_CASE("step choice: tables of one training are saved at one step") {
  StepChoice moving(3);
  const Steps chosen = After(&moving, {100, 99, 98}, {103, 103, 101});
  CHECK(chosen[0] > 103);
  CHECK(chosen == Steps(3, chosen[0]));
  // In the middle of a step, where the last of it is about to come.
  StepChoice halting(2);
  CHECK(After(&halting, {7, 8}, {7, 8}) == Steps{8, 8});
}

TEST_CASE("step choice: too late, it goes farther ahead each time, and gives up") {
  StepChoice choice(2);
  uint64_t at = 10;
  After(&choice, {at - 1, at - 1}, {at, at});
  uint64_t ahead = 0;
  int tries = 0;
  for (; tries < 100; ++tries) {
    at = choice.steps()[0] + 1;
    if (!choice.TooLate(Steps{at, at - 1})) break;
    REQUIRE_FALSE(choice.looking());
    CHECK(choice.steps()[0] == choice.steps()[1]);
    CHECK(choice.steps()[0] - at >= 2 * ahead);
    ahead = choice.steps()[0] - at;
  }
  CHECK(tries > 10);
  CHECK(tries < 100);
}

TEST_CASE("step choice: tables that count by themselves have steps of their own") {
  StepChoice choice(3);
  const Steps chosen = After(&choice, {1000, 10, 20}, {1002, 12, 20});
  CHECK(chosen[0] > 1002);
  CHECK(chosen[1] > 12);
  CHECK(chosen[1] < 1000);
  CHECK(chosen[2] == 20);
}

constexpr int kWaitsAtMost = 6;

// How often a table that makes steps slowly, close behind a fast one, stands still at a step that
// is chosen for it, until it has one that it comes to soon.
int WaitsForSlow() {
  StepChoice choice(2);
  uint64_t fast = 100, slow = 60;
  int waits = 0;
  for (; waits < kWaitsAtMost; ++waits) {
    const Steps chosen = After(&choice, {fast - 4, slow - 1}, {fast, slow});
    if (chosen[1] <= slow + 3) break;
    CHECK(chosen[0] == chosen[1]);
    choice.StoodStill();
    fast += 10, ++slow;
  }
  return waits;
}

// By how many steps the table that is far behind is ahead of where it is, when the fast one was too
// late so often.
uint64_t AheadOfSlow(int late) {
  StepChoice choice(2);
  After(&choice, {1000, 10}, {1040, 11});
  for (int i = 0; i < late; ++i) {
    REQUIRE(choice.TooLate(Steps{choice.steps()[0] + 1, 11}));
  }
  return choice.steps()[1] - 11;
}

TEST_CASE("regression: a table that makes steps slowly is not taken for one as fast as another") {
  for (int late = 0; late < 6; ++late) CHECK(AheadOfSlow(late) == 3);
  const int waits = WaitsForSlow();
  CHECK(waits > 0);
  CHECK(waits < kWaitsAtMost);
}

TEST_CASE("failpoint: a table that makes steps slowly is waited for as if it were fast") {
  checkpoint::failpoints().checkpoint_at_one_pace = true;
  const uint64_t ahead = AheadOfSlow(0), later = AheadOfSlow(6);
  const int waits = WaitsForSlow();
  checkpoint::failpoints().checkpoint_at_one_pace = false;
  CHECK(ahead > 50);
  CHECK(later > 10);
  CHECK(waits == kWaitsAtMost);
}

TEST_CASE("step choice: tables of one training stay together however long a step takes") {
  StepChoice choice(2);
  for (uint64_t step = 10; step < 30; ++step) {
    const Steps chosen = After(&choice, {step, step - 1}, {step + 1, step});
    CHECK(chosen[0] == chosen[1]);
    choice.StoodStill();
  }
}

TEST_CASE("step choice: without workers every table is saved where it is, at once") {
  StepChoice choice(3);
  choice.SetTrained(false);
  CHECK(After(&choice, {10, 9, 100}, {11, 9, 100}) == Steps{11, 9, 100});
}

// The steps that are chosen for a table with a step more than another one, to whose next step a
// worker has contributed, when they have stood still for long.
Steps InsideStep(bool trained) {
  StepChoice choice(2);
  for (int i = 0; i < 10; ++i) {
    After(&choice, {155, 154}, {155, 154}, {false, true});
    choice.StoodStill();
  }
  choice.SetTrained(trained);
  return After(&choice, {155, 154}, {155, 154}, {false, true});
}

TEST_CASE("regression: a training that stands inside a step is not saved before and after it") {
  CHECK(InsideStep(true) == Steps{155, 155});
  CHECK(InsideStep(false) == Steps{155, 155});
  // Both have an open step, and the same committed ones.
  StepChoice choice(2);
  choice.SetTrained(false);
  CHECK(After(&choice, {155, 155}, {155, 155}, {true, true}) == Steps{155, 155});
}

TEST_CASE("failpoint: tables that stand within a step are saved before and after it") {
  checkpoint::failpoints().checkpoint_inside_step = true;
  const Steps trained = InsideStep(true), untrained = InsideStep(false);
  checkpoint::failpoints().checkpoint_inside_step = false;
  CHECK(trained == Steps{155, 154});
  CHECK(untrained == Steps{155, 154});
}

TEST_CASE("step choice: a table without progress is saved at its present step, others later") {
  StepChoice choice(2);
  CHECK(After(&choice, {10, 9}, {11, 9}) == Steps{14, 14});
  const int64_t patience = choice.still_nanos();
  choice.StoodStill();
  CHECK(choice.still_nanos() > patience);
  CHECK(After(&choice, {20, 9}, {20, 9}) == Steps{20, 20});  // it may only have paused
  choice.StoodStill();
  CHECK(After(&choice, {30, 9}, {31, 9}) == Steps{34, 34});
  choice.StoodStill();
  choice.StoodStill();
  CHECK(After(&choice, {30, 9}, {31, 9}) == Steps{31, 9});
  choice.StoodStill();
  CHECK(After(&choice, {31, 9}, {32, 9}) == Steps{35, 9});
  for (int i = 0; i < 100; ++i) choice.StoodStill();
  CHECK(choice.still_nanos() > 0);
}

}  // namespace
}  // namespace verbena::server
