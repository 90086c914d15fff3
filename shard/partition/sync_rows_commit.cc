// A complete step: it is replicated and applied.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shard/partition/sync_rows.h"

namespace verbena::shard {
namespace {

// Rows that are prefetched while others are changed.
constexpr uint32_t kAhead = 8;

}  // namespace

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
      sources_.back().assigns = x.assigns;
      PushHead(slice, head.contribution, head.at + 1);
    }
    row(first.key, contributions[first.contribution].rows()[first.at]);
  }
}

void SyncRows::Advance(uint32_t slice) {
  while (Commit(slice)) {
  }
}

// The number of workers that the commit lists: contributors, and those that have ended the step. As
// in a dense table (sync.cc), a step of workers that are all gone ends empty for those of a later
// one.
uint32_t SyncRows::Listed(uint32_t slice) const {
  const std::vector<Contribution>& contributions = slices_[slice].contributions;
  const uint64_t step = table_.slice(slice).version;
  uint32_t listed = 0;
  bool later = false;
  auto x = contributions.begin();
  for (uint32_t r = 0; r < ranks_; ++r) {
    bool contributed = false;
    for (; x != contributions.end() && x->rank == r; ++x) contributed = true;
    if (contributed || Counts(r, step)) ++listed;
    later |= !members_.departed(r);
  }
  return listed == 0 && later && step < slices_[slice].awaited ? 1 : listed;
}

bool SyncRows::Prepare(uint32_t slice) {
  const std::vector<Contribution>& contributions = slices_[slice].contributions;
  if (table_.tiered()) {
    // In memory they have to be together.
    std::vector<uint32_t> rows;
    ForEachRow(slice, [&](uint64_t, uint32_t row) { rows.push_back(row); });
    return table_.Prepare(slice, rows);
  }
  return std::all_of(contributions.begin(), contributions.end(), [&](const Contribution& x) {
    return x.count == 0 || table_.Prepare(slice, {x.rows(), x.count});
  });
}

bool SyncRows::Commit(uint32_t slice) {
  LocalPartition& s = slices_[slice];
  if (s.appended != 0) {
    if (!s.acknowledged) return false;  // the follower does not have it yet
    const bool applied = ApplyReplicated(slice);
    SetBlocked(&s, !applied);
    if (applied) Committed(slice);
    return applied;
  }
  const uint64_t version = table_.slice(slice).version;
  for (uint32_t r = 0; r < ranks_; ++r) {
    if (Counts(r, version) && s.ended[r] <= version) return false;
  }
  const uint32_t listed = Listed(slice);
  if (listed == 0) return false;  // all have left: no worker makes steps
  // One that is blocked was complete before.
  const bool abandoned = !members_.any_live() && !s.blocked;
  ReplicaLog& log = *sink_.log;
  const uint32_t partition = PartitionOf(slice);
  const ReplicaLog::Mode mode = log.mode(partition);
  const bool replicates =
      mode != ReplicaLog::Mode::kAlone && log.Replicated(partition, table_.id());
  if (replicates && !log.HasRoom(partition)) {
    SetBlocked(&s, true);
    return false;
  }
  named_.clear();
  if (table_.evicts()) {
    for (const Contribution& x : s.contributions) {
      if (x.count > 0) named_.insert(named_.end(), x.rows(), x.rows() + x.count);
    }
  }
  s.stamp = table_.Stamp(slice, named_);
  if (!Prepare(slice) || !table_.Prepare(slice, s.stamp)) {
    SetBlocked(&s, true);
    return false;
  }
  s.listed = listed;
  if (replicates) {
    const bool appended = Replicate(slice);
    SetBlocked(&s, !appended);
    if (appended) Observe(slice, abandoned);
    if (!appended || mode == ReplicaLog::Mode::kRequired) return false;
    s.acknowledged = true;
    const bool applied = ApplyReplicated(slice);  // its rows are in memory
    SetBlocked(&s, !applied);
    if (!applied) return false;
  } else {
    SetBlocked(&s, false);
    Observe(slice, abandoned);
    table_.BeginApply(slice, s.stamp);
    ForEachRow(slice, [&](uint64_t, uint32_t row) { table_.ApplyRow(row, sources_, Divisor(s)); });
    table_.counters().evicted_rows += table_.EndApply();
  }
  Committed(slice);
  return true;
}

void SyncRows::Committed(uint32_t slice) {
  LocalPartition& s = slices_[slice];
  ++sink_.counters.applies;
  ++sink_.counters.commits;
  table_.CountRefused(slice, s.refused);
  Drop(&s);
  parking_.Advanced(slice);
}

void SyncRows::Observe(uint32_t slice, bool abandoned) {
  if (!sink_.commit_observer) return;
  const LocalPartition& s = slices_[slice];
  contributors_.clear();
  for (const Contribution& x : s.contributions) {
    const bool again = !contributors_.empty() && contributors_.back() == x.worker;
    if (x.count > 0 && !again) contributors_.push_back(x.worker);
  }
  shard::Commit commit = {table_.id(), PartitionOf(slice), table_.slice(slice).version,
                          contributors_, s.listed};
  commit.abandoned = abandoned;
  sink_.commit_observer(commit);
}

bool SyncRows::Replicate(uint32_t slice) {
  if (!ReplicateNewRows({&table_, &parking_, &pool_, &members_, &sink_}, slice)) return false;
  LocalPartition& s = slices_[slice];
  uint32_t keys = 0, assigned = 0;
  ForEachRow(slice, [&](uint64_t, uint32_t) {
    ++keys;
    assigned += Assigns(Effective(sources_)) ? 1 : 0;
  });
  const size_t bytes = KeyBytes(keys) + keys * table_.row_bytes();
  ReplicaLog::Append appended;
  if (keys > 0) {
    appended.data = pool_.TakeScratch(bytes, table_.account());
    if (appended.data.data == nullptr) return false;
    std::memset(appended.data.data, 0, KeyBytes(keys));
    auto* const key_at = reinterpret_cast<uint64_t*>(appended.data.data);
    auto* const sums = reinterpret_cast<float*>(appended.data.data + KeyBytes(keys));
    size_t sum = 0, assignment = keys - assigned;  // assigned rows are the last
    ForEachRow(slice, [&](uint64_t key, uint32_t) {
      const absl::Span<const Source> effective = Effective(sources_);
      const size_t at = Assigns(effective) ? assignment++ : sum++;
      key_at[at] = key;
      Accumulate(BestIsa(), effective, sums + at * table_.dim(), table_.dim());
    });
  }
  const EmbeddingTable::LocalPartition& rows = table_.slice(slice);
  appended.table = table_.id();
  appended.partition = PartitionOf(slice);
  appended.header.kind = ReplicaKind::kRows;
  appended.header.generation = members_.generation();
  appended.header.count = keys;
  appended.header.total_bytes = static_cast<uint32_t>(keys > 0 ? bytes : 0);
  appended.header.divisor = Divisor(s);
  appended.header.gradient_scale = appended.header.trust = 1;
  appended.header.version = rows.version + 1;
  appended.header.applies = rows.applies + 1;
  appended.header.assigned = assigned;
  appended.header.stamp = s.stamp.seconds;
  appended.header.keep_from = s.stamp.keep_from;
  appended.header.keep_hash = s.stamp.keep_hash;
  appended.owner = this;
  appended.local = slice;
  s.told_keys = keys;
  s.told_assigned = assigned;
  s.acknowledged = false;
  s.appended = sink_.log->Add(std::move(appended));
  return true;
}

bool SyncRows::ApplyReplicated(uint32_t slice, bool now) {
  LocalPartition& s = slices_[slice];
  const std::byte* data = sink_.log->data(PartitionOf(slice), s.appended);
  const absl::Span<const uint64_t> keys = {reinterpret_cast<const uint64_t*>(data), s.told_keys};
  const auto* sum = reinterpret_cast<const float*>(data + KeyBytes(keys.size()));
  std::vector<uint32_t> rows(keys.size());
  table_.Find(slice, keys, rows.data());  // all are there: they were made by the pushes
  if (now && !table_.PrepareNow(slice, rows).ok()) return false;
  if (!table_.Prepare(slice, rows) || !table_.Prepare(slice, s.stamp)) return false;
  table_.BeginApply(slice, s.stamp);
  for (size_t i = 0; i < rows.size(); ++i, sum += table_.dim()) {
    if (i + kAhead < rows.size()) table_.Prefetch(slice, rows[i + kAhead]);
    Source source = sum;
    source.assigns = i >= rows.size() - s.told_assigned;
    table_.ApplyRow(rows[i], {&source, 1}, Divisor(s));
  }
  table_.counters().evicted_rows += table_.EndApply();
  sink_.log->Applied(PartitionOf(slice), std::exchange(s.appended, 0));
  return true;
}

void SyncRows::Replicated(uint32_t slice, uint64_t sequence) {
  if (slices_[slice].appended != sequence) return;
  slices_[slice].acknowledged = true;
  Advance(slice);
}

void SyncRows::SetBlocked(LocalPartition* slice, bool blocked) {
  if (std::exchange(slice->blocked, blocked) == blocked) return;
  sink_.blocked += blocked ? 1 : -1;
}

void SyncRows::Retry() {
  for (uint32_t s = 0; s < slices_.size(); ++s) {
    if (slices_[s].blocked && !table_.Waits(s)) Advance(s);
  }
}

}  // namespace verbena::shard
