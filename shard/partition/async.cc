// Asynchronous pushes of a table: each is applied when it arrives, exactly once.
//
// Normally a push is applied at once. When its chunk is pinned and there is no spare, it is queued,
// and every later push to the same slice queues behind it: so a worker's sequences are applied in
// order, and `last` never runs ahead of a push that could still be forgotten with its lane.
//
// If the partition has a follower, a push is copied and replicated to it first (replica/log.h). The
// log owns the push then; it counts as taken. It is applied when the follower has it and its turn
// comes. Owned pushes precede others, which become owned as soon as there is memory.
#include <algorithm>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "shard/kernel/fused_pass.h"
#include "shard/partition/dense_consistency.h"
#include "shard/partition/sequences.h"

namespace verbena::shard {

namespace {

class Async final : public DenseConsistency {
 public:
  explicit Async(const DenseParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        pool_(*parts.pool),
        members_(*parts.members),
        sink_(*parts.sink) {
    Resize();
  }
  ~Async() override {
    for (const Queue& queue : queues_) sink_.blocked -= queue.empty() ? 0 : 1;
  }

  PushOutcome Push(const PushRequest& request, const Members::Member& member,
                   uint32_t chunk) override;
  ReplyStatus EndStep(const Group& group, uint64_t clock, uint64_t worker,
                      const Members::Member& member, uint32_t slice, uint32_t* detail) override;
  ReplyStatus SetOptimizer(const Group& group, uint64_t worker, const Members::Member& member,
                           uint32_t slice, uint64_t*) override {
    uint32_t missing = 0;
    return member.rank < 0 ? ReplyStatus::kOk : Take(group, worker, member, slice, &missing);
  }
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(const Members::Member&, uint32_t chunk, uint64_t min_version,
                Answer* answer) const override {
    answer->version = table_.chunk(chunk).version;
    return answer->version >= min_version;
  }
  bool Includes(const Members::Member& member, uint32_t chunk, uint64_t sequence) const override;
  void Retry() override;
  void Resize() override;
  void MembersChanged() override;
  void Reset() override;
  void FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) override;
  void ForgetLane(uint32_t lane) override;
  std::vector<WorkerMark> Marks(uint32_t slice) const override { return sequences_.Marks(slice); }
  std::vector<WorkerMark> Applied(uint32_t slice) const override;
  void Adopt(uint32_t slice, absl::Span<const WorkerMark> marks) override {
    sequences_.Adopt(members_, slice, marks);
  }
  void Replicated(uint32_t chunk, uint64_t sequence) override;

 private:
  struct Queued {
    Token token;
    uint64_t worker;
    uint32_t index;  // the member's
    uint32_t chunk;
    uint64_t sequence;
    uint32_t elements;
    Source gradient;  // without data: nothing to apply, answered `answer`
    ReplyStatus answer;
    uint64_t record = 0;        // of the log, which owns it; 0: not taken yet
    uint32_t divisor = 0;       // as in the record
    bool acknowledged = false;  // the follower has it
    bool held = false;          // at its apply its worker gets the completion, and its slot back
    OptimizerPointer optimizer = nullptr;  // in force at the record
  };
  using Queue = std::vector<Queued>;

  enum class Replicating : uint8_t { kNobody, kReplicated, kNoMemory };
  // Replicates a push to the follower; *push is owned then.
  Replicating Replicate(Queued* push);
  void ReplicateSettled(uint32_t slice, uint64_t worker, uint64_t sequence, uint64_t clock) {
    ReplicateMark(&sink_, table_, members_, slice, {worker, sequence, clock});
  }
  // Takes the group's sequence, which carries no gradient.
  ReplyStatus Take(const Group& group, uint64_t worker, const Members::Member& member,
                   uint32_t slice, uint32_t* detail);
  bool Apply(uint32_t chunk, uint64_t worker, const Source& gradient, uint32_t divisor,
             bool force = false, OptimizerPointer optimizer = nullptr);
  // False: it waits for a buffer, or for the follower.
  bool Finish(Queued* push, bool force);
  void Enqueue(Queue* queue, const Queued& push);
  // Pushes of a worker in the queue that are not taken yet.
  static uint64_t Untaken(const Queue& queue, uint64_t worker) {
    return static_cast<uint64_t>(std::count_if(queue.begin(), queue.end(), [&](const Queued& q) {
      return q.worker == worker && q.record == 0;
    }));
  }
  uint32_t PartitionOf(uint32_t slice) const { return table_.life(slice).partition; }
  void Drain(uint32_t slice);
  // Removes queued pushes for which `match` holds, with an event unless why is null. Unless
  // `owned`, owned pushes stay in the queue and only lose their requester.
  template <typename Match>
  void RemoveQueued(Queue* queue, const ReplyStatus* why, bool owned, Match match);

  DenseTable& table_;
  DeferredPulls& parking_;
  BufferPool& pool_;
  const Members& members_;
  EngineContext& sink_;
  Sequences sequences_;
  std::vector<Queue> queues_;  // by slice
};

void Async::Resize() {
  sequences_.Resize(members_, table_.slices());
  queues_.resize(table_.slices());
}

bool Async::Apply(uint32_t chunk, uint64_t worker, const Source& gradient, uint32_t divisor,
                  bool force, OptimizerPointer optimizer) {
  if (!table_.Apply(chunk, {&gradient, 1}, static_cast<float>(divisor), {}, force,
                    std::move(optimizer))) {
    return false;
  }
  ++sink_.counters.applies;
  if (sink_.commit_observer) {
    const DenseTable::Chunk& c = table_.chunk(chunk);
    sink_.commit_observer({table_.id(), c.id, c.version - 1, {&worker, 1}, divisor});
  }
  parking_.Advanced(chunk);
  return true;
}

Async::Replicating Async::Replicate(Queued* push) {
  ReplicaLog& log = *sink_.log;
  const DenseTable::Chunk& c = table_.chunk(push->chunk);
  const uint32_t partition = PartitionOf(c.slice);
  const ReplicaLog::Mode mode = log.mode(partition);
  if (mode == ReplicaLog::Mode::kAlone || !log.Replicated(partition, table_.id(), push->chunk)) {
    return Replicating::kNobody;
  }
  const Queue& queue = queues_[c.slice];
  uint64_t version = c.version, applies = c.applies;  // after the pushes that are in the log
  for (const Queued& q : queue) {
    if (q.chunk != push->chunk || q.record == 0) continue;
    ++version;
    applies = AppliesAfter(applies, {&q.gradient, 1});
  }
  ReplicaLog::Append appended;
  appended.table = table_.id();
  appended.partition = partition;
  appended.index = c.id;
  appended.header.kind = ReplicaKind::kDense;
  appended.header.generation = members_.generation();
  appended.header.count = push->elements;
  appended.header.total_bytes = push->elements * static_cast<uint32_t>(sizeof(float));
  push->divisor = AsyncDivisor(table_.spec(), members_);
  appended.header.divisor = static_cast<float>(push->divisor);
  appended.header.gradient_scale = appended.header.trust = 1;
  appended.header.version = version + 1;
  appended.header.applies = AppliesAfter(applies, {&push->gradient, 1});
  appended.header.assigned = push->gradient.assigns ? push->elements : 0;
  appended.header.array = push->gradient.array;
  appended.header.worker = push->worker;
  appended.header.worker_sequence = push->sequence;
  appended.data = pool_.TakeScratch(appended.header.total_bytes, table_.account());
  if (appended.data.data == nullptr) return Replicating::kNoMemory;
  // 16-bit values are widened: adding them to zero keeps their values.
  auto* const sum = reinterpret_cast<float*>(appended.data.data);
  Accumulate(BestIsa(), {&push->gradient, 1}, sum, push->elements);
  appended.owner = this;
  appended.local = push->chunk;
  // A learner is not waited for, but buffers may be.
  appended.waits =
      mode != ReplicaLog::Mode::kForward || !VERBENA_FAILPOINT(shard, answer_unapplied);
  if (VERBENA_FAILPOINT(shard, replicate_from_slot)) {
    appended.borrowed = static_cast<const std::byte*>(push->gradient.data);
  }
  push->gradient.data = sum;
  push->gradient.type = ElementType::kF32;
  push->record = log.Add(std::move(appended));
  push->optimizer = table_.optimizer().At(c.slice, c.version);
  push->acknowledged = mode == ReplicaLog::Mode::kForward;
  return Replicating::kReplicated;
}

void Async::Enqueue(Queue* queue, const Queued& push) {
  if (queue->empty()) ++sink_.blocked;
  queue->push_back(push);
}

PushOutcome Async::Push(const PushRequest& request, const Members::Member& member, uint32_t chunk) {
  const DenseTable::Chunk& c = table_.chunk(chunk);
  const auto answer = [&](ReplyStatus status) {
    return PushOutcome{false, false, {status, 0, c.version}};
  };
  Queue& queue = queues_[c.slice];
  uint64_t& last = sequences_.last(c.slice, member.index);
  const uint64_t sequence = request.group.sequence;
  const uint64_t next = last + 1 + Untaken(queue, request.worker);
  // Between last and next: held, so its lane is alive and this is no resend.
  const ReplyStatus order = Sequences::Check(sequence, last, next);
  if (order == ReplyStatus::kDuplicate) {
    sink_.log->Join(table_.id(), PartitionOf(c.slice), request.worker, sequence);
  }
  if (order != ReplyStatus::kOk) return answer(order);

  Queued push{request.token, request.worker,      member.index,      chunk,
              sequence,      request.group.count, SourceOf(request), ReplyStatus::kOk};
  if (ContributesZero(&table_, push.gradient, push.elements, &sink_, &push.answer)) {
    if (AwaitsEmpty(push.answer)) return answer(push.answer);
    push.gradient = {};
  }
  if (queue.empty() || queue.back().record != 0) {
    if (push.gradient.data == nullptr) {
      // A queued push is owned by the log, so it will be applied.
      ReplicateSettled(c.slice, push.worker, sequence, 0);
      last = sequence;
      return answer(push.answer);
    }
    switch (Replicate(&push)) {
      case Replicating::kNoMemory:
        return answer(ReplyStatus::kResourceExhausted);
      case Replicating::kReplicated:
        last = sequence;
        Enqueue(&queue, push);
        Drain(c.slice);
        return answer(ReplyStatus::kOk);
      case Replicating::kNobody:
        if (queue.empty() &&
            Apply(chunk, push.worker, push.gradient, AsyncDivisor(table_.spec(), members_))) {
          last = sequence;
          ReplicateSettled(c.slice, push.worker, sequence, 0);
          return answer(ReplyStatus::kOk);
        }
    }
  }
  if (queue.empty()) ++sink_.counters.spare_exhausted;
  push.held = true;
  Enqueue(&queue, push);
  ++sink_.counters.held;
  return {true, false, {}};
}

ReplyStatus Async::Take(const Group& group, uint64_t worker, const Members::Member& member,
                        uint32_t slice, uint32_t* detail) {
  const uint64_t untaken = Untaken(queues_[slice], worker);
  if (untaken > 0 && group.sequence > sequences_.last(slice, member.index)) {
    *detail = static_cast<uint32_t>(untaken);
    return ReplyStatus::kTooEarly;
  }
  const ReplyStatus status = sequences_.Take(slice, member.index, group.sequence);
  if (status == ReplyStatus::kDuplicate) {
    sink_.log->Join(table_.id(), PartitionOf(slice), worker, group.sequence);
  }
  return status;
}

ReplyStatus Async::EndStep(const Group& group, uint64_t clock, uint64_t worker,
                           const Members::Member& member, uint32_t slice, uint32_t* detail) {
  const ReplyStatus status = Take(group, worker, member, slice, detail);
  if (status == ReplyStatus::kOk) ReplicateSettled(slice, worker, group.sequence, clock);
  return status;
}

bool Async::Includes(const Members::Member& member, uint32_t chunk, uint64_t sequence) const {
  if (sequence == 0 || member.rank < 0 || VERBENA_FAILPOINT(shard, pull_early)) return true;
  const uint32_t slice = table_.chunk(chunk).slice;
  if (sequence > sequences_.last(slice, member.index)) return false;
  for (const Queued& q : queues_[slice]) {
    // Owned, so taken, but not applied yet.
    if (q.index == member.index && q.record != 0 && q.sequence <= sequence) return false;
  }
  return true;
}

std::vector<WorkerMark> Async::Applied(uint32_t slice) const {
  std::vector<WorkerMark> marks = sequences_.Marks(slice);
  for (WorkerMark& m : marks) {
    for (const Queued& q : queues_[slice]) {
      // Owned, so taken, but not applied yet.
      if (q.worker == m.worker && q.record != 0) m.sequence = std::min(m.sequence, q.sequence - 1);
    }
  }
  return marks;
}

void Async::Replicated(uint32_t chunk, uint64_t sequence) {
  const uint32_t slice = table_.chunk(chunk).slice;
  for (Queued& q : queues_[slice]) {
    if (q.record == sequence) q.acknowledged = true;
  }
  Drain(slice);
}

bool Async::Finish(Queued* push, bool force) {
  const uint32_t slice = table_.chunk(push->chunk).slice;
  uint64_t& last = sequences_.last(slice, push->index);
  if (push->record == 0 && !sink_.log->HasRoom(PartitionOf(slice))) return false;
  if (push->record == 0 && push->gradient.data != nullptr && push->sequence == last + 1) {
    const Replicating telling = Replicate(push);
    if (telling == Replicating::kNoMemory) return false;
    if (telling == Replicating::kReplicated) last = push->sequence;
  }
  ReplyStatus status = push->answer;
  if (push->record != 0) {
    if (!push->acknowledged && !force) return false;
    // Uses the push's divisor, not the current members: the job may have restarted since the record
    // was sent.
    if (!Apply(push->chunk, push->worker, push->gradient, push->divisor, force, push->optimizer)) {
      return false;
    }
    // Clear the record first: Replicate() must not count it as one that is still to be applied.
    sink_.log->Applied(PartitionOf(slice), std::exchange(push->record, 0));
  } else if (push->sequence != last + 1) {
    status = ReplyStatus::kSequenceGap;  // one before it was forgotten with another lane
  } else if (push->gradient.data != nullptr && !Apply(push->chunk, push->worker, push->gradient,
                                                      AsyncDivisor(table_.spec(), members_))) {
    return false;  // no buffer
  } else {
    last = push->sequence;
    ReplicateSettled(slice, push->worker, last, 0);
  }
  if (std::exchange(push->held, false)) {
    sink_.PushDone(push->token, status, table_.chunk(push->chunk).version);
  }
  return true;
}

// Applies queued pushes in order, as far as buffers and the follower allow.
void Async::Drain(uint32_t slice) {
  Queue& queue = queues_[slice];
  size_t done = 0;
  while (done < queue.size() && Finish(&queue[done], /*force=*/false)) ++done;
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(done));
  if (done > 0 && queue.empty()) --sink_.blocked;
}

template <typename Match>
void Async::RemoveQueued(Queue* queue, const ReplyStatus* why, bool owned, Match match) {
  if (queue->empty()) return;
  const auto remove = [&](Queued& q) {
    if (!match(q)) return false;
    if (q.held && why != nullptr) {
      sink_.PushDone(q.token, *why, table_.chunk(q.chunk).version);
    } else if (q.held) {
      --sink_.counters.held;
    }
    q.held = false;
    // It was sent to the follower, so it is applied even if its requester is gone.
    return owned || q.record == 0;
  };
  queue->erase(std::remove_if(queue->begin(), queue->end(), remove), queue->end());
  if (queue->empty()) --sink_.blocked;
}

void Async::Retry() {
  for (uint32_t s = 0; s < queues_.size(); ++s) {
    if (!queues_[s].empty()) Drain(s);
  }
}

void Async::MembersChanged() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (Queue& queue : queues_) {
    RemoveQueued(&queue, &why, /*owned=*/false,
                 [&](const Queued& q) { return members_.Find(q.worker) == nullptr; });
  }
  sequences_.MembersChanged(members_);
}

void Async::Reset() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (uint32_t slice = 0; slice < queues_.size(); ++slice) {
    Queue& queue = queues_[slice];
    bool all = true;
    for (Queued& q : queue) all &= q.record == 0 || Finish(&q, /*force=*/true);
    if (!all) sink_.log->Abandon(table_.id(), PartitionOf(slice), ReplyStatus::kResourceExhausted);
    RemoveQueued(&queue, &why, /*owned=*/true, [](const Queued&) { return true; });
  }
  sequences_.Reset();
  Resize();
}

void Async::FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) {
  RemoveQueued(&queues_[slice], &why, /*owned=*/!keep, [](const Queued&) { return true; });
}

void Async::ForgetLane(uint32_t lane) {
  if (sink_.counters.held == 0) return;
  for (Queue& queue : queues_) {
    RemoveQueued(&queue, nullptr, /*owned=*/false,
                 [&](const Queued& q) { return q.held && q.token.lane == lane; });
  }
}

}  // namespace

std::unique_ptr<DenseConsistency> MakeAsync(const DenseParts& parts) {
  return std::make_unique<Async>(parts);
}

}  // namespace verbena::shard
