#include "shard/partition/clocks.h"

#include <algorithm>
#include <limits>

namespace verbena::shard {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

}  // namespace

uint64_t Clocks::Least(const LocalPartition& slice) const {
  if (!complete_) return slice.least;  // step 0 waits for all expected workers
  uint64_t least = kMax;
  for (size_t i = 0; i < slice.clocks.size(); ++i) {
    if (counts_[i] != 0) least = std::min(least, slice.clocks[i]);
  }
  return least == kMax ? slice.least : std::max(least, slice.least);
}

void Clocks::Follow(uint32_t slices) {
  // Departed workers first, so that a joiner starts at the least clock of the remaining ones.
  std::vector<uint32_t> joined;
  owners_.resize(std::max<size_t>(owners_.size(), members_.indices()));
  counts_.resize(owners_.size());
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    const uint64_t owner = i < members_.indices() ? members_.index_owner(i) : 0;
    if (owners_[i] == owner) continue;
    owners_[i] = owner;
    counts_[i] = 0;
    if (owner != 0) joined.push_back(i);
  }
  const auto known = static_cast<uint32_t>(slices_.size());
  slices_.resize(slices);
  for (LocalPartition& s : slices_) {
    s.clocks.resize(owners_.size());
    // Before complete_ changes: the last expected worker to come starts where all did.
    s.least = Least(s);
    for (const uint32_t i : joined) s.clocks[i] = s.least;
  }
  for (const uint32_t i : joined) {
    const Members::Member* member = members_.Find(owners_[i]);
    counts_[i] = member != nullptr && member->rank >= 0 ? 1 : 0;
  }
  complete_ = true;
  for (uint32_t rank = 0; rank < members_.expected(); ++rank) {
    complete_ &= members_.owner(rank) != 0 || members_.departed(rank);
  }
  for (LocalPartition& s : slices_) s.least = Least(s);
  for (uint32_t s = 0; s < slices; ++s) {
    for (const uint32_t i : joined) replicate_(s, {owners_[i], 0, of(s, i)});
    if (s >= known) ReplicateAll(s);
  }
}

void Clocks::ReplicateAll(uint32_t slice) const {
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] != 0) replicate_(slice, {owners_[i], 0, of(slice, i)});
  }
}

void Clocks::Adopt(uint32_t slice, absl::Span<const WorkerMark> marks) {
  LocalPartition& s = slices_[slice];
  std::vector<uint8_t> known(s.clocks.size());
  for (const WorkerMark& mark : marks) {
    const Members::Member* member = members_.Find(mark.worker);
    if (member == nullptr || member->index == Members::kNoIndex) continue;
    known[member->index] = 1;
    s.clocks[member->index] = mark.clock;
  }
  // The primary before may not have known of them. One of them may be an expected worker, whose
  // steps count from the first: the others wait until it ends its next step, which carries its
  // number.
  for (size_t i = 0; i < s.clocks.size(); ++i) {
    if (known[i] == 0) s.clocks[i] = s.least;
  }
  s.least = std::max(s.least, Least(s));
}

bool Clocks::EndStep(uint32_t slice, const Members::Member& member, uint64_t clock) {
  LocalPartition& s = slices_[slice];
  uint64_t& mine = s.clocks[member.index];
  if (clock <= mine) return false;
  const bool was_least = mine == s.least;
  mine = clock;
  if (!was_least) return false;
  const uint64_t least = Least(s);
  if (least == s.least) return false;
  s.least = least;
  return true;
}

bool Clocks::Readable(const Members::Member& member, uint32_t slice, uint64_t clock,
                      Answer* answer) const {
  const uint64_t least = slices_[slice].least;
  answer->version = least;
  answer->detail = 0;
  if (member.rank < 0) return true;  // an observer has no clock
  const uint64_t behind = clock > least ? clock - least : 0;
  answer->detail = static_cast<uint32_t>(std::min<uint64_t>(behind, UINT32_MAX));
  return behind <= bound_;
}

void Clocks::Reset() {
  slices_.clear();
  owners_.clear();
  counts_.clear();
  complete_ = false;
}

}  // namespace verbena::shard
