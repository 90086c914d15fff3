#include "tests/cluster/swarm_stepper.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::test {

SwarmStepper::SwarmStepper(SwarmWorld* world, const SwarmJob* job) : world_(world), job_(job) {}

void SwarmStepper::Begin(uint32_t table, uint64_t first) {
  if (first > 0) steps_.try_emplace(table, Steps{first, first, {}, first});
}

uint64_t SwarmStepper::step(uint32_t table) const {
  const auto it = steps_.find(table);
  return it == steps_.end() ? 0 : it->second.step;
}

uint64_t SwarmStepper::first(uint32_t table) const {
  const auto it = steps_.find(table);
  return it == steps_.end() ? 0 : it->second.first;
}

uint64_t SwarmStepper::unpushed_step(uint32_t table) const {
  const auto it = steps_.find(table);
  if (it == steps_.end()) return 0;
  return it->second.step + (it->second.pushed.empty() ? 0 : 1);
}

bool SwarmStepper::Shows(const SwarmTable& table, uint32_t unit, uint64_t version) const {
  const auto it = steps_.find(table.id());
  if (it == steps_.end()) return version == 0;
  // A chunk to which all have pushed is committed whether or not they have ended the step.
  const bool pushed = !table.embedding() && it->second.pushed.contains(unit);
  return version == it->second.step && !pushed;
}

bool SwarmStepper::Spanned(const v1::Table& table) const {
  return !table.restoring() && table.spec().job() == job_->plan.name &&
         table.spec().optimizer().clip_global_norm() > 0;
}

bool SwarmStepper::Apart(const v1::ClusterView& view) const {
  uint64_t least = UINT64_MAX, most = 0;
  for (const v1::Table& table : view.tables()) {
    // One that was not opened yet has no step: its first one may be any.
    if (!Spanned(table) || !steps_.contains(table.id())) continue;
    least = std::min(least, step(table.id()));
    most = std::max(most, step(table.id()));
  }
  return most > 0 && least + 1 < most;
}

bool SwarmStepper::MayEnd(const SwarmTable& table, const v1::ClusterView& view) const {
  if (!table.clipped()) return true;
  const auto takes_part = [&](uint32_t id) {
    return step(id) == step(table.id()) || step(id) == step(table.id()) + 1;
  };
  // The client counts tables that it still knows, and would leave out tables that it does not know
  // yet.
  for (const v1::Table& other : view.tables()) {
    if (Spanned(other) && !takes_part(other.id())) return false;
  }
  return std::all_of(world_->tables.begin(), world_->tables.end(), [&](const auto& entry) {
    const SwarmTable& other = entry.second;
    if (other.dropped() || other.restoring() || !other.clipped()) return true;
    if (other.spec().job() != job_->plan.name) return true;
    const bool known =
        std::any_of(view.tables().begin(), view.tables().end(),
                    [&](const v1::Table& t) { return t.id() == other.id() && !t.restoring(); });
    return known && takes_part(other.id());
  });
}

SwarmStepper::Turn SwarmStepper::Draw(const SwarmTable& table, const v1::ClusterView& view) {
  Steps& steps = steps_[table.id()];
  const bool ahead = steps.step >= steps.known + world_->plan.ahead;
  Turn turn;
  if (ahead || world_->Chance(0.3)) {
    turn.read = !reads_;
    turn.whole = turn.read && (ahead || world_->Chance(0.3));
    return turn;
  }
  const bool may_end = MayEnd(table, view);
  if (may_end && !reads_ && steps.pushed.empty() && !table.embedding() && !table.lost_any() &&
      world_->Chance(0.2)) {
    turn.push_pull = true;
    return turn;
  }
  turn.push = world_->Chance(0.85);
  turn.end = may_end && (!turn.push || world_->Chance(0.7));
  return turn;
}

std::string SwarmStepper::Describe() const {
  std::string text;
  for (const auto& [table, steps] : steps_) {
    absl::StrAppend(&text, " table ", table, " in step ", steps.step, " of version ", steps.known,
                    ",");
  }
  return text;
}

std::vector<uint32_t> SwarmStepper::Unpushed(const SwarmTable& table,
                                             const std::vector<uint32_t>& units) const {
  const auto it = steps_.find(table.id());
  if (table.embedding() || it == steps_.end()) return units;
  std::vector<uint32_t> left;
  for (const uint32_t unit : units) {
    if (!it->second.pushed.contains(unit)) {
      left.push_back(unit);
    } else if (!left.empty()) {
      break;
    }
  }
  return left;
}

void SwarmStepper::Pushed(uint32_t table, const std::vector<uint32_t>& units) {
  steps_[table].pushed.insert(units.begin(), units.end());
}

void SwarmStepper::End(uint32_t table) {
  Steps& steps = steps_[table];
  ++steps.step;
  steps.pushed.clear();
}

void SwarmStepper::Known(uint32_t table, uint64_t version) {
  Steps& steps = steps_[table];
  steps.known = std::max(steps.known, version);
}

}  // namespace verbena::test
