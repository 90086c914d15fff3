// Asynchronous pushes of rows: each group is applied when it arrives, exactly once. With clocks
// (ssp, clocks.h) lookups wait for the slowest worker; without, for a version.
#include <optional>
#include <vector>

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
        roster_(*parts.roster),
        sink_(*parts.sink) {
    const v1::TableSpec& spec = table_.spec();
    if (spec.consistency() == v1::CONSISTENCY_SSP) clocks_.emplace(&roster_, spec.staleness());
    Resize();
  }

  Answer Push(const RowPush& push, const Roster::Member& member, uint32_t slice) override;
  ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t, const Roster::Member& member,
                      uint32_t slice, uint32_t*) override {
    const ReplyStatus status = sequences_.Take(slice, member.index, group.sequence);
    const bool counts = status == ReplyStatus::kOk && clocks_.has_value();
    if (counts && clocks_->EndStep(slice, member, clock)) Release(slice);
    return status;
  }
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(uint64_t worker, uint32_t slice, uint64_t min_version,
                Answer* answer) const override {
    if (clocks_.has_value()) return clocks_->Readable(worker, slice, min_version, answer);
    answer->version = table_.slice(slice).version;
    return answer->version >= min_version;
  }
  void Resize() override {
    sequences_.Resize(roster_, table_.slices());
    Follow();
  }
  void RosterChanged() override {
    sequences_.RosterChanged(roster_);
    Follow();
  }
  void Reset() override {
    sequences_.Reset();
    if (clocks_.has_value()) clocks_->Reset();
    Resize();
  }
  void FailSlice(uint32_t, ReplyStatus, bool) override {}

 private:
  // Takes over who is there, and answers what no longer waits.
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
  void Apply(const RowPush& push, uint32_t slice);

  EmbeddingTable& table_;
  LookupParking& parking_;
  BufferPool& pool_;
  const Roster& roster_;
  Sink& sink_;
  Sequences sequences_;
  std::optional<Clocks> clocks_;
  std::vector<uint32_t> rows_;  // scratch of Push()
};

Answer AsyncRows::Push(const RowPush& push, const Roster::Member& member, uint32_t slice) {
  const uint64_t version = table_.slice(slice).version;
  uint64_t& last = sequences_.last(slice, member.index);
  ReplyStatus status = Sequences::Check(push.group.sequence, last, last + 1);
  if (status != ReplyStatus::kOk) return {status, 0, version};
  last = push.group.sequence;
  if (ContributesZero(&table_, push.rows.data(), push.rows.size(), &sink_, &status))
    return {status, 0, version};
  if (rows_.size() < push.keys.size()) rows_.resize(push.keys.size());
  if (!table_.FindOrCreate(slice, push.keys, rows_.data())) {
    status = NoRoom(pool_);
    return {status, LimitMiB(status, pool_, table_.account()), version};
  }
  Apply(push, slice);
  return {ReplyStatus::kOk, 0, version + 1};
}

void AsyncRows::Apply(const RowPush& push, uint32_t slice) {
  const uint32_t divisor = AsyncDivisor(table_.spec(), roster_);
  table_.BeginApply(slice);
  for (size_t i = 0; i < push.keys.size(); ++i) {
    if (i + kAhead < push.keys.size()) table_.Prefetch(rows_[i + kAhead]);
    const Source gradient = push.rows.data() + i * table_.dim();
    table_.ApplyRow(rows_[i], {&gradient, 1}, static_cast<float>(divisor));
  }
  table_.EndApply();
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

}  // namespace

std::unique_ptr<RowConsistency> MakeAsyncRows(const RowParts& parts) {
  return std::make_unique<AsyncRows>(parts);
}

}  // namespace verbena::shard
