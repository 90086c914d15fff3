#include "tests/cluster/swarm_members.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"

namespace verbena::test {

void SwarmMembers::Joined(uint64_t incarnation, uint32_t generation) {
  generations_[incarnation] = generation;
}

void SwarmMembers::Pushed(uint64_t incarnation, uint32_t table, uint64_t step, uint32_t chunk) {
  uint64_t& pushed = steps_[{incarnation, table}].pushed[chunk];
  pushed = std::max(pushed, step + 1);
}

void SwarmMembers::Ended(uint64_t incarnation, uint32_t table, uint64_t step) {
  uint64_t& ended = steps_[{incarnation, table}].ended;
  ended = std::max(ended, step + 1);
}

const SwarmMembers::Steps* SwarmMembers::Find(uint64_t incarnation, uint32_t table) const {
  const auto it = steps_.find({incarnation, table});
  return it == steps_.end() ? nullptr : &it->second;
}

bool SwarmMembers::Took(const Steps& steps, const shard::Commit& commit, bool rows) const {
  if (steps.ended > commit.step) return true;
  const auto pushed = steps.pushed.find(commit.chunk);
  return !rows && pushed != steps.pushed.end() && pushed->second > commit.step;
}

bool SwarmMembers::IsOf(const shard::Commit& commit, uint32_t generation) const {
  return !commit.contributors.empty() &&
         std::all_of(commit.contributors.begin(), commit.contributors.end(), [&](uint64_t worker) {
           const auto it = generations_.find(worker);
           return it != generations_.end() && it->second == generation;
         });
}

std::string SwarmMembers::Check(const shard::Commit& commit, bool rows, const v1::Job& job) const {
  if (!IsOf(commit, job.generation())) return "";
  const std::string text = absl::StrCat(rows ? "partition " : "chunk ", commit.chunk, " of table ",
                                        commit.table, " committed step ", commit.step);
  uint32_t least = 0;
  for (const v1::Worker& member : job.members()) {
    if (member.rank() < 0) continue;
    const v1::FirstStep* first = FirstStepOf(commit.table, member, job);
    const uint64_t first_step = first == nullptr ? 0 : first->step();
    const bool contributed = std::find(commit.contributors.begin(), commit.contributors.end(),
                                       member.incarnation()) != commit.contributors.end();
    if (commit.step < first_step) {
      if (!contributed) continue;
      return absl::StrCat(text, " with worker ", member.incarnation(), ", whose first step is ",
                          first_step);
    }
    ++least;
    const Steps* steps = Find(member.incarnation(), commit.table);
    if (steps != nullptr && Took(*steps, commit, rows)) continue;
    return absl::StrCat(text, " without worker ", member.incarnation(), ", whose first step is ",
                        first_step);
  }
  uint32_t most = 0;
  for (const auto& [key, steps] : steps_) {
    const auto run = generations_.find(key.first);
    if (key.second != commit.table || run == generations_.end()) continue;
    // One that died had perhaps pushed rows, and not ended the step.
    const bool contributed = std::find(commit.contributors.begin(), commit.contributors.end(),
                                       key.first) != commit.contributors.end();
    const bool took = contributed || Took(steps, commit, rows);
    most += run->second == job.generation() && took ? 1 : 0;
  }
  least = std::max(least, static_cast<uint32_t>(commit.contributors.size()));
  if (least <= commit.divisor && commit.divisor <= most) return "";
  return absl::StrCat(text, " of ", commit.divisor, " workers, not of ", least, " to ", most);
}

}  // namespace verbena::test
