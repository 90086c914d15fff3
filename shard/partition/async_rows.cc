// Asynchronous pushes of rows: each group is applied when it arrives, exactly once. With clocks
// (ssp, clocks.h) lookups wait for the slowest worker; without, for a version.
//
// With a replica of the partition, a group is copied, sent to the replica, and applied when that
// has it (replica/log.h). Its rows are made at once, so that it can still be refused for their
// memory.
//
// Nothing is held: without memory to keep data that a checkpoint has yet to write, a group is
// refused and comes again. A group that the replica has received waits, and others of its slice are
// refused meanwhile.
//
// With a cold tier a group whose rows are not all in memory is copied, too, and waits for them,
// with those of its slice behind it, and ends of steps. It is answered when it is applied.
#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "shard/partition/clocks.h"
#include "shard/partition/row_consistency.h"
#include "shard/partition/sequences.h"

namespace verbena::shard {
namespace {

// Rows on their way to the cache while others are changed.
constexpr size_t kAhead = 8;

class AsyncRows final : public RowConsistency {
 public:
  explicit AsyncRows(const RowParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        pool_(*parts.pool),
        members_(*parts.members),
        sink_(*parts.sink) {
    const v1::TableSpec& spec = table_.spec();
    if (spec.consistency() == v1::CONSISTENCY_SSP) {
      clocks_.emplace(&members_, spec.staleness(), [this](uint32_t slice, const WorkerMark& mark) {
        NoteMark(&sink_, table_, members_, slice, mark);
      });
    }
    Resize();
  }

  Answer Push(const RowPush& all, const Members::Member& member, uint32_t slice) override;
  ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                      const Members::Member& member, uint32_t slice, uint32_t*) override {
    const ReplyStatus status = sequences_.Take(slice, member.index, group.sequence);
    if (status == ReplyStatus::kOk && clocks_.has_value() && table_.tiered() &&
        !appended_[slice].entries.empty()) {
      // Queue the end: a reader that it releases has to see the pushes before it.
      QueueEnd({worker, group.sequence, clock}, slice);
      return status;
    }
    if (status == ReplyStatus::kOk) {
      ReplicateMark(&sink_, table_, members_, slice, {worker, group.sequence, clock});
    } else if (status == ReplyStatus::kDuplicate) {
      sink_.log->Join(table_.id(), PartitionOf(slice), worker, group.sequence);
    }
    const bool counts = status == ReplyStatus::kOk && clocks_.has_value();
    if (counts && clocks_->EndStep(slice, member, clock)) Release(slice);
    return status;
  }
  ReplyStatus SetOptimizer(const Group& group, uint64_t worker, const Members::Member& member,
                           uint32_t slice, uint64_t*) override {
    if (member.rank < 0) return ReplyStatus::kOk;
    const ReplyStatus status = sequences_.Take(slice, member.index, group.sequence);
    if (status == ReplyStatus::kDuplicate) {
      sink_.log->Join(table_.id(), PartitionOf(slice), worker, group.sequence);
    }
    return status;
  }
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(uint64_t worker, uint32_t slice, uint64_t min_version,
                Answer* answer) const override {
    if (clocks_.has_value()) {
      // An observer of another job is not a member, and like all observers has no clock.
      static constexpr Members::Member kObserver = {-1, UINT32_MAX};
      const Members::Member* member = members_.Find(worker);
      return clocks_->Readable(member != nullptr ? *member : kObserver, slice, min_version, answer);
    }
    answer->version = table_.slice(slice).version;
    return answer->version >= min_version;
  }
  void Resize() override {
    sequences_.Resize(members_, table_.slices());
    appended_.resize(table_.slices());
    Follow();
  }
  void MembersChanged() override {
    sequences_.MembersChanged(members_);
    Follow();
  }
  ~AsyncRows() override {
    for (const ReplicatedQueue& appended : appended_) sink_.blocked -= appended.blocked ? 1 : 0;
  }
  void Reset() override {
    for (uint32_t s = 0; s < appended_.size(); ++s) {
      for (ReplicatedApply& t : appended_[s].entries) t.acknowledged = true;
      ApplyReplicated(s, /*now=*/true, /*ends=*/false);
      if (appended_[s].entries.empty()) continue;
      if (table_.ready(s)) table_.Unprepare(s);
      FailLocalPartition(s, ReplyStatus::kResourceExhausted, /*keep=*/false);
      sink_.log->Abandon(table_.id(), PartitionOf(s), ReplyStatus::kResourceExhausted);
    }
    sequences_.Reset();
    if (clocks_.has_value()) clocks_->Reset();
    Resize();
  }
  void FailLocalPartition(uint32_t slice, ReplyStatus, bool keep) override {
    if (keep) return;
    appended_[slice].entries.clear();
    appended_[slice].applies = 0;
    SetBlocked(&appended_[slice], false);
  }
  void Retry() override {
    for (uint32_t s = 0; s < appended_.size(); ++s) {
      if (appended_[s].blocked && !table_.Waits(s)) ApplyReplicated(s);
    }
  }
  void ApplyNow(uint32_t slice) override { ApplyReplicated(slice, /*now=*/true); }
  std::vector<WorkerMark> Marks(uint32_t slice) const override;
  std::vector<WorkerMark> Applied(uint32_t slice) const override;
  void Adopt(uint32_t slice, absl::Span<const WorkerMark> marks) override;
  void ReplicateClocks(uint32_t slice) override {
    if (clocks_.has_value()) clocks_->ReplicateAll(slice);
  }
  void Replicated(uint32_t slice, uint64_t sequence) override {
    for (ReplicatedApply& t : appended_[slice].entries) {
      if (t.record == sequence) t.acknowledged = true;
    }
    ApplyReplicated(slice);
  }

 private:
  // Takes the present members, and answers requests that need not wait any more.
  void Follow() {
    if (!clocks_.has_value()) return;
    clocks_->Follow(table_.slices());
    for (uint32_t s = 0; s < table_.slices(); ++s) Release(s);
  }
  void Release(uint32_t slice) {
    parking_.Release(slice, [&](uint64_t worker, uint32_t other, uint64_t clock, Answer* answer) {
      return clocks_->Readable(worker, other, clock, answer);
    });
  }
  void Apply(const RowPush& push, uint32_t slice, uint32_t divisor, const uint32_t* rows,
             const ApplyStamp& stamp, OptimizerPointer optimizer = nullptr);

  // A group that was sent to the replica.
  struct ReplicatedApply {
    uint64_t record;
    RowPush push;    // keys and rows are the log's
    uint32_t* rows;  // numbers, likewise
    uint32_t divisor;
    ApplyStamp stamp;
    bool acknowledged;  // the replica has it, or there is none
    bool end = false;   // of a step, at this clock: nothing is applied
    uint64_t clock = 0;
    OptimizerPointer optimizer = nullptr;  // in force at the record
  };
  struct ReplicatedQueue {
    std::deque<ReplicatedApply> entries;
    uint64_t applies = 0;  // of these; the others are ends
    bool blocked = false;  // the first waits for memory to keep rows for a save
  };
  // False: no memory for it.
  bool Replicate(const RowPush& push, uint32_t slice, const ApplyStamp& stamp,
                 ReplicaLog::Mode mode);
  // The same, of a table with a cold tier, with its rows or without.
  Answer PushTiered(const RowPush& push, uint32_t slice, absl::Span<const uint64_t> refused,
                    uint64_t* last);
  void QueueEnd(const WorkerMark& mark, uint32_t slice);
  // Applies groups in front that the replica has, as far as a save and the cold tier allow. `now`:
  // cold rows are read at once. `ends`: ends of steps count.
  void ApplyReplicated(uint32_t slice, bool now = false, bool ends = true);
  bool MayApply(const ReplicatedApply& entry, uint32_t slice, bool now);
  // The rows of an entry in front, of which applies before it may have dropped some.
  bool FindAgain(const ReplicatedApply& entry, uint32_t slice);
  // The stamp for an apply of these rows, after those that wait.
  ApplyStamp Stamp(uint32_t slice, absl::Span<const uint32_t> rows);
  void SetBlocked(ReplicatedQueue* appended, bool blocked) {
    if (std::exchange(appended->blocked, blocked) != blocked) sink_.blocked += blocked ? 1 : -1;
  }
  uint32_t PartitionOf(uint32_t slice) const { return table_.life(slice).partition; }
  RowParts Parts() { return {&table_, &parking_, &pool_, &members_, &sink_}; }

  EmbeddingTable& table_;
  DeferredLookups& parking_;
  BufferPool& pool_;
  const Members& members_;
  EngineContext& sink_;
  Sequences sequences_;
  std::optional<Clocks> clocks_;
  std::vector<uint32_t> rows_;             // scratch of Push()
  std::vector<ReplicatedQueue> appended_;  // by slice
};

Answer AsyncRows::Push(const RowPush& all, const Members::Member& member, uint32_t slice) {
  RowPush push = all;
  ReplicaLog& log = *sink_.log;
  const uint32_t partition = PartitionOf(slice);
  const uint64_t version = table_.slice(slice).version;
  uint64_t& last = sequences_.last(slice, member.index);
  const uint64_t sequence = push.group.sequence;
  ReplyStatus status = Sequences::Check(sequence, last, last + 1);
  if (status == ReplyStatus::kDuplicate) log.Join(table_.id(), partition, push.worker, sequence);
  if (status != ReplyStatus::kOk) return {status, 0, version};
  const auto settle = [&] {
    last = sequence;
    ReplicateMark(&sink_, table_, members_, slice, {push.worker, sequence, 0});
  };
  if (ContributesZero(&table_, push.rows.data(), push.rows.size(), &sink_, &status)) {
    if (!AwaitsEmpty(status)) settle();
    return {status, 0, version};
  }
  const EmbeddingTable::Admitted admitted = push.assigns
                                                ? EmbeddingTable::Admitted{push.keys, push.rows, {}}
                                                : table_.Admit(slice, push.keys, push.rows);
  push.keys = admitted.keys;
  push.rows = admitted.rows;
  if (!admitted.refused.empty()) push.guesses = {};
  if (push.keys.empty() && !admitted.refused.empty()) {
    table_.CountRefused(slice, admitted.refused);
    settle();
    return {ReplyStatus::kOk, 0, version};
  }
  if (rows_.size() < push.keys.size()) rows_.resize(push.keys.size());
  const auto too_many = [&] { return push.keys.size() > table_.most_rows(); };
  RowGrowth growth;
  const bool made = !too_many() && MakeRows(Parts(), push, slice, rows_.data(), &growth);
  // Again: there may be memory for the rows, but not to have them there together.
  // A refused push is not settled: its worker sends it again without rows.
  if (too_many()) {
    if (!AwaitsEmpty(ReplyStatus::kMemoryLimit)) settle();
    return {ReplyStatus::kMemoryLimit, 0, version};
  }
  if (!made) {
    Answer refused = NoRoom(Parts(), push, slice, growth);
    refused.version = version;
    if (!AwaitsEmpty(refused.status)) settle();
    return refused;
  }
  if (table_.tiered()) return PushTiered(push, slice, admitted.refused, &last);
  // Not settled: it will be sent again.
  const absl::Span<const uint32_t> rows = {rows_.data(), push.keys.size()};
  const ApplyStamp stamp = Stamp(slice, rows);
  if (!table_.Prepare(slice, rows) || !table_.Prepare(slice, stamp) || appended_[slice].blocked) {
    return {ReplyStatus::kResourceExhausted, 0, version};
  }
  const ReplicaLog::Mode mode = log.mode(partition);
  if (mode != ReplicaLog::Mode::kAlone && log.Replicated(partition, table_.id())) {
    if (!Replicate(push, slice, stamp, mode)) return {ReplyStatus::kResourceExhausted, 0, version};
    last = sequence;
    table_.CountRefused(slice, admitted.refused);
    return {ReplyStatus::kOk, 0, table_.slice(slice).version + appended_[slice].applies};
  }
  last = sequence;
  table_.CountRefused(slice, admitted.refused);
  Apply(push, slice, AsyncDivisor(table_.spec(), members_), rows_.data(), stamp);
  return {ReplyStatus::kOk, 0, version + 1};
}

Answer AsyncRows::PushTiered(const RowPush& push, uint32_t slice,
                             absl::Span<const uint64_t> refused, uint64_t* last) {
  const ReplicaLog& log = *sink_.log;
  const uint32_t partition = PartitionOf(slice);
  const uint64_t version = table_.slice(slice).version;
  const absl::Span<const uint32_t> rows = {rows_.data(), push.keys.size()};
  const bool first = appended_[slice].entries.empty();
  const ApplyStamp stamp = Stamp(slice, rows);
  const ReplicaLog::Mode mode = log.mode(partition);
  const bool replicates =
      mode != ReplicaLog::Mode::kAlone && log.Replicated(partition, table_.id());
  if (!replicates && first && table_.Prepare(slice, rows) && table_.Prepare(slice, stamp)) {
    *last = push.group.sequence;
    table_.CountRefused(slice, refused);
    Apply(push, slice, AsyncDivisor(table_.spec(), members_), rows_.data(), stamp);
    return {ReplyStatus::kOk, 0, version + 1};
  }
  // A learner that does not have the table yet would miss the group if it caught up in between. And
  // if nothing can be written, the group might wait for good.
  const bool may_wait =
      replicates || (mode == ReplicaLog::Mode::kAlone && table_.hot()->io().health().ok());
  if (!may_wait || !Replicate(push, slice, stamp, mode)) {
    if (first) table_.Unprepare(slice);
    table_.Fetch(slice, rows);
    return {ReplyStatus::kResourceExhausted, 0, version};
  }
  *last = push.group.sequence;
  table_.CountRefused(slice, refused);
  return {ReplyStatus::kOk, 0, table_.slice(slice).version + appended_[slice].applies};
}

// Replicas receive it at once, like all ends.
void AsyncRows::QueueEnd(const WorkerMark& mark, uint32_t slice) {
  ReplicatedApply entry = {};
  entry.push.worker = mark.worker;
  entry.push.group.sequence = mark.sequence;
  entry.acknowledged = entry.end = true;
  entry.clock = mark.clock;
  ReplicaLog::Append appended;
  appended.table = table_.id();
  appended.partition = PartitionOf(slice);
  appended.header.kind = ReplicaKind::kSettle;
  appended.header.generation = members_.generation();
  appended.header.worker = mark.worker;
  appended.header.worker_sequence = mark.sequence;
  appended.header.worker_clock = mark.clock;
  appended.owner = this;
  appended.local = slice;
  appended.waits = true;
  entry.record = sink_.log->Add(std::move(appended));
  appended_[slice].entries.push_back(entry);
  ApplyReplicated(slice);
}

bool AsyncRows::Replicate(const RowPush& push, uint32_t slice, const ApplyStamp& stamp,
                          ReplicaLog::Mode mode) {
  if (!ReplicateNewRows(Parts(), slice)) return false;
  const size_t count = push.keys.size();
  const size_t bytes = KeyBytes(count) + count * table_.row_bytes();
  ReplicaLog::Append appended;
  appended.data = pool_.TakeScratch(bytes + count * sizeof(uint32_t), table_.account());
  if (appended.data.data == nullptr) return false;
  std::byte* const keys = appended.data.data;
  std::byte* const rows = keys + KeyBytes(count);
  std::byte* const numbers = keys + bytes;
  std::memset(keys, 0, KeyBytes(count));
  std::memcpy(keys, push.keys.data(), count * sizeof(uint64_t));
  std::memcpy(rows, push.rows.data(), count * table_.row_bytes());
  std::memcpy(numbers, rows_.data(), count * sizeof(uint32_t));
  ReplicatedApply entry{0,
                        push,
                        reinterpret_cast<uint32_t*>(numbers),
                        AsyncDivisor(table_.spec(), members_),
                        stamp,
                        mode != ReplicaLog::Mode::kRequired};
  entry.optimizer = table_.optimizer().At(slice, table_.slice(slice).version);
  entry.push.keys = {reinterpret_cast<const uint64_t*>(keys), count};
  entry.push.rows = {reinterpret_cast<const float*>(rows), push.rows.size()};
  entry.push.guesses = {};
  const EmbeddingTable::LocalPartition& s = table_.slice(slice);
  appended.table = table_.id();
  appended.partition = PartitionOf(slice);
  appended.header.kind = ReplicaKind::kRows;
  appended.header.generation = members_.generation();
  appended.header.count = static_cast<uint32_t>(count);
  appended.header.total_bytes = static_cast<uint32_t>(bytes);
  appended.header.divisor = static_cast<float>(entry.divisor);
  appended.header.gradient_scale = appended.header.trust = 1;
  appended.header.version = s.version + appended_[slice].applies + 1;
  appended.header.applies = s.applies + appended_[slice].applies + 1;
  appended.header.assigned = push.assigns ? appended.header.count : 0;
  appended.header.stamp = stamp.seconds;
  appended.header.keep_from = stamp.keep_from;
  appended.header.keep_hash = stamp.keep_hash;
  appended.header.worker = push.worker;
  appended.header.worker_sequence = push.group.sequence;
  appended.owner = this;
  appended.local = slice;
  // A learner is not waited for, but rows, or memory to keep them for a save, may be.
  appended.waits = table_.tiered() || !VERBENA_FAILPOINT(shard, answer_unapplied);
  entry.record = sink_.log->Add(std::move(appended));
  appended_[slice].entries.push_back(entry);
  ++appended_[slice].applies;
  table_.Fetch(slice, {entry.rows, count});
  ApplyReplicated(slice);
  return true;
}

ApplyStamp AsyncRows::Stamp(uint32_t slice, absl::Span<const uint32_t> rows) {
  const ReplicatedQueue& appended = appended_[slice];
  return table_.Stamp(slice, rows, appended.applies,
                      [&](std::vector<Eviction::WaitingRow>* waiting) {
                        uint64_t apply = table_.slice(slice).applies;
                        std::vector<uint32_t> found;
                        for (const ReplicatedApply& entry : appended.entries) {
                          if (entry.end) continue;
                          ++apply;
                          found.resize(entry.push.keys.size());
                          table_.Find(slice, entry.push.keys, found.data());
                          for (const uint32_t row : found) waiting->push_back({row, apply});
                        }
                      });
}

// The follower has the entry, so it has to be applied: no limit of the job refuses these rows. They
// are no more than the log has room for.
bool AsyncRows::FindAgain(const ReplicatedApply& entry, uint32_t slice) {
  const MemoryFor before = pool_.whom();
  if (!VERBENA_FAILPOINT(shard, refuse_told_rows)) pool_.SetFor(MemoryFor::kFollower);
  const bool found = table_.FindOrCreate(slice, entry.push.keys, entry.rows);
  pool_.SetFor(before);
  return found;
}

bool AsyncRows::MayApply(const ReplicatedApply& entry, uint32_t slice, bool now) {
  const absl::Span<const uint32_t> rows(entry.rows, entry.push.keys.size());
  if (table_.evicts() && !FindAgain(entry, slice)) return false;
  if (now && !table_.PrepareNow(slice, rows).ok()) return false;
  return table_.Prepare(slice, rows) && table_.Prepare(slice, entry.stamp);
}

void AsyncRows::ApplyReplicated(uint32_t slice, bool now, bool ends) {
  ReplicatedQueue& appended = appended_[slice];
  bool blocked = false;
  while (!appended.entries.empty() && appended.entries.front().acknowledged) {
    const ReplicatedApply entry = appended.entries.front();
    blocked = !entry.end && !MayApply(entry, slice, now);
    if (blocked) break;
    appended.entries.pop_front();
    if (entry.end && ends) {
      const Members::Member* member = members_.Find(entry.push.worker);
      if (member != nullptr && clocks_->EndStep(slice, *member, entry.clock)) Release(slice);
    } else if (!entry.end) {
      --appended.applies;
      Apply(entry.push, slice, entry.divisor, entry.rows, entry.stamp, entry.optimizer);
    }
    sink_.log->Applied(PartitionOf(slice), entry.record);
  }
  SetBlocked(&appended, blocked);
}

void AsyncRows::Apply(const RowPush& push, uint32_t slice, uint32_t divisor, const uint32_t* rows,
                      const ApplyStamp& stamp, OptimizerPointer optimizer) {
  table_.BeginApply(slice, stamp, std::move(optimizer));
  // Those that were guessed are there.
  const size_t guessed = push.guesses.size();
  for (size_t i = 0; i < push.keys.size(); ++i) {
    const size_t next = i + kAhead;
    if (next >= guessed && next < push.keys.size()) table_.Prefetch(slice, rows[next]);
    Source source = push.rows.data() + i * table_.dim();
    source.assigns = push.assigns;
    table_.ApplyRow(rows[i], {&source, 1}, static_cast<float>(divisor));
  }
  table_.counters().evicted_rows += table_.EndApply();
  ++sink_.counters.applies;
  if (sink_.commit_observer) {
    sink_.commit_observer({table_.id(),
                           push.group.partition,
                           table_.slice(slice).version - 1,
                           {&push.worker, 1},
                           divisor});
  }
  parking_.Advanced(slice);
}

std::vector<WorkerMark> AsyncRows::Marks(uint32_t slice) const {
  std::vector<WorkerMark> marks = sequences_.Marks(slice);
  if (clocks_.has_value()) {
    for (WorkerMark& m : marks) m.clock = clocks_->of(slice, members_.Find(m.worker)->index);
  }
  return marks;
}

std::vector<WorkerMark> AsyncRows::Applied(uint32_t slice) const {
  std::vector<WorkerMark> marks = sequences_.Marks(slice);
  for (WorkerMark& m : marks) {
    for (const ReplicatedApply& t : appended_[slice].entries) {
      if (t.push.worker == m.worker) {
        m.sequence = std::min(m.sequence, t.push.group.sequence - 1);
      }
    }
  }
  return marks;
}

void AsyncRows::Adopt(uint32_t slice, absl::Span<const WorkerMark> marks) {
  sequences_.Adopt(members_, slice, marks);
  if (!clocks_.has_value()) return;
  clocks_->Adopt(slice, marks);
  Release(slice);
}

}  // namespace

std::unique_ptr<RowConsistency> MakeAsyncRows(const RowParts& parts) {
  return std::make_unique<AsyncRows>(parts);
}

}  // namespace verbena::shard
