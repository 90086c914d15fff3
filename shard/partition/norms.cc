#include "shard/partition/norms.h"

#include <algorithm>
#include <cstring>

namespace verbena::shard {

Norms::Norms(DenseTable* table, BufferPool* pool, EngineContext* sink)
    : table_(*table),
      pool_(*pool),
      sink_(*sink),
      gradient_(table->optimizer().initial().clip_global_norm() > 0),
      trust_(table->optimizer().initial().has_trust_ratio()) {
  Resize();
}

Norms::~Norms() { sink_.counters.deferred -= deferred_; }

void Norms::Resize() {
  chunks_.resize(table_.chunks());
  slices_.resize(table_.slices());
}

// ---- a chunk's open step ------------------------------------------------------------------------

void Norms::Begin(uint32_t chunk, uint32_t divisor) {
  Chunk& c = chunks_[chunk];
  c.phase = Phase::kBegun;
  c.divisor = divisor;
  c.scale = {};
}

bool Norms::Step(uint32_t chunk, absl::Span<const Source> sources) {
  Chunk& c = chunks_[chunk];
  if (c.phase == Phase::kMeasured) return false;
  if (c.phase == Phase::kBegun) {
    Measure(chunk, gradient_ ? NormKind::kGradient : NormKind::kTrust, sources);
    return false;
  }
  if (trust_ && c.kind == NormKind::kGradient) {
    Measure(chunk, NormKind::kTrust, sources);
    return false;
  }
  return true;
}

void Norms::Measure(uint32_t chunk, NormKind kind, absl::Span<const Source> sources) {
  Chunk& c = chunks_[chunk];
  const DenseTable::Chunk& t = table_.chunk(chunk);
  const auto divisor =
      table_.spec().reduction() == v1::REDUCTION_MEAN ? static_cast<float>(c.divisor) : 1.0f;
  NormTotals& part = c.parts[t.version & 1][static_cast<size_t>(kind)];
  if (kind == NormKind::kGradient) {
    part = {table_.SquaredGradient(chunk, sources, divisor), 0};
  } else {
    const TrustParts trust = table_.MeasureTrust(chunk, sources, divisor, c.scale.gradient);
    part = {trust.weights, trust.update};
  }
  c.phase = Phase::kMeasured;
  c.kind = kind;
  Count& count = CountOf(t.slice, t.version, kind);
  if (count.step != t.version) count = {t.version, 0};
  ++count.chunks;
  if (Complete(t.slice, t.version, kind)) Release(t.slice, t.version, kind);
}

ReplyStatus Norms::Replicate(uint32_t slice, uint64_t step, NormKind kind,
                             const NormTotals& totals) {
  const std::vector<uint32_t>& chunks = table_.slice(slice).chunks;
  bool fresh = false;
  for (const uint32_t i : chunks) {
    const Chunk& c = chunks_[i];
    const uint64_t version = table_.chunk(i).version;
    if (version > step) continue;
    // Totals without this chunk's part are not those of this step.
    if (version < step || c.phase == Phase::kOpen || c.phase == Phase::kBegun || c.kind < kind) {
      return ReplyStatus::kWrongStep;
    }
    fresh |= c.phase == Phase::kMeasured && c.kind == kind;
  }
  if (!fresh) return ReplyStatus::kDuplicate;
  for (const uint32_t i : chunks) {
    Chunk& c = chunks_[i];
    if (table_.chunk(i).version != step || c.phase != Phase::kMeasured || c.kind != kind) continue;
    if (kind == NormKind::kGradient) {
      c.scale.gradient = GradientScale(totals[0], table_.optimizer().initial().clip_global_norm());
    } else {
      c.scale.trust = TrustRatio(totals[0], totals[1]);
    }
    c.phase = Phase::kTotalled;
  }
  return ReplyStatus::kOk;
}

// ---- asking -------------------------------------------------------------------------------------

bool Norms::Complete(uint32_t slice, uint64_t step, NormKind kind) {
  const Count& count = CountOf(slice, step, kind);
  return count.step == step && count.chunks == table_.slice(slice).chunks.size();
}

bool Norms::Over(uint32_t slice, uint64_t step, NormKind kind) {
  return table_.slice(slice).min_version > step && !Complete(slice, step, kind);
}

PullOutcome Norms::Ask(const NormsRequest& request, absl::Span<const uint32_t> slices) {
  const uint64_t step = request.groups[0].sequence;
  const auto kind = static_cast<NormKind>(request.groups[0].index);
  const auto answer = [&](ReplyStatus status) {
    PullOutcome outcome;
    outcome.answer.status = status;
    return outcome;
  };
  if (kind == NormKind::kGradient ? !gradient_ : !trust_) return answer(ReplyStatus::kMalformed);
  uint64_t chunks = 0;
  uint32_t missing = 0;
  for (const uint32_t s : slices) {
    if (Over(s, step, kind)) return answer(ReplyStatus::kDuplicate);
    chunks += table_.slice(s).chunks.size();
    missing += !Complete(s, step, kind);
  }
  if (chunks * NormNumbers(kind) * sizeof(double) > kMaxRowsBytes) {
    return answer(ReplyStatus::kOutOfRange);
  }
  PullOutcome outcome;
  if (missing > 0) {
    if (!request.may_park) return answer(ReplyStatus::kTooEarly);
    Defer(request, slices, missing);
    outcome.kind = PullOutcome::Kind::kDeferred;
    return outcome;
  }
  outcome.view = Gather(step, kind, slices);
  if (outcome.view.buffer.data == nullptr) return answer(ReplyStatus::kResourceExhausted);
  outcome.kind = PullOutcome::Kind::kReady;
  outcome.answer.version = step;
  return outcome;
}

ChunkView Norms::Gather(uint64_t step, NormKind kind, absl::Span<const uint32_t> slices) {
  const size_t bytes_each = NormNumbers(kind) * sizeof(double);
  size_t bytes = 0;
  for (const uint32_t s : slices) bytes += table_.slice(s).chunks.size() * bytes_each;
  const Buffer scratch = pool_.TakeScratch(bytes, table_.account());
  if (scratch.data == nullptr) return {};
  const ChunkView view = {scratch, static_cast<uint32_t>(bytes), step, pool_.PinScratch(scratch)};
  std::byte* out = view.buffer.data;
  for (const uint32_t s : slices) {
    for (const uint32_t i : table_.slice(s).chunks) {
      std::memcpy(out, chunks_[i].parts[step & 1][static_cast<size_t>(kind)].data(), bytes_each);
      out += bytes_each;
    }
  }
  return view;
}

void Norms::Defer(const NormsRequest& request, absl::Span<const uint32_t> slices,
                  uint32_t remaining) {
  const uint64_t step = request.groups[0].sequence;
  const auto kind = static_cast<NormKind>(request.groups[0].index);
  uint32_t index = 0;
  while (index < asks_.size() && asks_[index].remaining > 0) ++index;
  if (index == asks_.size()) asks_.emplace_back();
  Asked& ask = asks_[index];
  ask.token = request.token;
  ask.worker = request.worker;
  ask.step = step;
  ask.kind = kind;
  ask.remaining = remaining;
  ask.destination = request.destination;
  ask.destination_key = request.destination_key;
  ask.slices.assign(slices.begin(), slices.end());
  for (const uint32_t s : slices) {
    if (!Complete(s, step, kind)) slices_[s].waiters.push_back(index);
  }
  ++deferred_;
  ++sink_.counters.deferred;
}

void Norms::Free(Asked* ask) {
  ask->remaining = 0;
  --deferred_;
  --sink_.counters.deferred;
}

// All parts of a slice are present: answers the requests for which these were the last.
void Norms::Release(uint32_t slice, uint64_t step, NormKind kind) {
  const auto done = [&](uint32_t index) {
    Asked& ask = asks_[index];
    if (ask.step != step || ask.kind != kind) return false;
    if (--ask.remaining > 0) return true;
    Event event{Event::Kind::kPullReady, ask.token, {}, {}, ask.destination, ask.destination_key};
    event.view = Gather(step, kind, ask.slices);
    event.answer.version = step;
    if (event.view.buffer.data == nullptr) {
      event.kind = Event::Kind::kPullFailed;
      event.answer.status = ReplyStatus::kResourceExhausted;
    }
    sink_.events.push_back(event);
    Free(&ask);
    return true;
  };
  std::vector<uint32_t>& waiters = slices_[slice].waiters;
  waiters.erase(std::remove_if(waiters.begin(), waiters.end(), done), waiters.end());
}

// ---- the view -----------------------------------------------------------------------------------

// Ends deferred requests, with an event of *why unless why is null.
void Norms::Fail(absl::FunctionRef<bool(const Asked&)> match, const ReplyStatus* why) {
  if (deferred_ == 0) return;
  for (Asked& ask : asks_) {
    if (ask.remaining == 0 || !match(ask)) continue;
    if (why != nullptr) {
      sink_.events.push_back({Event::Kind::kPullFailed,
                              ask.token,
                              {*why, 0, 0},
                              {},
                              ask.destination,
                              ask.destination_key});
    }
    Free(&ask);
  }
  for (LocalPartition& s : slices_) {
    std::erase_if(s.waiters, [&](uint32_t index) { return asks_[index].remaining == 0; });
  }
}

void Norms::FailLocalPartition(uint32_t slice, ReplyStatus why, bool keep) {
  Fail(
      [slice](const Asked& ask) {
        return std::find(ask.slices.begin(), ask.slices.end(), slice) != ask.slices.end();
      },
      &why);
  if (keep) return;
  for (const uint32_t i : table_.slice(slice).chunks) chunks_[i] = {};
  slices_[slice] = {};
}

void Norms::FailWorkers(absl::FunctionRef<bool(uint64_t)> expired) {
  const ReplyStatus why = ReplyStatus::kExpired;
  Fail([&](const Asked& ask) { return expired(ask.worker); }, &why);
}

void Norms::Reset() {
  const ReplyStatus why = ReplyStatus::kExpired;
  Fail([](const Asked&) { return true; }, &why);
  chunks_.clear();
  slices_.clear();
  Resize();
}

void Norms::ForgetLane(uint32_t lane) {
  Fail([lane](const Asked& ask) { return ask.token.lane == lane; }, nullptr);
}

}  // namespace verbena::shard
