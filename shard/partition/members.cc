#include "shard/partition/members.h"

#include <algorithm>
#include <utility>

namespace verbena::shard {

Members::Change Members::Update(const v1::Job& job) {
  const uint32_t ranks = std::max(job.expected_workers(), job.max_workers());
  const bool reset = generation_ != job.generation() || expected_ != job.expected_workers() ||
                     this->ranks() != ranks;
  const std::vector<Slot> slots_before = slots_;
  const std::vector<uint64_t> owners_before = index_owners_;
  known_ = true;
  generation_ = job.generation();
  expected_ = job.expected_workers();
  admission_ = job.admission();
  first_steps_.clear();
  for (const v1::MemberAdmission& admission : job.admissions()) {
    auto& steps = first_steps_[admission.number()];
    for (const v1::FirstStep& first : admission.first_steps()) steps[first.table()] = first.step();
  }
  slots_.assign(ranks, {});
  for (uint32_t rank = expected_; rank < ranks; ++rank) slots_[rank].departed = true;
  for (const int32_t rank : job.departed_ranks()) {
    if (rank >= 0 && static_cast<uint32_t>(rank) < ranks) slots_[rank].departed = true;
  }
  absl::flat_hash_map<uint64_t, Member> before = std::exchange(members_, {});
  for (const v1::Worker& w : job.members()) {
    const auto it = before.find(w.incarnation());
    const uint32_t index = it == before.end() ? kNoIndex : it->second.index;
    members_[w.incarnation()] = {w.rank(), index, w.may_write(), w.joining()};
    if (it != before.end()) before.erase(it);
    if (w.rank() >= 0 && static_cast<uint32_t>(w.rank()) < ranks) {
      slots_[w.rank()] = {w.incarnation(), false, w.admission()};
    }
  }
  for (uint64_t& owner : index_owners_) {
    if (!members_.contains(owner)) owner = 0;
  }
  for (const v1::Worker& w : job.members()) {
    Member& m = members_[w.incarnation()];
    if (w.rank() < 0 || m.index != kNoIndex) continue;
    const auto free = std::find(index_owners_.begin(), index_owners_.end(), uint64_t{0});
    m.index = static_cast<uint32_t>(free - index_owners_.begin());
    if (free == index_owners_.end()) index_owners_.push_back(0);
    index_owners_[m.index] = w.incarnation();
  }
  if (reset) return Change::kGeneration;
  if (slots_ != slots_before || index_owners_ != owners_before) return Change::kMembers;
  return before.empty() ? Change::kNone : Change::kObservers;
}

uint64_t Members::first_step(uint32_t rank, uint32_t table) const {
  const Slot& slot = slots_[rank];
  if (slot.incarnation == 0 || slot.admission == 0) return 0;
  const auto admission = first_steps_.find(slot.admission);
  if (admission == first_steps_.end()) return 0;
  const auto step = admission->second.find(table);
  return step == admission->second.end() ? 0 : step->second;
}

Members::Change Members::Clear() {
  if (!known_) return Change::kNone;
  known_ = false;
  for (Slot& s : slots_) s = {0, s.departed, 0};
  std::fill(index_owners_.begin(), index_owners_.end(), 0);
  members_.clear();
  return Change::kMembers;
}

}  // namespace verbena::shard
