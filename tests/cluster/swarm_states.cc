#include "tests/cluster/swarm_states.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace verbena::test {
namespace {

// Exact in f32 for as many assignments as a run has, and more than the squares of pushes add.
constexpr float kEach = 1 << 24;

}  // namespace

float SwarmStates::Attempt(absl::Span<const uint32_t> units, uint32_t generation, uint64_t step) {
  const float value = kEach * static_cast<float>(++assigned_);
  for (const uint32_t unit : units) {
    units_[unit].attempted = value;
    units_[unit].last = {generation, step + 1};
  }
  return value;
}

uint64_t SwarmStates::AppliesOf(float value) {
  return static_cast<uint64_t>(value / kEach) * 1'000'000;
}

void SwarmStates::Acknowledge(uint32_t unit, float value) {
  Unit& u = units_[unit];
  u.acknowledged = std::max(u.acknowledged, value);
}

// What was attempted may come after it.
void SwarmStates::Reset(uint32_t unit) { units_[unit].acknowledged = 0; }

std::string SwarmStates::Check(uint32_t unit, absl::Span<const float> values, float least) const {
  const Unit& u = units_[unit];
  const float value = values[0];
  const auto wrong = [&](const char* problem) {
    return absl::StrCat(problem, ": read ", value, ", at least ", least, " expected; ",
                        u.acknowledged, " acknowledged, ", u.attempted, " attempted");
  };
  for (const float other : values) {
    if (other != value) return wrong("half of an assignment of state was read");
  }
  if (!(value >= least)) return wrong("an acknowledged assignment of state is missing");
  if (!restored_ && !(value < u.attempted + kEach / 2)) {
    return wrong("more state than was assigned");
  }
  return "";
}

}  // namespace verbena::test
