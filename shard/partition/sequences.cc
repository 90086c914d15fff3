#include "shard/partition/sequences.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::shard {

void Sequences::Resize(const Members& members, uint32_t slices) {
  const auto known = static_cast<uint32_t>(owners_.size());
  owners_.resize(std::max(known, members.indices()));
  for (uint32_t i = known; i < owners_.size(); ++i) owners_[i] = members.index_owner(i);
  last_.resize(slices);
  for (std::vector<uint64_t>& last : last_) last.resize(owners_.size());
}

void Sequences::MembersChanged(const Members& members) {
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == members.index_owner(i)) continue;
    owners_[i] = members.index_owner(i);
    for (std::vector<uint64_t>& last : last_) last[i] = 0;
  }
}

void Sequences::Reset() {
  last_.clear();
  owners_.clear();
}

std::vector<WorkerMark> Sequences::Marks(uint32_t slice) const {
  std::vector<WorkerMark> marks;
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] != 0) marks.push_back({owners_[i], last_[slice][i], 0});
  }
  return marks;
}

void Sequences::Adopt(const Members& members, uint32_t slice, absl::Span<const WorkerMark> marks) {
  for (const WorkerMark& mark : marks) {
    const Members::Member* member = members.Find(mark.worker);
    if (member == nullptr || member->index == Members::kNoIndex) continue;
    last_[slice][member->index] = mark.sequence;
  }
}

ReplyStatus Sequences::Check(uint64_t sequence, uint64_t last, uint64_t next) {
  if (sequence <= last) {
    return VERBENA_FAILPOINT(shard, skip_dedupe) ? ReplyStatus::kOk : ReplyStatus::kDuplicate;
  }
  return sequence == next ? ReplyStatus::kOk : ReplyStatus::kSequenceGap;
}

ReplyStatus Sequences::Take(uint32_t slice, uint32_t member, uint64_t sequence) {
  uint64_t& last = last_[slice][member];
  const ReplyStatus status = Check(sequence, last, last + 1);
  if (status == ReplyStatus::kOk) last = sequence;
  return status;
}

}  // namespace verbena::shard
