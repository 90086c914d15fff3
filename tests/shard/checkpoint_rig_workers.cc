// Workers of a CheckpointRig: their pushes, and their delivery.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/checkpoint_rig.h"
#include "tests/shard/replica_bytes.h"

namespace verbena::shard {

std::vector<float> CheckpointRig::GradientOf(uint32_t rank, uint64_t first, uint64_t step,
                                             size_t n) const {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    std::minstd_rand random(static_cast<uint32_t>((first + i) * 131 + rank * 7919 + step * 17 + 1));
    random();
    values[i] = static_cast<float>(static_cast<int>(random() % 201) - 100) / 16;
  }
  return values;
}

std::vector<uint64_t> CheckpointRig::KeysOf(uint32_t rank, uint32_t partition,
                                            uint64_t step) const {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < plan.keys; ++key) {
    std::minstd_rand random(static_cast<uint32_t>(key * 331 + rank * 17 + step * 7 + 3));
    random();
    // Some are pushed often, some not before late.
    if (random() % (key % 3 == 0 ? 2 : 9) != 0) continue;
    if (PartitionOfKey(plan.table, key, plan.partitions) == partition) keys.push_back(key);
  }
  return keys;
}

bool CheckpointRig::Assigns(uint32_t rank, uint32_t item, uint64_t position) const {
  std::minstd_rand random(
      static_cast<uint32_t>(position * 613 + rank * 29 + item * 101 + plan.seed));
  random();
  return plan.assigns && random() % 6 == 0;
}

Group CheckpointRig::GroupOf(uint32_t partition, uint64_t sequence) const {
  return {partition, 0, view_.partitions(static_cast<int>(partition)).epoch(), sequence, 0, 0};
}

bool CheckpointRig::Ended(const Stream& stream) const {
  const auto limit = limits_.find({kFirstWorker + stream.rank, stream.item});
  if (limit != limits_.end()) return stream.position >= limit->second;
  return stream.position >= goal_ * (sync() && plan.rows ? 2 : 1);
}

bool CheckpointRig::Done() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [&](const Stream& s) { return Ended(s) && !s.out; });
}

ReplyStatus CheckpointRig::TryDense(Stream* s, bool* later) {
  const DenseLayout layout = LayoutOf(view_.tables(0).spec());
  uint32_t chunk = s->item;
  uint64_t sequence = s->position;
  if (!sync()) {
    std::vector<uint32_t> here;
    for (uint32_t c = 0; c < layout.chunks(); ++c) {
      if (PartitionOfChunk(plan.table, c, plan.partitions) == s->item) here.push_back(c);
    }
    if (here.empty()) return ReplyStatus::kOk;
    chunk = here[s->position % here.size()];
    sequence = s->position + 1;
  }
  const uint32_t partition = PartitionOfChunk(plan.table, chunk, plan.partitions);
  const std::vector<float> values =
      GradientOf(s->rank, layout.first_element(chunk), s->position, layout.elements_of(chunk));
  PushRequest r;
  r.assigns = Assigns(s->rank, chunk, s->position);
  r.dtype = static_cast<ElementType>(r.assigns ? plan.dtype : plan.gradient_dtype);
  std::vector<std::byte>& payload = payloads_.emplace_back(values.size() * ElementBytes(r.dtype));
  if (r.dtype == ElementType::kF32) {
    std::memcpy(payload.data(), values.data(), payload.size());
  } else {
    Round(Isa::kBaseline, r.dtype, values.data(), reinterpret_cast<uint16_t*>(payload.data()),
          values.size());
  }
  r.token = {s->rank, static_cast<uint32_t>(s - streams_.data()), 0};
  r.worker = kFirstWorker + s->rank;
  r.table = plan.table;
  r.group = GroupOf(partition, sequence);
  r.group.index = chunk;
  r.group.count = layout.elements_of(chunk);
  r.payload = payload;
  const PushOutcome out = EngineOf(partition).Push(r);
  *later = out.held || out.replicating;
  if (!out.held) payloads_.pop_back();
  return out.answer.status;
}

ReplyStatus CheckpointRig::TryRows(Stream* s, bool* later) {
  const uint32_t partition = s->item;
  const uint64_t step = sync() ? s->position / 2 : s->position;
  const std::vector<uint64_t> keys = KeysOf(s->rank, partition, step);
  Group group = GroupOf(partition, sync() ? step : s->position + 1);
  GroupsOutcome out;
  if (sync() && s->position % 2 == 1) {
    group.count = keys.empty() ? 0 : 1;
    out = EngineOf(partition).EndStep(
        {{s->rank, 0, 0}, kFirstWorker + s->rank, plan.table, {&group, 1}});
  } else if (sync() && keys.empty()) {
    return ReplyStatus::kOk;
  } else {
    group.count = static_cast<uint32_t>(keys.size());
    std::vector<float> values;
    for (const uint64_t key : keys) {
      const std::vector<float> row = GradientOf(s->rank, key * 64, step, plan.dim);
      values.insert(values.end(), row.begin(), row.end());
    }
    out = EngineOf(partition).PushRows(
        {{s->rank, static_cast<uint32_t>(s - streams_.data()), 0},
         kFirstWorker + s->rank,
         plan.table,
         {&group, 1},
         keys,
         {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)},
         ElementType::kF32,
         Assigns(s->rank, partition, s->position)});
  }
  *later = out.replicating;
  return out.group_status[0];
}

void CheckpointRig::Try(Stream* s) {
  if (s->out || Ended(*s)) return;
  bool later = false;
  const ReplyStatus status = plan.rows ? TryRows(s, &later) : TryDense(s, &later);
  if (later) {
    s->out = true;
  } else if (status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate) {
    ++s->position;
    if (!sync()) acknowledged_[{kFirstWorker + s->rank, s->item}] = s->position;
  } else if (status != ReplyStatus::kWrongStep && status != ReplyStatus::kResourceExhausted) {
    error = "a push is answered " + std::string(ReplyStatusName(status));
  }
}

void CheckpointRig::TakeEvents() {
  std::vector<Event> events;
  for (const auto& engine : engines_) engine->TakeEvents(&events);
  for (const Event& event : events) {
    if (event.kind != Event::Kind::kPushDone && event.kind != Event::Kind::kReplicated) continue;
    Stream& s = streams_[event.token.operation];
    s.out = false;
    if (event.answer.status != ReplyStatus::kOk) continue;
    ++s.position;
    if (!sync()) acknowledged_[{kFirstWorker + s.rank, s.item}] = s.position;
  }
}

// One record, or its answer, arrives.
void CheckpointRig::Deliver() {
  std::vector<ReplicaRecord> records;
  for (size_t e = 0; e < engines_.size(); ++e) {
    records.clear();
    engines_[e]->replicas().Take(&records, 4);
    links_[e].insert(links_[e].end(), records.begin(), records.end());
  }
  std::deque<ReplicaRecord>& link = links_[Pick(static_cast<uint32_t>(engines_.size()))];
  if (link.empty()) return;
  const ReplicaRecord r = link.front();
  link.pop_front();
  const CopyId from = {kServer + r.group.partition % engines_.size(), 0};
  const ReplicaBytes bytes(r);
  const Answer answer =
      engines_[r.to.server - kServer]->copies().Replicate(from, bytes.record(), bytes.payload());
  if (answer.status == ReplyStatus::kResourceExhausted && plan.cold) {
    link.push_front(r);  // its cold store is behind
    return TakeEvents();
  }
  if (answer.status != ReplyStatus::kOk) {
    error = "a copy answers " + std::string(ReplyStatusName(answer.status));
  }
  engines_[from.server - kServer]->replicas().Answered(r.to, r.group.partition, r.group.sequence,
                                                       answer.status);
}

void CheckpointRig::DeliverAll() {
  for (int i = 0; i < 3000; ++i) Deliver();
  TakeEvents();
}

// Both phases of a step, where all chunks are in one.
void CheckpointRig::ActNorms() {
  const bool clip = plan.optimizer.clip_global_norm() > 0;
  const bool trust = plan.optimizer.name() == "lamb";
  for (const NormKind kind : {NormKind::kGradient, NormKind::kTrust}) {
    if (kind == NormKind::kGradient ? !clip : !trust) continue;
    for (uint64_t step = Newest() == 0 ? 0 : Newest() - 1; step <= Newest(); ++step) {
      std::vector<std::vector<Group>> groups(engines_.size());
      std::set<uint32_t> partitions;
      for (uint32_t c = 0; c < chunks(); ++c) {
        const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
        if (!partitions.insert(p).second) continue;
        groups[p % engines_.size()].push_back(GroupOf(p, step));
        groups[p % engines_.size()].back().index = static_cast<uint32_t>(kind);
      }
      NormTotals totals = {};
      std::map<uint32_t, std::vector<double>>
          parts;  // in the order of partitions, wherever they are
      bool all = true;
      for (size_t e = 0; e < engines_.size() && all; ++e) {
        for (const Group& group : groups[e]) {
          const PullOutcome out = engines_[e]->Norms(
              {{0, 9, 0}, kFirstWorker, plan.table, {&group, 1}, 0, 0, /*may_park=*/false});
          all = all && out.kind == PullOutcome::Kind::kReady;
          if (out.kind != PullOutcome::Kind::kReady) break;
          std::vector<double>& numbers = parts[group.partition];
          numbers.resize(out.view.bytes / sizeof(double));
          std::memcpy(numbers.data(), out.view.buffer.data, out.view.bytes);
          engines_[e]->Unpin(out.view.pin);
        }
      }
      if (!all) continue;
      // By chunk, as clients do.
      std::map<uint32_t, size_t> next;
      for (uint32_t c = 0; c < chunks(); ++c) {
        const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
        for (uint32_t i = 0; i < NormNumbers(kind); ++i) totals[i] += parts[p][next[p]++];
      }
      for (size_t e = 0; e < engines_.size(); ++e) {
        if (groups[e].empty()) continue;
        engines_[e]->Totals({{0, 8, 0}, kFirstWorker, plan.table, groups[e], 0}, totals);
      }
    }
  }
}

// A chunk is written out to a worker for a while.
void CheckpointRig::ActPins() {
  if (!pins_.empty() && Pick(2) == 0) {
    std::swap(pins_[Pick(static_cast<uint32_t>(pins_.size()))], pins_.back());
    engines_[pins_.back().first]->Unpin(pins_.back().second);
    pins_.pop_back();
  } else if (pins_.size() < 4) {
    const uint32_t chunk = Pick(chunks());
    const uint32_t p = PartitionOfChunk(plan.table, chunk, plan.partitions);
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = plan.table;
    r.group = GroupOf(p, 0);
    r.group.index = chunk;
    r.dtype = static_cast<ElementType>(plan.dtype);
    r.may_park = false;
    const PullOutcome out = EngineOf(p).Pull(r);
    if (out.kind == PullOutcome::Kind::kReady)
      pins_.emplace_back(p % engines_.size(), out.view.pin);
  }
}

void CheckpointRig::Act() {
  Try(&streams_[Pick(static_cast<uint32_t>(streams_.size()))]);
  if (!plan.rows && Pick(4) == 0) ActPins();
  if (!plan.rows && sync() && Pick(4) == 0) ActNorms();
  if (plan.copies && Pick(2 + plan.seed % 3 * 6) == 0) Deliver();
  TakeEvents();
}

void CheckpointRig::UnpinAll() {
  for (const auto& [engine, pin] : pins_) engines_[engine]->Unpin(pin);
  pins_.clear();
  TakeEvents();
  // The last steps may wait for rows.
  for (int i = 0; plan.cold && i < 200; ++i) {
    for (int n = 0; plan.copies && n < 10; ++n) Deliver();
    TakeEvents();
  }
}

bool CheckpointRig::Finish() {
  for (uint32_t i = 0; i < 200000 && error.empty(); ++i) {
    if (Done()) break;
    Act();
  }
  UnpinAll();
  if (!plan.rows && sync()) {
    for (int i = 0; i < 4; ++i) ActNorms();
  }
  if (plan.copies) DeliverAll();
  return Done() && error.empty();
}

uint64_t CheckpointRig::Newest() {
  uint64_t newest = 0;
  for (uint32_t c = 0; !plan.rows && c < chunks(); ++c) {
    const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = plan.table;
    r.group = GroupOf(p, 0);
    r.group.index = c;
    r.dtype = static_cast<ElementType>(plan.dtype);
    const PullOutcome out = EngineOf(p).Pull(r);
    newest = std::max(newest, out.view.version);
    EngineOf(p).Unpin(out.view.pin);
  }
  for (uint32_t p = 0; plan.rows && p < plan.partitions; ++p) {
    Group group = GroupOf(p, 0);
    group.count = 1;
    const PullOutcome out = EngineOf(p).Scan({kFirstWorker, plan.table, group});
    newest = std::max(newest, out.view.version);
    EngineOf(p).Unpin(out.view.pin);
  }
  return newest;
}

}  // namespace verbena::shard
