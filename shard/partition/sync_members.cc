// Changes around the steps of a sync table: workers and lanes come and go, slices move, the job
// restarts.
#include <set>
#include <vector>

#include "shard/failpoints.h"
#include "shard/partition/sync.h"

namespace verbena::shard {

void Sync::Resize() {
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
  chunks_.resize(table_.chunks());
  contributions_.resize(size_t{table_.chunks()} * ranks_);
  progress_.resize(size_t{table_.slices()} * ranks_);
  awaited_.resize(table_.slices());
  sources_.reserve(ranks_ + 1);
  contributors_.reserve(ranks_);
  bookkeeping_.Set(contributions_.capacity() * sizeof(Contribution) +
                   progress_.capacity() * sizeof(Progress));
  if (norms_ != nullptr) norms_->Resize();
}

void Sync::MembersChanged() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (uint32_t r = 0; r < ranks_; ++r) {
    const uint64_t owner = members_.owner(r);
    if (owner == owners_[r]) continue;
    owners_[r] = owner;
    firsts_[r] = members_.first_step(r, table_.id());
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) {
      Contribution& x = At(chunk, r);
      if (x.state == State::kHeld) Drop(chunk, r, State::kNone, &why);
      if (x.state == State::kOwed) x.state = State::kNone;
    }
    for (uint32_t slice = 0; slice < table_.slices(); ++slice) ProgressOf(slice, r) = {};
  }
  if (norms_ != nullptr) {
    norms_->FailWorkers([&](uint64_t worker) { return members_.Find(worker) == nullptr; });
  }
  const bool alive = members_.any_live() || VERBENA_FAILPOINT(shard, apply_abandoned);
  for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) {
    if (!alive) Abandon(chunk);
    if (table_.resident(chunk)) Advance(chunk);
  }
}

void Sync::Abandon(uint32_t chunk) {
  Chunk& s = chunks_[chunk];
  // Complete, and independent of slots: it waits for its follower, room in the log, or total norms.
  const bool summed = s.blocked && s.cursor == ranks_;
  if (s.appended != 0 || summed || (norms_ != nullptr && !norms_->open(chunk))) return;
  for (uint32_t r = 0; r < ranks_; ++r) At(chunk, r).state = State::kNone;
  ClearBlocked(chunk);
  DropAccumulator(&s);
  s.cursor = 0;
}

void Sync::Reset() {
  const ReplyStatus why = ReplyStatus::kExpired;
  std::set<uint32_t> unapplied;  // partitions
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    // The record was sent to replicas, which apply it regardless of the members. So it is applied
    // here too.
    if (chunks_[chunk].appended != 0 && !Commit(chunk, /*force=*/true)) {
      unapplied.insert(PartitionOf(chunk));
    }
    for (uint32_t r = 0; r < ranks_; ++r) {
      if (At(chunk, r).state == State::kHeld) Drop(chunk, r, State::kNone, &why);
    }
    ClearBlocked(chunk);
    DropAccumulator(&chunks_[chunk]);
  }
  // Only after the loop: the applies of other chunks are still in the log.
  for (const uint32_t partition : unapplied) {
    sink_.log->Abandon(table_.id(), partition, ReplyStatus::kResourceExhausted);
  }
  chunks_.clear();
  // With their memory: the next run may have fewer workers.
  contributions_ = std::vector<Contribution>();
  progress_ = std::vector<Progress>();
  owners_.clear();
  awaited_.clear();
  if (norms_ != nullptr) norms_->Reset();
  Resize();
}

void Sync::FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) {
  if (norms_ != nullptr) norms_->FailLocalPartition(slice, why, keep);
  awaited_[slice] = 0;
  for (const uint32_t chunk : table_.slice(slice).chunks) {
    for (uint32_t r = 0; r < ranks_; ++r) {
      if (At(chunk, r).state == State::kHeld) Drop(chunk, r, State::kOwed, &why);
      if (!keep) At(chunk, r) = {};
    }
    if (!keep) {
      ClearBlocked(chunk);
      DropAccumulator(&chunks_[chunk]);
      chunks_[chunk] = {};
    }
  }
  if (keep) return;
  for (uint32_t r = 0; r < ranks_; ++r) ProgressOf(slice, r) = {};
}

void Sync::ForgetLane(uint32_t lane) {
  if (norms_ != nullptr) norms_->ForgetLane(lane);
  if (sink_.counters.held == 0) return;
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    for (uint32_t r = 0; r < ranks_; ++r) {
      const Contribution& x = At(chunk, r);
      if (x.state == State::kHeld && x.token.lane == lane) {
        Drop(chunk, r, VERBENA_FAILPOINT(shard, forget_owed) ? State::kNone : State::kOwed,
             nullptr);
      }
    }
  }
}

}  // namespace verbena::shard
