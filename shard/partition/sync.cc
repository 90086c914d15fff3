// The steps: contributions are taken, summed in the order of ranks, and committed. Changes of
// members, slices and jobs are in sync_members.cc.
#include "shard/partition/sync.h"

#include <algorithm>
#include <utility>

#include "shard/failpoints.h"

namespace verbena::shard {

bool Sync::Passes(uint32_t chunk, uint32_t rank) {
  const Contribution& x = At(chunk, rank);
  if (x.state == State::kEmpty || !Counts(rank, table_.chunk(chunk).version)) return true;
  return x.state == State::kNone && ProgressOf(table_.chunk(chunk).slice, rank).ended +
                                            (VERBENA_FAILPOINT(shard, pass_early) ? 1 : 0) >
                                        table_.chunk(chunk).version;
}

void Sync::Count(uint32_t chunk, uint32_t rank, int change) {
  const uint64_t step = table_.chunk(chunk).version;
  Progress& p = ProgressOf(table_.chunk(chunk).slice, rank);
  const size_t parity = step & 1;
  if (p.step[parity] != UINT64_MAX && p.step[parity] > step) return;
  if (p.step[parity] != step) {
    p.step[parity] = step;
    p.count[parity] = 0;
  }
  p.count[parity] += static_cast<uint32_t>(change);
}

ReplyStatus Sync::Repeated(const Contribution& x, uint64_t worker) const {
  // Held: its lane is alive, so this is no resend. Another worker's: the rank's turn has passed.
  if (x.state == State::kHeld || x.worker != worker) return ReplyStatus::kWrongStep;
  return ReplyStatus::kDuplicate;
}

PushOutcome Sync::Push(const PushRequest& request, const Members::Member& member, uint32_t chunk) {
  const DenseTable::Chunk& c = table_.chunk(chunk);
  const auto answer = [&](ReplyStatus status) {
    return PushOutcome{false, false, {status, 0, c.version}};
  };
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return answer(ReplyStatus::kPermissionDenied);
  const uint64_t step = request.group.sequence;
  if (step < c.version && !VERBENA_FAILPOINT(shard, skip_dedupe))
    return answer(ReplyStatus::kDuplicate);
  if (step > c.version) return answer(ReplyStatus::kWrongStep);
  Contribution& x = At(chunk, rank);
  if (x.state != State::kNone && x.state != State::kOwed) {
    return answer(Repeated(x, request.worker));
  }
  if (sink_.log->closing(PartitionOf(chunk)) && !Begun(c.slice, step)) {
    return answer(ReplyStatus::kNotReady);
  }
  FollowStep(chunk);
  // The rank was passed, or its worker has ended the step.
  if (rank < chunks_[chunk].cursor || Passes(chunk, rank)) return answer(ReplyStatus::kWrongStep);

  ReplyStatus status = ReplyStatus::kOk;
  const bool zero =
      ContributesZero(&table_, SourceOf(request), request.group.count, &sink_, &status);
  if (AwaitsEmpty(status)) return answer(status);
  Count(chunk, rank, 1);
  x.worker = request.worker;
  x.token = request.token;
  if (zero) {
    x.state = State::kEmpty;
    Advance(chunk);
    return answer(status);
  }
  x.state = State::kArrived;
  x.gradient = SourceOf(request);
  Advance(chunk);
  if (x.state == State::kOwed) return answer(ReplyStatus::kResourceExhausted);
  if (x.state != State::kArrived) return answer(ReplyStatus::kOk);
  x.state = State::kHeld;
  ++sink_.counters.held;
  return {true, false, {}};
}

void Sync::AddSum(const Chunk& chunk, const std::byte* sum) {
  sources_.push_back(chunk.kind);
  sources_.back().data = sum;
}

// Consumes the longest run from the cursor; commits as long as steps are complete.
void Sync::Advance(uint32_t chunk) {
  Chunk& s = chunks_[chunk];
  for (;;) {
    if (s.appended != 0 && (!s.acknowledged || !Commit(chunk))) return;
    FollowStep(chunk);
    sources_.clear();
    if (s.accumulator.data != nullptr) AddSum(s, s.accumulator.data);
    const size_t sums = sources_.size();
    uint32_t end = s.cursor;
    for (; end < ranks_; ++end) {
      const Contribution& x = At(chunk, end);
      if (Pending(x)) {
        sources_.push_back(x.gradient);
      } else if (!Passes(chunk, end)) {
        break;
      }
    }
    if (end < ranks_) {
      Consume(chunk, end, sources_.size() - sums);
      return;
    }
    if (norms_ != nullptr && !Totalled(chunk, sources_.size() - sums)) return;
    const Replicating telling = Replicate(chunk, sources_.size() - sums);
    if (telling == Replicating::kNoMemory || telling == Replicating::kNoRoom) return;
    if (telling == Replicating::kNobody && !Commit(chunk)) return;
  }
}

Sync::Replicating Sync::Replicate(uint32_t chunk, size_t payloads) {
  ReplicaLog& log = *sink_.log;
  const uint32_t partition = PartitionOf(chunk);
  const ReplicaLog::Mode mode = log.mode(partition);
  if (mode == ReplicaLog::Mode::kAlone || !log.Replicated(partition, table_.id(), chunk)) {
    return Replicating::kNobody;
  }
  Chunk& s = chunks_[chunk];
  s.listed = norms_ != nullptr ? norms_->divisor(chunk) : Listed(chunk);
  if (s.listed == 0) return Replicating::kNobody;  // no worker makes steps
  // With norms, the sum is there.
  if (s.cursor < ranks_) Consume(chunk, ranks_, payloads);
  if (s.cursor < ranks_) return Replicating::kNoMemory;
  // The pushes are already summed, so no slot waits for room.
  if (!log.HasRoom(partition)) {
    SetBlocked(chunk);
    return Replicating::kNoRoom;
  }
  const bool abandoned = Abandoned(chunk);
  ClearBlocked(chunk);
  const StepScale scale = norms_ != nullptr ? norms_->scale(chunk) : StepScale();
  const DenseTable::Chunk& c = table_.chunk(chunk);
  ReplicaLog::Append appended;
  appended.table = table_.id();
  appended.partition = partition;
  appended.index = c.id;
  appended.header.kind = ReplicaKind::kDense;
  appended.header.generation = members_.generation();
  appended.header.count = s.accumulator.data == nullptr ? 0 : c.elements;
  appended.header.total_bytes = appended.header.count * static_cast<uint32_t>(sizeof(float));
  appended.header.divisor = mean_ ? static_cast<float>(s.listed) : 1.0f;
  appended.header.gradient_scale = scale.gradient;
  appended.header.trust = scale.trust;
  appended.header.version = c.version + 1;
  appended.header.assigned = s.kind.assigns ? appended.header.count : 0;
  appended.header.array = s.kind.array;
  appended.header.applies = AppliesAfter(c.applies, {&s.kind, 1});
  appended.data = std::exchange(s.accumulator, {});
  appended.accumulator = true;
  appended.owner = this;
  appended.local = chunk;
  s.appended = log.Add(std::move(appended));
  s.acknowledged = mode == ReplicaLog::Mode::kForward;
  Observe(chunk, c.version, s.listed, abandoned);
  return Replicating::kReplicated;
}

void Sync::Consume(uint32_t chunk, uint32_t end, size_t payloads) {
  Chunk& s = chunks_[chunk];
  if (payloads > 0) {
    const uint32_t elements = table_.chunk(chunk).elements;
    if (s.accumulator.data == nullptr) {
      s.accumulator = pool_.TakeAccumulator(elements * sizeof(float), table_.account());
    }
    if (s.accumulator.data == nullptr) {
      // Holding slots until the step can be reduced in one pass could deadlock lanes.
      const ReplyStatus why = ReplyStatus::kResourceExhausted;
      for (uint32_t r = s.cursor; r < end; ++r) {
        if (Pending(At(chunk, r))) Drop(chunk, r, State::kOwed, &why);
      }
      return;
    }
    const absl::Span<const Source> effective = Effective(sources_);
    Accumulate(BestIsa(), effective, reinterpret_cast<float*>(s.accumulator.data), elements);
    s.kind = Assigns(effective) ? effective.back() : Source();
    s.kind.data = nullptr;  // the accumulator, in f32
    s.kind.type = ElementType::kF32;
    for (uint32_t r = s.cursor; r < end; ++r) {
      if (Pending(At(chunk, r))) Settle(chunk, &At(chunk, r), State::kConsumed);
    }
  }
  s.cursor = end;
}

// For a table with norms over several chunks, once all contributions are there. True: the total
// norms are there too, and Commit() applies sources_. Slots do not wait for the total norms, but
// the sum does.
bool Sync::Totalled(uint32_t chunk, size_t payloads) {
  Chunk& s = chunks_[chunk];
  if (norms_->open(chunk)) {
    const uint32_t listed = Listed(chunk);
    if (listed == 0) return false;
    Consume(chunk, ranks_, payloads);
    if (s.cursor < ranks_) return false;  // no memory: contributions are owed
    sources_.clear();
    if (s.accumulator.data != nullptr) AddSum(s, s.accumulator.data);
    norms_->Begin(chunk, listed);
  }
  return norms_->Step(chunk, sources_);
}

void Sync::OnTotals(uint32_t slice) {
  for (const uint32_t chunk : table_.slice(slice).chunks) {
    if (!norms_->open(chunk)) Advance(chunk);
  }
}

// How many workers the commit lists. A step whose workers are all gone ends empty if others have
// joined for a later one and wait for that: on the primary alone, since replicas follow it.
uint32_t Sync::Listed(uint32_t chunk) {
  const uint64_t step = table_.chunk(chunk).version;
  uint32_t listed = 0;
  bool later = false;
  for (uint32_t r = 0; r < ranks_; ++r) {
    const State state = At(chunk, r).state;
    const bool contributed = state != State::kNone && state != State::kOwed;
    if (contributed || Counts(r, step)) ++listed;  // live: has ended the step
    later |= !members_.departed(r);
  }
  return listed == 0 && later && step < awaited_[table_.chunk(chunk).slice] ? 1 : listed;
}

bool Sync::Commit(uint32_t chunk, bool force) {
  Chunk& s = chunks_[chunk];
  const uint32_t listed = s.appended != 0     ? s.listed
                          : norms_ != nullptr ? norms_->divisor(chunk)
                                              : Listed(chunk);
  if (listed == 0) return false;  // all have left: no worker makes steps
  const StepScale scale = norms_ != nullptr ? norms_->scale(chunk) : StepScale();
  if (s.appended != 0) {
    sources_.clear();
    const std::byte* sum = sink_.log->data(PartitionOf(chunk), s.appended);
    if (sum != nullptr) AddSum(s, sum);
  }
  if (!table_.Apply(chunk, sources_, mean_ ? static_cast<float>(listed) : 1.0f, scale, force)) {
    sink_.counters.spare_exhausted += chunks_[chunk].blocked ? 0 : 1;
    SetBlocked(chunk);
    return false;
  }
  const bool abandoned = Abandoned(chunk);
  ClearBlocked(chunk);
  const bool appended = s.appended != 0;
  if (appended) sink_.log->Applied(PartitionOf(chunk), std::exchange(s.appended, 0));
  s.acknowledged = false;
  if (norms_ != nullptr) norms_->Committed(chunk);
  ++sink_.counters.applies;
  ++sink_.counters.commits;
  if (!appended) Observe(chunk, table_.chunk(chunk).version - 1, listed, abandoned);
  for (uint32_t r = 0; r < ranks_; ++r) Settle(chunk, &At(chunk, r), State::kNone);
  chunks_[chunk].cursor = 0;
  DropAccumulator(&chunks_[chunk]);
  parking_.Advanced(chunk);
  return true;
}

void Sync::Observe(uint32_t chunk, uint64_t step, uint32_t listed, bool abandoned) {
  if (!sink_.commit_observer) return;
  contributors_.clear();
  for (uint32_t r = 0; r < ranks_; ++r) {
    const Contribution& x = At(chunk, r);
    if (Pending(x) || x.state == State::kConsumed) contributors_.push_back(x.worker);
  }
  shard::Commit commit = {table_.id(), table_.chunk(chunk).id, step, contributors_, listed};
  commit.abandoned = abandoned;
  sink_.commit_observer(commit);
}

void Sync::Settle(uint32_t chunk, Contribution* x, State next) {
  if (x->state == State::kHeld) {
    sink_.PushDone(x->token, ReplyStatus::kOk, table_.chunk(chunk).version);
  }
  x->state = next;
  x->gradient = {};
}

void Sync::Drop(uint32_t chunk, uint32_t rank, State next, const ReplyStatus* why) {
  Contribution& x = At(chunk, rank);
  if (x.state == State::kHeld) {
    if (why != nullptr) {
      sink_.PushDone(x.token, *why, table_.chunk(chunk).version);
    } else {
      --sink_.counters.held;
    }
  }
  Count(chunk, rank, -1);
  x.state = next;
  x.gradient = {};
}

void Sync::DropAccumulator(Chunk* chunk) {
  if (chunk->accumulator.data != nullptr) pool_.ReturnAccumulator(chunk->accumulator);
  chunk->accumulator = {};
  chunk->kind = {};
}

void Sync::Awaited(const Members::Member& member, uint32_t slice) {
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_ || firsts_[rank] <= table_.slice(slice).min_version) return;
  awaited_[slice] = table_.slice(slice).min_version + kEmptySteps;
  for (const uint32_t chunk : table_.slice(slice).chunks) Advance(chunk);
}

void Sync::SetBlocked(uint32_t chunk) {
  if (chunks_[chunk].blocked) return;
  chunks_[chunk].blocked = true;
  blocked_.push_back(chunk);
  ++sink_.blocked;
}

void Sync::ClearBlocked(uint32_t chunk) {
  if (!chunks_[chunk].blocked) return;
  chunks_[chunk].blocked = false;
  blocked_.erase(std::find(blocked_.begin(), blocked_.end(), chunk));
  --sink_.blocked;
}

void Sync::Retry() {
  // Iterates over a copy: a chunk that advances is removed from the list.
  const std::vector<uint32_t> waiting = blocked_;
  for (const uint32_t chunk : waiting) Advance(chunk);
}

ReplyStatus Sync::EndStep(const Group& group, uint64_t, uint64_t, const Members::Member& member,
                          uint32_t slice, uint32_t* detail) {
  const auto rank = static_cast<uint32_t>(member.rank);
  if (rank >= ranks_) return ReplyStatus::kPermissionDenied;
  const uint64_t step = group.sequence;
  const DenseTable::LocalPartition& s = table_.slice(slice);
  if (step < s.min_version) return ReplyStatus::kDuplicate;
  Progress& p = ProgressOf(slice, rank);
  if (step < p.ended) return ReplyStatus::kOk;
  uint64_t newest = 0;
  for (const uint32_t chunk : s.chunks) newest = std::max(newest, table_.chunk(chunk).version);
  if (step > newest || !Counts(rank, step)) return ReplyStatus::kWrongStep;
  const uint32_t arrived = p.step[step & 1] == step ? p.count[step & 1] : 0;
  if (arrived < group.count) {
    *detail = group.count - arrived;
    return ReplyStatus::kTooEarly;
  }
  p.ended = step + 1;
  for (const uint32_t chunk : s.chunks) {
    if (table_.chunk(chunk).version <= step) Advance(chunk);
  }
  return ReplyStatus::kOk;
}

uint64_t Sync::OpenStep(uint32_t slice) const {
  uint64_t open = 0;
  for (const uint32_t chunk : table_.slice(slice).chunks) {
    const bool begun = chunks_[chunk].appended != 0 || (norms_ != nullptr && !norms_->open(chunk));
    open = std::max(open, table_.chunk(chunk).version + (begun ? 1 : 0));
  }
  return open;
}

bool Sync::Begun(uint32_t slice, uint64_t step) const {
  const std::vector<uint32_t>& chunks = table_.slice(slice).chunks;
  const auto past = [&](uint32_t chunk) { return table_.chunk(chunk).version > step; };
  if (std::any_of(chunks.begin(), chunks.end(), past)) return true;
  for (uint32_t rank = 0; rank < ranks_; ++rank) {
    const Progress& p = progress_[size_t{slice} * ranks_ + rank];
    if (p.step[step & 1] == step && p.count[step & 1] > 0) return true;
  }
  return false;
}

bool Sync::HasOpenStep(uint32_t slice) const {
  // One that some chunks have committed has begun.
  uint64_t least = UINT64_MAX;
  for (const uint32_t chunk : table_.slice(slice).chunks) {
    least = std::min(least, table_.chunk(chunk).version);
  }
  return least != UINT64_MAX && Begun(slice, least);
}

std::unique_ptr<DenseConsistency> MakeSync(const DenseParts& parts) {
  return std::make_unique<Sync>(parts);
}

}  // namespace verbena::shard
