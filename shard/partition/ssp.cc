// Stale synchronous parallel tables (Ho et al.: More effective distributed ML via a stale
// synchronous parallel parameter server, NIPS 2013): pushes are applied as in async, and a pull by
// a worker that has ended c steps waits until every worker has ended c - s here.
//
// A worker's clock is the steps it has ended. It is the worker's own, said in each end-step and
// pull, the same to all partitions: were it counted here, from wherever the least clock was
// when each partition heard of a joiner, two joiners could wait for each other. A joiner counts
// here as having the least clock, learns that from the answers to its pulls (Answer::version), and
// goes on from the greatest it has seen, which nobody's clock is behind.
#include <algorithm>
#include <limits>

#include "shard/partition/consistency.h"

namespace verbena::shard {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

class Ssp final : public Consistency {
 public:
  explicit Ssp(const TableParts& parts)
      : async_(MakeAsync(parts)),
        table_(*parts.table),
        parking_(*parts.parking),
        roster_(*parts.roster),
        bound_(parts.table->spec().staleness()) {
    Follow();
  }

  PushOutcome Push(const PushRequest& request, const Roster::Member& member,
                   uint32_t chunk) override {
    return async_->Push(request, member, chunk);
  }
  ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                      const Roster::Member& member, uint32_t slice, uint32_t* detail) override;
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(const Roster::Member& member, uint32_t chunk, uint64_t min_version,
                Answer* answer) const override;
  void Retry() override { async_->Retry(); }
  void Resize() override {
    async_->Resize();
    Follow();
  }
  void RosterChanged() override {
    async_->RosterChanged();
    Follow();
  }
  void Reset() override;
  void FailSlice(uint32_t slice, ReplyStatus why, bool keep) override {
    async_->FailSlice(slice, why, keep);
  }
  void ForgetLane(uint32_t lane) override { async_->ForgetLane(lane); }

 private:
  struct Slice {
    std::vector<uint64_t> clocks;  // by member index
    uint64_t least = 0;            // of all who count; never falls
  };

  // Takes over who is there, and answers what no longer waits.
  void Follow();
  uint64_t Least(const Slice& slice) const;
  void Release(uint32_t slice);

  const std::unique_ptr<Consistency> async_;
  DenseTable& table_;
  Parking& parking_;
  const Roster& roster_;
  const uint64_t bound_;
  std::vector<Slice> slices_;
  std::vector<uint64_t> owners_;  // of each member index, as of the last roster
  std::vector<uint8_t> counts_;   // by member index: a worker, not an observer
  bool complete_ = false;         // no rank is waited for that has never joined
};

uint64_t Ssp::Least(const Slice& slice) const {
  if (!complete_) return slice.least;  // step 0 waits for all expected workers
  uint64_t least = kMax;
  for (size_t i = 0; i < slice.clocks.size(); ++i) {
    if (counts_[i] != 0) least = std::min(least, slice.clocks[i]);
  }
  return least == kMax ? slice.least : std::max(least, slice.least);
}

void Ssp::Follow() {
  // Those who left first, so that a joiner starts at the least clock of those who stay.
  std::vector<uint32_t> joined;
  owners_.resize(std::max<size_t>(owners_.size(), roster_.indices()));
  counts_.resize(owners_.size());
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    const uint64_t owner = i < roster_.indices() ? roster_.index_owner(i) : 0;
    if (owners_[i] == owner) continue;
    owners_[i] = owner;
    counts_[i] = 0;
    if (owner != 0) joined.push_back(i);
  }
  slices_.resize(table_.slices());
  for (Slice& s : slices_) {
    s.clocks.resize(owners_.size());
    // Before complete_ changes: the last expected worker to come starts where all did.
    s.least = Least(s);
    for (const uint32_t i : joined) s.clocks[i] = s.least;
  }
  for (const uint32_t i : joined) {
    const Roster::Member* member = roster_.Find(owners_[i]);
    counts_[i] = member != nullptr && member->rank >= 0 ? 1 : 0;
  }
  complete_ = true;
  for (uint32_t rank = 0; rank < roster_.expected(); ++rank) {
    complete_ &= roster_.owner(rank) != 0 || roster_.departed(rank);
  }
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    slices_[s].least = Least(slices_[s]);
    Release(s);
  }
}

ReplyStatus Ssp::EndStep(const Group& group, uint64_t clock, uint64_t worker,
                         const Roster::Member& member, uint32_t slice, uint32_t* detail) {
  const ReplyStatus status = async_->EndStep(group, clock, worker, member, slice, detail);
  if (status != ReplyStatus::kOk) return status;
  Slice& s = slices_[slice];
  uint64_t& mine = s.clocks[member.index];
  if (clock <= mine) return status;
  const bool was_least = mine == s.least;
  mine = clock;
  if (!was_least) return status;
  const uint64_t least = Least(s);
  if (least == s.least) return status;
  s.least = least;
  Release(slice);
  return status;
}

bool Ssp::Readable(const Roster::Member& member, uint32_t chunk, uint64_t min_version,
                   Answer* answer) const {
  const uint64_t least = slices_[table_.chunk(chunk).slice].least;
  answer->version = least;
  answer->detail = 0;
  if (member.rank < 0) return true;  // an observer has no clock
  const uint64_t behind = min_version > least ? min_version - least : 0;
  answer->detail = static_cast<uint32_t>(std::min<uint64_t>(behind, UINT32_MAX));
  return behind <= bound_;
}

void Ssp::Release(uint32_t slice) {
  parking_.Release(slice,
                   [&](uint64_t worker, uint32_t chunk, uint64_t min_version, Answer* answer) {
                     const Roster::Member* member = roster_.Find(worker);
                     return member != nullptr && Readable(*member, chunk, min_version, answer);
                   });
}

void Ssp::Reset() {
  async_->Reset();
  slices_.clear();
  owners_.clear();
  counts_.clear();
  complete_ = false;
  Follow();
}

}  // namespace

std::unique_ptr<Consistency> MakeSsp(const TableParts& parts) {
  return std::make_unique<Ssp>(parts);
}

}  // namespace verbena::shard
