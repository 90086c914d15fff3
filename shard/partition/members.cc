#include "shard/partition/members.h"

#include <algorithm>
#include <utility>

namespace verbena::shard {

Members::Change Members::Update(const v1::Job& job) {
  const bool reset = generation_ != job.generation() || expected() != job.expected_workers();
  const std::vector<Slot> slots_before = slots_;
  const std::vector<uint64_t> owners_before = index_owners_;
  known_ = true;
  generation_ = job.generation();
  slots_.assign(job.expected_workers(), {});
  for (const int32_t rank : job.departed_ranks()) {
    if (rank >= 0 && static_cast<uint32_t>(rank) < expected()) slots_[rank].departed = true;
  }
  absl::flat_hash_map<uint64_t, Member> before = std::exchange(members_, {});
  for (const v1::Worker& w : job.members()) {
    const auto it = before.find(w.incarnation());
    const uint32_t index = it == before.end() ? kNoIndex : it->second.index;
    members_[w.incarnation()] = {w.rank(), index, w.may_write()};
    if (it != before.end()) before.erase(it);
    if (w.rank() >= 0 && static_cast<uint32_t>(w.rank()) < expected()) {
      slots_[w.rank()] = {w.incarnation(), false};
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

Members::Change Members::Clear() {
  if (!known_) return Change::kNone;
  known_ = false;
  for (Slot& s : slots_) s = {0, s.departed};
  std::fill(index_owners_.begin(), index_owners_.end(), 0);
  members_.clear();
  return Change::kMembers;
}

}  // namespace verbena::shard
