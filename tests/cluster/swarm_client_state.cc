// Assignments and pulls of the optimizer's state by a client of the swarm.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/cluster/heap_block.h"
#include "tests/cluster/swarm_client.h"

namespace verbena::test {

bool SwarmClient::OfState(const SwarmTable& table, const Operation& operation) {
  if (!world_->plan.has(SwarmFeature::kStates) || !table.states().any() || table.restoring() ||
      operation.pushes == operation.pulls) {
    return false;
  }
  constexpr uint32_t kEvery = 3;
  if (++of_state_ % kEvery != 0) return false;
  return operation.pulls || MayAssignState(table, operation);
}

bool SwarmClient::MayAssignState(const SwarmTable& table, const Operation& operation) const {
  const bool steps = table.steps() != nullptr;
  return std::all_of(operation.units.begin(), operation.units.end(), [&](uint32_t unit) {
    // Without steps an earlier assignment must not come after it.
    if (!steps) return !pushing_.contains({table.id(), unit});
    return table.states().MayAssign(unit, stepper_.generation(), operation.step);
  });
}

void SwarmClient::BeginState(SwarmTable* table, Operation* operation) {
  if (operation->pulls) {
    operation->pulled = std::make_shared<client::PulledState>();
    operation->pulled->array = 1;
    for (size_t i = 0; i < operation->units.size(); ++i) {
      operation->least[i] = static_cast<double>(table->states().Least(operation->units[i]));
    }
    return;
  }
  const bool steps = table->steps() != nullptr;
  operation->assigned = table->states().Attempt(operation->units, steps ? stepper_.generation() : 0,
                                                steps ? operation->step : 0);
  uint64_t elements = 0;
  for (const uint32_t unit : operation->units) elements += table->elements(unit);
  operation->gradient = HeapBlock(elements * sizeof(float));
  std::fill_n(reinterpret_cast<float*>(operation->gradient->data()), elements, operation->assigned);
}

void SwarmClient::CheckStates(const Operation& operation, const SwarmTable& table) {
  const auto* from = reinterpret_cast<const float*>(operation.values->data());
  uint64_t applies = UINT64_MAX;
  bool same = true;
  for (size_t i = 0; i < operation.units.size(); ++i) {
    const uint32_t unit = operation.units[i];
    const absl::Span<const float> values = {from, table.elements(unit)};
    from += values.size();
    const auto least = static_cast<float>(operation.least[i]);
    applies = std::min(applies, SwarmStates::AppliesOf(least));
    const uint32_t partition = table.units()[unit].partition;
    if (operation.lives[i] != table.life(partition) || table.lost(partition)) {
      same = false;
      continue;
    }
    const std::string wrong = table.states().Check(unit, values, least);
    if (wrong.empty()) continue;
    world_->Violation(absl::StrCat(process_->host(), ": table ", table.id(), " '",
                                   table.spec().name(), "' chunk ", unit, " (partition ", partition,
                                   "): ", wrong));
  }
  if (same && operation.pulled->least_applies < applies) {
    world_->Violation(absl::StrCat(
        process_->host(), ": table ", table.id(), ": state after ", operation.pulled->least_applies,
        " applies was read, where an assignment set at least ", applies));
  }
}

}  // namespace verbena::test
