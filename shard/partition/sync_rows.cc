// The pushes of workers to the open step, the workers that have ended it, and changes of members.
#include "shard/partition/sync_rows.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "shard/failpoints.h"

namespace verbena::shard {

void SyncRows::Resize() {
  // A change of the number of ranks comes with Reset().
  if (owners_.empty()) {
    ranks_ = members_.ranks();
    owners_.assign(ranks_, 0);
    firsts_.assign(ranks_, 0);
    for (uint32_t r = 0; r < ranks_; ++r) {
      owners_[r] = members_.owner(r);
      firsts_[r] = members_.first_step(r, table_.id());
    }
  }
  slices_.resize(table_.slices());
  for (LocalPartition& s : slices_) s.ended.resize(ranks_);
  bookkeeping_.Set(slices_.size() * (sizeof(LocalPartition) + ranks_ * sizeof(uint64_t)));
}

bool SyncRows::TooMany(uint32_t slice, absl::Span<const uint64_t> keys) const {
  if (!table_.tiered()) return false;
  uint64_t named = keys.size();
  for (const Contribution& x : slices_[slice].contributions) named += x.count;
  if (named <= table_.most_rows()) return false;
  std::vector<uint64_t> all(keys.begin(), keys.end());
  for (const Contribution& x : slices_[slice].contributions) {
    all.insert(all.end(), x.keys(), x.keys() + x.count);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all.size() > table_.most_rows();
}

Answer SyncRows::Copy(const RowPush& push, uint32_t slice, Contribution* x) {
  const size_t count = push.keys.size();
  const size_t row_bytes = table_.row_bytes();
  x->copy = pool_.TakeScratch(count * (sizeof(uint64_t) + sizeof(uint32_t) + row_bytes),
                              table_.account());
  if (x->copy.data == nullptr) return {ReplyStatus::kResourceExhausted};
  x->count = static_cast<uint32_t>(count);
  bool too_many = TooMany(slice, push.keys);
  const RowParts parts = {&table_, &parking_, &pool_, &members_, &sink_};
  RowGrowth growth;
  const bool made = !too_many && MakeRows(parts, push, slice, x->rows(), &growth);
  // There may be memory for the rows, but not to have them there together.
  if (made) too_many = TooMany(slice, push.keys);
  if (!made || too_many) {
    pool_.ReturnScratch(x->copy);
    x->copy = {};
    x->count = 0;
    if (too_many) return {ReplyStatus::kMemoryLimit};
    return NoRoom(parts, push, slice, growth);
  }
  table_.Fetch(slice, {x->rows(), count});
  std::memcpy(x->copy.data, push.keys.data(), count * sizeof(uint64_t));
  std::memcpy(x->gradients(), push.rows.data(), count * row_bytes);
  return {ReplyStatus::kOk};
}

Answer SyncRows::Push(const RowPush& push, const Members::Member& member, uint32_t slice) {
  const uint64_t version = table_.slice(slice).version;
  const auto answer = [&](ReplyStatus status, uint32_t detail = 0) {
    return Answer{status, detail, version};
  };
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return answer(ReplyStatus::kPermissionDenied);
  const uint64_t step = push.group.sequence;
  if (step < version) return answer(ReplyStatus::kDuplicate);
  if (step > version) return answer(ReplyStatus::kWrongStep);
  LocalPartition& s = slices_[slice];
  const auto before = [](const Contribution& a, const Contribution& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.index < b.index;
  };
  Contribution x = {rank, push.group.index, push.worker, 0, {}, push.assigns};
  const auto at = std::lower_bound(s.contributions.begin(), s.contributions.end(), x, before);
  if (at != s.contributions.end() && !before(x, *at)) {
    return answer(at->worker == push.worker ? ReplyStatus::kDuplicate : ReplyStatus::kWrongStep);
  }
  // Its worker does not count yet, or has announced that nothing more comes.
  if (!Counts(rank, step) || s.ended[rank] > step) return answer(ReplyStatus::kWrongStep);
  if (s.contributions.empty() && sink_.log->closing(PartitionOf(slice))) {
    return answer(ReplyStatus::kNotReady);
  }
  Answer taken = answer(ReplyStatus::kOk);
  if (!ContributesZero(&table_, push.rows.data(), push.rows.size(), &sink_, &taken.status)) {
    const EmbeddingTable::Admitted admitted =
        push.assigns ? EmbeddingTable::Admitted{push.keys, push.rows, {}}
                     : table_.Admit(slice, push.keys, push.rows);
    RowPush kept = push;
    kept.keys = admitted.keys;
    kept.rows = admitted.rows;
    if (!admitted.refused.empty()) kept.guesses = {};
    if (!kept.keys.empty()) {
      const Answer copied = Copy(kept, slice, &x);
      taken = answer(copied.status, copied.detail);
    }
    if (!AwaitsEmpty(taken.status)) {
      s.refused.insert(s.refused.end(), admitted.refused.begin(), admitted.refused.end());
    }
  }
  if (AwaitsEmpty(taken.status)) return taken;
  s.contributions.insert(at, x);
  return taken;
}

uint32_t SyncRows::Arrived(const LocalPartition& slice, uint32_t rank, uint64_t worker) const {
  return static_cast<uint32_t>(
      std::count_if(slice.contributions.begin(), slice.contributions.end(),
                    [&](const Contribution& x) { return x.rank == rank && x.worker == worker; }));
}

ReplyStatus SyncRows::EndStep(const Group& group, uint64_t, uint64_t worker,
                              const Members::Member& member, uint32_t slice, uint32_t* detail) {
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return ReplyStatus::kPermissionDenied;
  const uint64_t step = group.sequence;
  const uint64_t version = table_.slice(slice).version;
  LocalPartition& s = slices_[slice];
  if (step < version) return ReplyStatus::kDuplicate;
  if (step < s.ended[rank]) return ReplyStatus::kOk;
  if (step > version || !Counts(rank, step)) return ReplyStatus::kWrongStep;
  const uint32_t arrived = Arrived(s, rank, worker);
  if (arrived < group.count) {
    *detail = group.count - arrived;
    return ReplyStatus::kTooEarly;
  }
  s.ended[rank] = step + 1;
  Advance(slice);
  return ReplyStatus::kOk;
}

void SyncRows::Awaited(const Members::Member& member, uint32_t slice) {
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_ || firsts_[rank] <= table_.slice(slice).version) return;
  slices_[slice].awaited = table_.slice(slice).version + kEmptySteps;
  Advance(slice);
}

void SyncRows::Drop(LocalPartition* slice) {
  SetBlocked(slice, false);
  for (const Contribution& x : slice->contributions) pool_.ReturnScratch(x.copy);
  slice->contributions.clear();
  slice->refused.clear();
}

void SyncRows::MembersChanged() {
  for (uint32_t r = 0; r < ranks_; ++r) {
    if (members_.owner(r) == owners_[r]) continue;
    owners_[r] = members_.owner(r);
    firsts_[r] = members_.first_step(r, table_.id());
    for (LocalPartition& s : slices_) s.ended[r] = 0;
  }
  const bool alive = members_.any_live() || VERBENA_FAILPOINT(shard, apply_abandoned);
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    // One that is blocked or replicated is complete.
    if (!alive && slices_[s].appended == 0 && !slices_[s].blocked) Drop(&slices_[s]);
    if (table_.ready(s)) Advance(s);
  }
}

void SyncRows::Reset() {
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    // Replicas have the record and apply it, also after their workers have gone.
    if (slices_[s].appended != 0 && !ApplyReplicated(s, /*now=*/true)) {
      sink_.log->Abandon(table_.id(), PartitionOf(s), ReplyStatus::kResourceExhausted);
    }
    if (table_.ready(s)) table_.Unprepare(s);
    Drop(&slices_[s]);
  }
  slices_.clear();
  owners_.clear();
  Resize();
}

void SyncRows::FailLocalPartition(uint32_t slice, ReplyStatus, bool keep) {
  slices_[slice].awaited = 0;
  if (keep) return;
  Drop(&slices_[slice]);
  slices_[slice].appended = 0;
  slices_[slice].ended.assign(ranks_, 0);
}

std::unique_ptr<RowConsistency> MakeSyncRows(const RowParts& parts) {
  return std::make_unique<SyncRows>(parts);
}

}  // namespace verbena::shard
