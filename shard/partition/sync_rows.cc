// Bulk synchronous steps of an embedding table. See engine.h, invariants 1 and 6.
//
// A push is copied, and its rows are made, when it arrives: nothing holds a slot, and only then can
// it still be said that there is no room. A partition's step commits when every rank has ended it
// or departed; the copies are then summed by key, in the order of (rank, index), and the rows that
// were named are changed. With a copy of the partition, the sums are told to it first, and are what
// is applied when it has them (replica/log.h). Where there is no memory to keep what a save has yet
// to write of these rows, the step waits; so it does until all of them are in memory, of a table
// with a cold tier.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shard/kernel/fused_pass.h"
#include "shard/partition/row_consistency.h"
#include "shard/table/bookkeeping.h"

namespace verbena::shard {
namespace {

// Rows on their way to the cache while others are changed.
constexpr uint32_t kAhead = 8;

class SyncRows final : public RowConsistency {
 public:
  explicit SyncRows(const RowParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        pool_(*parts.pool),
        roster_(*parts.roster),
        sink_(*parts.sink),
        mean_(table_.spec().reduction() == v1::REDUCTION_MEAN),
        bookkeeping_(parts.pool, table_.account()) {
    Resize();
  }
  ~SyncRows() override {
    for (Slice& s : slices_) Drop(&s);
  }

  Answer Push(const RowPush& push, const Roster::Member& member, uint32_t slice) override;
  ReplyStatus EndStep(const Group& group, uint64_t, uint64_t worker, const Roster::Member& member,
                      uint32_t slice, uint32_t* detail) override;
  bool Reached(uint32_t slice, uint64_t min_version) const override {
    return table_.slice(slice).version >= min_version;
  }
  bool Readable(uint64_t, uint32_t slice, uint64_t min_version, Answer* answer) const override {
    answer->version = table_.slice(slice).version;
    return answer->version >= min_version;
  }
  void Resize() override;
  void RosterChanged() override;
  void Reset() override;
  void FailSlice(uint32_t slice, ReplyStatus why, bool keep) override;
  void Retry() override;
  void Replicated(uint32_t slice, uint64_t sequence) override;

 private:
  // What a rank has pushed to the open step of a slice by one record.
  struct Contribution {
    uint32_t rank;
    uint32_t index;
    uint64_t worker;
    ReplyStatus answer;  // not kOk: it was refused, and contributes zero
    uint32_t count;      // of keys; 0: it contributes zero
    Buffer copy;         // keys, numbers of their rows, gradients

    const uint64_t* keys() const { return reinterpret_cast<const uint64_t*>(copy.data); }
    uint32_t* rows() const {
      return reinterpret_cast<uint32_t*>(copy.data + size_t{count} * sizeof(uint64_t));
    }
    float* gradients() const { return reinterpret_cast<float*>(rows() + count); }
  };
  struct Slice {
    std::vector<Contribution> contributions;  // of the open step, by (rank, index)
    std::vector<uint64_t> refused;            // keys of the open step that get no row
    std::vector<uint64_t> ended;              // by rank: steps below this one are ended
    uint64_t told = 0;                        // the record that has the open step; 0: none
    uint32_t told_keys = 0;                   // that it names
    uint32_t listed = 0;                      // by its commit
    ApplyStamp stamp;                         // of its commit
    bool acknowledged = false;                // by the copy: what `told` is may be applied
    bool blocked = false;                     // there was no memory for it
  };
  // The next key of a contribution, while they are merged.
  struct Head {
    uint64_t key;
    uint32_t contribution;
    uint32_t at;
    // For a heap with the least in front.
    bool operator<(const Head& other) const {
      return key != other.key ? key > other.key : contribution > other.contribution;
    }
  };

  // Whether the open step would name more rows than may be in memory together.
  bool TooMany(uint32_t slice, absl::Span<const uint64_t> keys) const;
  bool Copy(const RowPush& push, uint32_t slice, Contribution* x, ReplyStatus* refused);
  uint32_t Arrived(const Slice& slice, uint32_t rank, uint64_t worker) const;
  // Commits as long as steps are complete.
  void Advance(uint32_t slice);
  bool Commit(uint32_t slice);
  // The open step is in the rows.
  void Committed(uint32_t slice);
  uint32_t Listed(const Slice& slice) const;
  // The step's contributions are what they will be.
  void Observe(uint32_t slice);
  float Divisor(const Slice& slice) const {
    return mean_ ? static_cast<float>(slice.listed) : 1.0f;
  }
  // Tells the copy of the open step, which is complete. False: no memory.
  bool Tell(uint32_t slice);
  // Whether all rows that the open step names are such that they may be changed.
  bool Prepare(uint32_t slice);
  // False: it waits for memory to keep rows for a save.
  bool ApplyTold(uint32_t slice, bool now = false);
  void SetBlocked(Slice* slice, bool blocked);
  uint32_t PartitionOf(uint32_t slice) const { return table_.life(slice).partition; }
  // Calls `row` (key, number, sources) for each row that the step names, by key.
  template <typename Row>
  void ForEachRow(uint32_t slice, Row row);
  void PushHead(uint32_t slice, uint32_t contribution, uint32_t at);
  void Drop(Slice* slice);

  EmbeddingTable& table_;
  LookupParking& parking_;
  BufferPool& pool_;
  const Roster& roster_;
  Sink& sink_;
  const bool mean_;
  uint32_t ranks_ = 0;
  std::vector<Slice> slices_;
  std::vector<uint64_t> owners_;  // of each rank, as of the last roster
  std::vector<Head> heads_;       // scratch of ApplyStep()
  std::vector<Source> sources_;   // the same
  std::vector<uint64_t> contributors_;
  Bookkeeping bookkeeping_;  // of slices_, for each rank
};

void SyncRows::Resize() {
  // A change of the number of ranks comes with Reset().
  if (owners_.empty()) {
    ranks_ = roster_.expected();
    owners_.assign(ranks_, 0);
    for (uint32_t r = 0; r < ranks_; ++r) owners_[r] = roster_.owner(r);
  }
  slices_.resize(table_.slices());
  for (Slice& s : slices_) s.ended.resize(ranks_);
  bookkeeping_.Set(slices_.size() * (sizeof(Slice) + ranks_ * sizeof(uint64_t)));
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

// Copies a push and makes its rows. False, with nothing changed: *refused says why.
bool SyncRows::Copy(const RowPush& push, uint32_t slice, Contribution* x, ReplyStatus* refused) {
  const size_t count = push.keys.size();
  const size_t row_bytes = table_.row_bytes();
  x->copy = pool_.TakeScratch(count * (sizeof(uint64_t) + sizeof(uint32_t) + row_bytes),
                              table_.account());
  if (x->copy.data == nullptr) {
    *refused = ReplyStatus::kResourceExhausted;
    return false;
  }
  x->count = static_cast<uint32_t>(count);
  bool too_many = TooMany(slice, push.keys);
  const bool made = !too_many && table_.FindOrCreate(slice, push.keys, x->rows());
  // There may be memory for the rows, but not to have them there together.
  if (made) too_many = TooMany(slice, push.keys);
  if (!made || too_many) {
    pool_.ReturnScratch(x->copy);
    x->copy = {};
    x->count = 0;
    *refused = too_many ? ReplyStatus::kMemoryLimit : NoRoom(pool_);
    return false;
  }
  table_.Fetch(slice, {x->rows(), count});
  std::memcpy(x->copy.data, push.keys.data(), count * sizeof(uint64_t));
  std::memcpy(x->gradients(), push.rows.data(), count * row_bytes);
  return true;
}

Answer SyncRows::Push(const RowPush& push, const Roster::Member& member, uint32_t slice) {
  const uint64_t version = table_.slice(slice).version;
  const auto answer = [&](ReplyStatus status) {
    const bool of_hot = status == ReplyStatus::kMemoryLimit && TooMany(slice, push.keys);
    return Answer{status, of_hot ? 0 : LimitMiB(status, pool_, table_.account()), version};
  };
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return answer(ReplyStatus::kPermissionDenied);
  const uint64_t step = push.group.sequence;
  if (step < version) return answer(ReplyStatus::kDuplicate);
  if (step > version) return answer(ReplyStatus::kWrongStep);
  Slice& s = slices_[slice];
  const auto before = [](const Contribution& a, const Contribution& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.index < b.index;
  };
  Contribution x = {rank, push.group.index, push.worker, ReplyStatus::kOk, 0, {}};
  const auto at = std::lower_bound(s.contributions.begin(), s.contributions.end(), x, before);
  if (at != s.contributions.end() && !before(x, *at)) {
    if (at->worker != push.worker) return answer(ReplyStatus::kWrongStep);
    return answer(at->answer == ReplyStatus::kOk ? ReplyStatus::kDuplicate : at->answer);
  }
  // Its worker said that nothing more would come.
  if (s.ended[rank] > step) return answer(ReplyStatus::kWrongStep);
  if (!ContributesZero(&table_, push.rows.data(), push.rows.size(), &sink_, &x.answer)) {
    const EmbeddingTable::Admitted admitted = table_.Admit(slice, push.keys, push.rows);
    RowPush kept = push;
    kept.keys = admitted.keys;
    kept.rows = admitted.rows;
    if (!kept.keys.empty() && !Copy(kept, slice, &x, &x.answer) &&
        x.answer == ReplyStatus::kResourceExhausted) {
      return answer(x.answer);  // not settled: it will be sent again
    }
    s.refused.insert(s.refused.end(), admitted.refused.begin(), admitted.refused.end());
  }
  s.contributions.insert(at, x);
  return answer(x.answer);
}

uint32_t SyncRows::Arrived(const Slice& slice, uint32_t rank, uint64_t worker) const {
  return static_cast<uint32_t>(
      std::count_if(slice.contributions.begin(), slice.contributions.end(),
                    [&](const Contribution& x) { return x.rank == rank && x.worker == worker; }));
}

ReplyStatus SyncRows::EndStep(const Group& group, uint64_t, uint64_t worker,
                              const Roster::Member& member, uint32_t slice, uint32_t* detail) {
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return ReplyStatus::kPermissionDenied;
  const uint64_t step = group.sequence;
  const uint64_t version = table_.slice(slice).version;
  Slice& s = slices_[slice];
  if (step < version) return ReplyStatus::kDuplicate;
  if (step < s.ended[rank]) return ReplyStatus::kOk;
  if (step > version) return ReplyStatus::kWrongStep;
  const uint32_t arrived = Arrived(s, rank, worker);
  if (arrived < group.count) {
    *detail = group.count - arrived;
    return ReplyStatus::kTooEarly;
  }
  s.ended[rank] = step + 1;
  Advance(slice);
  return ReplyStatus::kOk;
}

void SyncRows::Advance(uint32_t slice) {
  while (Commit(slice)) {
  }
}

// How many workers the commit lists: who contributed, and who has ended the step.
uint32_t SyncRows::Listed(const Slice& slice) const {
  uint32_t listed = 0;
  auto x = slice.contributions.begin();
  for (uint32_t r = 0; r < ranks_; ++r) {
    bool contributed = false;
    for (; x != slice.contributions.end() && x->rank == r; ++x) contributed = true;
    if (contributed || !roster_.departed(r)) ++listed;
  }
  return listed;
}

bool SyncRows::Prepare(uint32_t slice) {
  const std::vector<Contribution>& contributions = slices_[slice].contributions;
  if (table_.tiered()) {
    // In memory they have to be together.
    std::vector<uint32_t> rows;
    for (const Contribution& x : contributions) {
      if (x.count > 0) rows.insert(rows.end(), x.rows(), x.rows() + x.count);
    }
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return table_.Prepare(slice, rows);
  }
  return std::all_of(contributions.begin(), contributions.end(), [&](const Contribution& x) {
    return x.count == 0 || table_.Prepare(slice, {x.rows(), x.count});
  });
}

bool SyncRows::Commit(uint32_t slice) {
  Slice& s = slices_[slice];
  if (s.told != 0) {
    if (!s.acknowledged) return false;  // the copy does not have it yet
    const bool applied = ApplyTold(slice);
    SetBlocked(&s, !applied);
    if (applied) Committed(slice);
    return applied;
  }
  const uint64_t version = table_.slice(slice).version;
  for (uint32_t r = 0; r < ranks_; ++r) {
    if (!roster_.departed(r) && s.ended[r] <= version) return false;
  }
  const uint32_t listed = Listed(s);
  if (listed == 0) return false;  // everybody is gone: nobody makes steps
  s.stamp = table_.Stamp(slice);
  if (!Prepare(slice) || !table_.Prepare(slice, s.stamp)) {
    SetBlocked(&s, true);
    return false;
  }
  s.listed = listed;
  ReplicaLog& log = *sink_.log;
  const ReplicaLog::Mode mode = log.mode(PartitionOf(slice));
  if (mode != ReplicaLog::Mode::kAlone && log.Told(PartitionOf(slice), table_.id())) {
    const bool told = Tell(slice);
    SetBlocked(&s, !told);
    if (told) Observe(slice);
    if (!told || mode == ReplicaLog::Mode::kRequired) return false;
    ApplyTold(slice);  // its rows are in memory
  } else {
    SetBlocked(&s, false);
    Observe(slice);
    table_.BeginApply(slice, s.stamp);
    ForEachRow(slice, [&](uint64_t, uint32_t row) { table_.ApplyRow(row, sources_, Divisor(s)); });
    table_.counters().evicted_rows += table_.EndApply();
  }
  Committed(slice);
  return true;
}

void SyncRows::Committed(uint32_t slice) {
  Slice& s = slices_[slice];
  ++sink_.counters.applies;
  ++sink_.counters.commits;
  table_.CountRefused(slice, s.refused);
  Drop(&s);
  parking_.Advanced(slice);
}

void SyncRows::Observe(uint32_t slice) {
  if (!sink_.commit_observer) return;
  const Slice& s = slices_[slice];
  contributors_.clear();
  for (const Contribution& x : s.contributions) {
    const bool again = !contributors_.empty() && contributors_.back() == x.worker;
    if (x.count > 0 && !again) contributors_.push_back(x.worker);
  }
  sink_.commit_observer(
      {table_.id(), PartitionOf(slice), table_.slice(slice).version, contributors_, s.listed});
}

bool SyncRows::Tell(uint32_t slice) {
  Slice& s = slices_[slice];
  uint32_t keys = 0;
  ForEachRow(slice, [&](uint64_t, uint32_t) { ++keys; });
  const size_t bytes = KeyBytes(keys) + keys * table_.row_bytes();
  ReplicaLog::Append told;
  if (keys > 0) {
    told.data = pool_.TakeScratch(bytes, table_.account());
    if (told.data.data == nullptr) return false;
    std::memset(told.data.data, 0, KeyBytes(keys));
    auto* key_at = reinterpret_cast<uint64_t*>(told.data.data);
    auto* sum = reinterpret_cast<float*>(told.data.data + KeyBytes(keys));
    ForEachRow(slice, [&](uint64_t key, uint32_t) {
      *key_at++ = key;
      Accumulate(BestIsa(), sources_, sum, table_.dim());
      sum += table_.dim();
    });
  }
  const EmbeddingTable::Slice& rows = table_.slice(slice);
  told.table = table_.id();
  told.partition = PartitionOf(slice);
  told.header.kind = ReplicaKind::kRows;
  told.header.generation = roster_.generation();
  told.header.count = keys;
  told.header.total_bytes = static_cast<uint32_t>(keys > 0 ? bytes : 0);
  told.header.divisor = Divisor(s);
  told.header.gradient_scale = told.header.trust = 1;
  told.header.version = rows.version + 1;
  told.header.applies = rows.applies + 1;
  told.header.stamp = s.stamp.seconds;
  told.header.keep_from = s.stamp.keep_from;
  told.owner = this;
  told.local = slice;
  s.told_keys = keys;
  s.acknowledged = false;
  s.told = sink_.log->Add(std::move(told));
  return true;
}

bool SyncRows::ApplyTold(uint32_t slice, bool now) {
  Slice& s = slices_[slice];
  const std::byte* data = sink_.log->data(PartitionOf(slice), s.told);
  const absl::Span<const uint64_t> keys = {reinterpret_cast<const uint64_t*>(data), s.told_keys};
  const auto* sum = reinterpret_cast<const float*>(data + KeyBytes(keys.size()));
  std::vector<uint32_t> rows(keys.size());
  table_.Find(slice, keys, rows.data());  // all are there: they were made by the pushes
  if (now && !table_.PrepareNow(slice, rows).ok()) return false;
  if (!table_.Prepare(slice, rows) || !table_.Prepare(slice, s.stamp)) return false;
  table_.BeginApply(slice, s.stamp);
  for (size_t i = 0; i < rows.size(); ++i, sum += table_.dim()) {
    if (i + kAhead < rows.size()) table_.Prefetch(slice, rows[i + kAhead]);
    const Source source = sum;
    table_.ApplyRow(rows[i], {&source, 1}, Divisor(s));
  }
  table_.counters().evicted_rows += table_.EndApply();
  sink_.log->Applied(PartitionOf(slice), std::exchange(s.told, 0));
  return true;
}

void SyncRows::Replicated(uint32_t slice, uint64_t sequence) {
  if (slices_[slice].told != sequence) return;
  slices_[slice].acknowledged = true;
  Advance(slice);
}

void SyncRows::SetBlocked(Slice* slice, bool blocked) {
  if (std::exchange(slice->blocked, blocked) == blocked) return;
  sink_.blocked += blocked ? 1 : -1;
}

void SyncRows::Retry() {
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    if (slices_[s].blocked && !table_.Waits(s)) Advance(s);
  }
}

void SyncRows::PushHead(uint32_t slice, uint32_t contribution, uint32_t at) {
  const Contribution& x = slices_[slice].contributions[contribution];
  if (at >= x.count) return;
  if (at + kAhead < x.count) table_.Prefetch(slice, x.rows()[at + kAhead]);
  heads_.push_back({x.keys()[at], contribution, at});
  std::push_heap(heads_.begin(), heads_.end());
}

// Merges the contributions, whose keys ascend: a row's are met together, in their order. They are
// in sources_.
template <typename Row>
void SyncRows::ForEachRow(uint32_t slice, Row row) {
  const std::vector<Contribution>& contributions = slices_[slice].contributions;
  heads_.clear();
  for (uint32_t i = 0; i < contributions.size(); ++i) PushHead(slice, i, 0);
  while (!heads_.empty()) {
    const Head first = heads_.front();
    sources_.clear();
    while (!heads_.empty() && heads_.front().key == first.key) {
      const Head head = heads_.front();
      std::pop_heap(heads_.begin(), heads_.end());
      heads_.pop_back();
      const Contribution& x = contributions[head.contribution];
      sources_.emplace_back(x.gradients() + size_t{head.at} * table_.dim());
      PushHead(slice, head.contribution, head.at + 1);
    }
    row(first.key, contributions[first.contribution].rows()[first.at]);
  }
}

void SyncRows::Drop(Slice* slice) {
  SetBlocked(slice, false);
  for (const Contribution& x : slice->contributions) pool_.ReturnScratch(x.copy);
  slice->contributions.clear();
  slice->refused.clear();
}

void SyncRows::RosterChanged() {
  for (uint32_t r = 0; r < ranks_; ++r) {
    if (roster_.owner(r) == owners_[r]) continue;
    owners_[r] = roster_.owner(r);
    for (Slice& s : slices_) s.ended[r] = 0;
  }
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    if (table_.ready(s)) Advance(s);
  }
}

void SyncRows::Reset() {
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    // Copies have been told: they apply it, whoever is there to see it.
    if (slices_[s].told != 0) ApplyTold(s, /*now=*/true);
    if (table_.ready(s)) table_.Unprepare(s);
    Drop(&slices_[s]);
  }
  slices_.clear();
  owners_.clear();
  Resize();
}

void SyncRows::FailSlice(uint32_t slice, ReplyStatus, bool keep) {
  if (keep) return;
  Drop(&slices_[slice]);
  slices_[slice].told = 0;
  slices_[slice].ended.assign(ranks_, 0);
}

}  // namespace

std::unique_ptr<RowConsistency> MakeSyncRows(const RowParts& parts) {
  return std::make_unique<SyncRows>(parts);
}

}  // namespace verbena::shard
