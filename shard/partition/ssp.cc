// Stale synchronous parallel dense tables: async pushes, and pulls that wait for clocks (clocks.h).
#include <vector>

#include "shard/partition/clocks.h"
#include "shard/partition/dense_consistency.h"

namespace verbena::shard {
namespace {

class Ssp final : public DenseConsistency {
 public:
  explicit Ssp(const DenseParts& parts)
      : async_(MakeAsync(parts)),
        table_(*parts.table),
        parking_(*parts.parking),
        members_(*parts.members),
        sink_(*parts.sink),
        clocks_(parts.members, parts.table->spec().staleness(),
                [this](uint32_t slice, const WorkerMark& mark) {
                  NoteMark(&sink_, table_, members_, slice, mark);
                }) {
    Follow();
  }

  PushOutcome Push(const PushRequest& request, const Members::Member& member,
                   uint32_t chunk) override {
    return async_->Push(request, member, chunk);
  }
  ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                      const Members::Member& member, uint32_t slice, uint32_t* detail) override {
    const ReplyStatus status = async_->EndStep(group, clock, worker, member, slice, detail);
    if (status == ReplyStatus::kOk && clocks_.EndStep(slice, member, clock)) Release(slice);
    return status;
  }
  ReplyStatus SetOptimizer(const Group& group, uint64_t worker, const Members::Member& member,
                           uint32_t slice, uint64_t* from) override {
    return async_->SetOptimizer(group, worker, member, slice, from);
  }
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(const Members::Member& member, uint32_t chunk, uint64_t min_version,
                Answer* answer) const override {
    return clocks_.Readable(member, table_.chunk(chunk).slice, min_version, answer);
  }
  bool Includes(const Members::Member& member, uint32_t chunk, uint64_t sequence) const override {
    return async_->Includes(member, chunk, sequence);
  }
  void Retry() override { async_->Retry(); }
  void Resize() override {
    async_->Resize();
    Follow();
  }
  void MembersChanged() override {
    async_->MembersChanged();
    Follow();
  }
  void Reset() override {
    async_->Reset();
    clocks_.Reset();
    Follow();
  }
  void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) override {
    async_->FailLocalPartition(slice, why, keep);
  }
  void ForgetLane(uint32_t lane) override { async_->ForgetLane(lane); }
  std::vector<WorkerMark> Marks(uint32_t slice) const override {
    std::vector<WorkerMark> marks = async_->Marks(slice);
    for (WorkerMark& mark : marks)
      mark.clock = clocks_.of(slice, members_.Find(mark.worker)->index);
    return marks;
  }
  std::vector<WorkerMark> Applied(uint32_t slice) const override { return async_->Applied(slice); }
  void Adopt(uint32_t slice, absl::Span<const WorkerMark> marks) override {
    async_->Adopt(slice, marks);
    clocks_.Adopt(slice, marks);
    Release(slice);
  }
  void ReplicateClocks(uint32_t slice) override { clocks_.ReplicateAll(slice); }
  // The inner consistency applies the table's records.
  void Replicated(uint32_t, uint64_t) override {}

 private:
  // Applies the current members, and answers requests that no longer wait.
  void Follow() {
    clocks_.Follow(table_.slices());
    for (uint32_t s = 0; s < table_.slices(); ++s) Release(s);
  }
  void Release(uint32_t slice) {
    parking_.Release(
        slice, [&](uint64_t worker, uint32_t chunk, uint64_t min_version, Answer* answer) {
          return clocks_.Readable(worker, table_.chunk(chunk).slice, min_version, answer);
        });
  }

  const std::unique_ptr<DenseConsistency> async_;
  DenseTable& table_;
  DeferredPulls& parking_;
  const Members& members_;
  EngineContext& sink_;
  Clocks clocks_;
};

}  // namespace

std::unique_ptr<DenseConsistency> MakeSsp(const DenseParts& parts) {
  return std::make_unique<Ssp>(parts);
}

}  // namespace verbena::shard
