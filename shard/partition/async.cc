// Asynchronous pushes of a table: each is applied when it arrives, exactly once.
//
// Normally a push is applied at once. When its chunk is pinned and there is no spare, it is queued,
// and every later push to the same slice queues behind it: so a worker's sequences are applied in
// order, and `last` never runs ahead of a push that could still be forgotten with its lane.
#include <algorithm>

#include "shard/partition/consistency.h"

namespace verbena::shard {

namespace {

class Async final : public Consistency {
 public:
  explicit Async(const TableParts& parts)
      : table_(*parts.table),
        parking_(*parts.parking),
        roster_(*parts.roster),
        sink_(*parts.sink),
        mean_(table_.spec().reduction() == v1::REDUCTION_MEAN) {
    Resize();
  }
  ~Async() override {
    for (const Slice& s : slices_) sink_.blocked -= s.queue.empty() ? 0 : 1;
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
    const float* payload;  // null: nothing to apply, answered `answer`
    ReplyStatus answer;
  };
  struct Slice {
    std::vector<uint64_t> last;  // by member index: the last sequence applied
    std::vector<Queued> queue;
  };

  bool Apply(uint32_t chunk, uint64_t worker, const float* payload);
  void Drain(Slice* slice);
  // Forgets queued pushes for which `match` holds; with an event unless why is null.
  template <typename Match>
  void RemoveQueued(Slice* slice, const ReplyStatus* why, Match match);

  DenseTable& table_;
  Parking& parking_;
  const Roster& roster_;
  Sink& sink_;
  const bool mean_;
  std::vector<Slice> slices_;
  std::vector<uint64_t> owners_;  // of each member index, as of the last roster
};

void Async::Resize() {
  const uint32_t known = static_cast<uint32_t>(owners_.size());
  owners_.resize(std::max(known, roster_.indices()));
  for (uint32_t i = known; i < owners_.size(); ++i) owners_[i] = roster_.index_owner(i);
  slices_.resize(table_.slices());
  for (Slice& s : slices_) s.last.resize(owners_.size());
}

bool Async::Apply(uint32_t chunk, uint64_t worker, const float* payload) {
  const uint32_t divisor = mean_ ? std::max(roster_.expected(), 1u) : 1;
  if (!table_.Apply(chunk, {&payload, 1}, static_cast<float>(divisor))) return false;
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
  Slice& s = slices_[c.slice];
  uint64_t& last = s.last[member.index];
  const uint64_t sequence = request.group.sequence;
  uint64_t next = last + 1;
  for (const Queued& q : s.queue) next += q.worker == request.worker ? 1 : 0;
  if (sequence <= last) return answer(ReplyStatus::kDuplicate);
  // Between last and next: queued, so its lane is alive and this is no resend.
  if (sequence != next) return answer(ReplyStatus::kSequenceGap);

  const auto* payload = reinterpret_cast<const float*>(request.payload.data());
  ReplyStatus status = ReplyStatus::kOk;
  if (ContributesZero(&table_, request, c.elements, &sink_, &status)) payload = nullptr;
  if (s.queue.empty() && (payload == nullptr || Apply(chunk, request.worker, payload))) {
    last = sequence;
    return answer(status);
  }
  if (s.queue.empty()) {
    ++sink_.blocked;
    ++sink_.counters.spare_exhausted;
  }
  s.queue.push_back(
      {request.token, request.worker, member.index, chunk, sequence, payload, status});
  ++sink_.counters.held;
  return {true, {}};
}

ReplyStatus Async::EndStep(const Group& group, uint64_t, uint64_t worker,
                           const Roster::Member& member, uint32_t slice, uint32_t* detail) {
  Slice& s = slices_[slice];
  uint64_t& last = s.last[member.index];
  if (group.sequence <= last) return ReplyStatus::kDuplicate;
  const auto queued = std::count_if(s.queue.begin(), s.queue.end(),
                                    [&](const Queued& q) { return q.worker == worker; });
  if (queued > 0) {
    *detail = static_cast<uint32_t>(queued);
    return ReplyStatus::kTooEarly;
  }
  if (group.sequence != last + 1) return ReplyStatus::kSequenceGap;
  last = group.sequence;
  return ReplyStatus::kOk;
}

// Applies what is queued, in order, as far as buffers allow.
void Async::Drain(Slice* slice) {
  size_t done = 0;
  for (; done < slice->queue.size(); ++done) {
    const Queued& q = slice->queue[done];
    uint64_t& last = slice->last[q.index];
    ReplyStatus status = q.answer;
    if (q.sequence != last + 1) {
      status = ReplyStatus::kSequenceGap;  // one before it was forgotten with another lane
    } else if (q.payload != nullptr && !Apply(q.chunk, q.worker, q.payload)) {
      break;
    } else {
      last = q.sequence;
    }
    sink_.PushDone(q.token, status, table_.chunk(q.chunk).version);
  }
  slice->queue.erase(slice->queue.begin(), slice->queue.begin() + static_cast<ptrdiff_t>(done));
  if (done > 0 && slice->queue.empty()) --sink_.blocked;
}

template <typename Match>
void Async::RemoveQueued(Slice* slice, const ReplyStatus* why, Match match) {
  if (slice->queue.empty()) return;
  const auto remove = [&](const Queued& q) {
    if (!match(q)) return false;
    if (why != nullptr) {
      sink_.PushDone(q.token, *why, table_.chunk(q.chunk).version);
    } else {
      --sink_.counters.held;
    }
    return true;
  };
  slice->queue.erase(std::remove_if(slice->queue.begin(), slice->queue.end(), remove),
                     slice->queue.end());
  if (slice->queue.empty()) --sink_.blocked;
}

void Async::Retry() {
  for (Slice& s : slices_) {
    if (!s.queue.empty()) Drain(&s);
  }
}

void Async::RosterChanged() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (Slice& s : slices_) {
    RemoveQueued(&s, &why, [&](const Queued& q) { return roster_.Find(q.worker) == nullptr; });
  }
  for (uint32_t i = 0; i < owners_.size(); ++i) {
    if (owners_[i] == roster_.index_owner(i)) continue;
    owners_[i] = roster_.index_owner(i);
    for (Slice& s : slices_) s.last[i] = 0;
  }
}

void Async::Reset() {
  const ReplyStatus why = ReplyStatus::kExpired;
  for (Slice& s : slices_) {
    RemoveQueued(&s, &why, [](const Queued&) { return true; });
  }
  slices_.clear();
  owners_.clear();
  Resize();
}

void Async::FailSlice(uint32_t slice, ReplyStatus why, bool) {
  RemoveQueued(&slices_[slice], &why, [](const Queued&) { return true; });
}

void Async::ForgetLane(uint32_t lane) {
  if (sink_.counters.held == 0) return;
  for (Slice& s : slices_) {
    RemoveQueued(&s, nullptr, [&](const Queued& q) { return q.token.lane == lane; });
  }
}

}  // namespace

std::unique_ptr<Consistency> MakeAsync(const TableParts& parts) {
  return std::make_unique<Async>(parts);
}

}  // namespace verbena::shard
