// Asynchronous pushes of a table: each is applied when it arrives, exactly once.
//
// Normally a push is applied at once. When its chunk is pinned and there is no spare, it is queued,
// and every later push to the same slice queues behind it: so a worker's sequences are applied in
// order, and `last` never runs ahead of a push that could still be forgotten with its lane.
#include <algorithm>

#include "shard/partition/dense_consistency.h"
#include "shard/partition/sequences.h"

namespace verbena::shard {

namespace {

class Async final : public DenseConsistency {
 public:
  explicit Async(const DenseParts& parts)
      : table_(*parts.table), parking_(*parts.parking), roster_(*parts.roster), sink_(*parts.sink) {
    Resize();
  }
  ~Async() override {
    for (const Queue& queue : queues_) sink_.blocked -= queue.empty() ? 0 : 1;
  }

  PushOutcome Push(const PushRequest& request, const Roster::Member& member,
                   uint32_t chunk) override;
  ReplyStatus EndStep(const Group& group, uint64_t, uint64_t worker, const Roster::Member& member,
                      uint32_t slice, uint32_t* detail) override;
  bool Reached(uint32_t, uint64_t) const override { return true; }
  bool Readable(const Roster::Member&, uint32_t chunk, uint64_t min_version,
                Answer* answer) const override {
    answer->version = table_.chunk(chunk).version;
    return answer->version >= min_version;
  }
  void Retry() override;
  void Resize() override;
  void RosterChanged() override;
  void Reset() override;
  void FailSlice(uint32_t slice, ReplyStatus why, bool keep) override;
  void ForgetLane(uint32_t lane) override;

 private:
  struct Queued {
    Token token;
    uint64_t worker;
    uint32_t index;  // the member's
    uint32_t chunk;
    uint64_t sequence;
    Source gradient;  // without data: nothing to apply, answered `answer`
    ReplyStatus answer;
  };
  using Queue = std::vector<Queued>;

  bool Apply(uint32_t chunk, uint64_t worker, const Source& gradient);
  void Drain(uint32_t slice);
  // Forgets queued pushes for which `match` holds; with an event unless why is null.
  template <typename Match>
  void RemoveQueued(Queue* queue, const ReplyStatus* why, Match match);

  DenseTable& table_;
  PullParking& parking_;
  const Roster& roster_;
  Sink& sink_;
  Sequences sequences_;
  std::vector<Queue> queues_;  // by slice
};

void Async::Resize() {
  sequences_.Resize(roster_, table_.slices());
  queues_.resize(table_.slices());
}

bool Async::Apply(uint32_t chunk, uint64_t worker, const Source& gradient) {
  const uint32_t divisor = AsyncDivisor(table_.spec(), roster_);
  if (!table_.Apply(chunk, {&gradient, 1}, static_cast<float>(divisor))) return false;
  ++sink_.counters.applies;
  if (sink_.commit_observer) {
    const DenseTable::Chunk& c = table_.chunk(chunk);
    sink_.commit_observer({table_.id(), c.id, c.version - 1, {&worker, 1}, divisor});
  }
  parking_.Advanced(chunk);
  return true;
}

PushOutcome Async::Push(const PushRequest& request, const Roster::Member& member, uint32_t chunk) {
  const DenseTable::Chunk& c = table_.chunk(chunk);
  const auto answer = [&](ReplyStatus status) {
    return PushOutcome{false, {status, 0, c.version}};
  };
  Queue& queue = queues_[c.slice];
  uint64_t& last = sequences_.last(c.slice, member.index);
  const uint64_t sequence = request.group.sequence;
  uint64_t next = last + 1;
  for (const Queued& q : queue) next += q.worker == request.worker ? 1 : 0;
  // Between last and next: queued, so its lane is alive and this is no resend.
  const ReplyStatus order = Sequences::Check(sequence, last, next);
  if (order != ReplyStatus::kOk) return answer(order);

  Source gradient = GradientOf(request);
  ReplyStatus status = ReplyStatus::kOk;
  if (ContributesZero(&table_, gradient, request.group.count, &sink_, &status)) gradient = {};
  if (queue.empty() && (gradient.data == nullptr || Apply(chunk, request.worker, gradient))) {
    last = sequence;
    return answer(status);
  }
  if (queue.empty()) {
    ++sink_.blocked;
    ++sink_.counters.spare_exhausted;
  }
  queue.push_back({request.token, request.worker, member.index, chunk, sequence, gradient, status});
  ++sink_.counters.held;
  return {true, {}};
}

ReplyStatus Async::EndStep(const Group& group, uint64_t, uint64_t worker,
                           const Roster::Member& member, uint32_t slice, uint32_t* detail) {
  const Queue& queue = queues_[slice];
  const auto queued = std::count_if(queue.begin(), queue.end(),
                                    [&](const Queued& q) { return q.worker == worker; });
  if (queued > 0 && group.sequence > sequences_.last(slice, member.index)) {
    *detail = static_cast<uint32_t>(queued);
    return ReplyStatus::kTooEarly;
  }
  return sequences_.Take(slice, member.index, group.sequence);
}

// Applies what is queued, in order, as far as buffers allow.
void Async::Drain(uint32_t slice) {
  Queue& queue = queues_[slice];
  size_t done = 0;
  for (; done < queue.size(); ++done) {
    const Queued& q = queue[done];
    uint64_t& last = sequences_.last(slice, q.index);
    ReplyStatus status = q.answer;
    if (q.sequence != last + 1) {
      status = ReplyStatus::kSequenceGap;  // one before it was forgotten with another lane
    } else if (q.gradient.data != nullptr && !Apply(q.chunk, q.worker, q.gradient)) {
      break;
    } else {
      last = q.sequence;
    }
    sink_.PushDone(q.token, status, table_.chunk(q.chunk).version);
  }
  queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(done));
  if (done > 0 && queue.empty()) --sink_.blocked;
}

template <typename Match>
void Async::RemoveQueued(Queue* queue, const ReplyStatus* why, Match match) {
  if (queue->empty()) return;
  const auto remove = [&](const Queued& q) {
    if (!match(q)) return false;
    if (why != nullptr) {
      sink_.PushDone(q.token, *why, table_.chunk(q.chunk).version);
    } else {
      --sink_.counters.held;
    }
    return true;
  };
  queue->erase(std::remove_if(queue->begin(), queue->end(), remove), queue->end());
  if (queue->empty()) --sink_.blocked;
}

void Async::Retry() {
  for (uint32_t s = 0; s < queues_.size(); ++s) {
    if (!queues_[s].empty()) Drain(s);
  }
}

void Async::RosterChanged() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (Queue& queue : queues_) {
    RemoveQueued(&queue, &why, [&](const Queued& q) { return roster_.Find(q.worker) == nullptr; });
  }
  sequences_.RosterChanged(roster_);
}

void Async::Reset() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (Queue& queue : queues_) RemoveQueued(&queue, &why, [](const Queued&) { return true; });
  sequences_.Reset();
  Resize();
}

void Async::FailSlice(uint32_t slice, ReplyStatus why, bool) {
  RemoveQueued(&queues_[slice], &why, [](const Queued&) { return true; });
}

void Async::ForgetLane(uint32_t lane) {
  if (sink_.counters.held == 0) return;
  for (Queue& queue : queues_) {
    RemoveQueued(&queue, nullptr, [&](const Queued& q) { return q.token.lane == lane; });
  }
}

}  // namespace

std::unique_ptr<DenseConsistency> MakeAsync(const DenseParts& parts) {
  return std::make_unique<Async>(parts);
}

}  // namespace verbena::shard
