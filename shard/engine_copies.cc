// Replicas on this shard: applies the records of their primaries, in order.
//
// A record is applied whole or not at all, and is checked before. Its sender is not trusted: a
// wrong record costs the replicas of that sender, never this shard.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <tuple>
#include <utility>

#include "shard/engine_impl.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

template <typename T>
bool AlignedFor(const std::byte* data) {
  return reinterpret_cast<uintptr_t>(data) % alignof(T) == 0;
}

// Rows could not be made. In a tiered table it may work later, when others are written out.
ReplyStatus NoMemoryFor(const EmbeddingTable& table) {
  return table.tiered() ? ReplyStatus::kResourceExhausted : ReplyStatus::kMemoryLimit;
}

}  // namespace

void Engine::Impl::CountSenders(const v1::ClusterView& view) {
  absl::flat_hash_set<std::tuple<uint64_t, uint32_t, uint32_t>> distinct;
  for (const v1::Partition& p : view.partitions()) {
    for (const auto* replicas : {&p.followers(), &p.learners()}) {
      for (const v1::Replica& r : *replicas) {
        if (r.server() == options.server) distinct.emplace(p.primary(), p.shard(), r.shard());
      }
    }
  }
  senders = distinct.size();
  for (const v1::Server& s : view.servers()) {
    if (s.incarnation() == options.server) server_shards = std::max(s.shards(), 1u);
  }
  pool.SetFor(OwnMemory());
}

bool Engine::Impl::MayLearn(const ReplicaHeader& begin) const {
  const uint64_t bytes = pool.RoomForRows();
  if (bytes == UINT64_MAX) return true;
  // The room is that of all the server's shards.
  uint64_t wanted = uint64_t{begin.learner_kib} << 10;
  for (const CopyState& copy : copies) wanted += copy.expected;
  return wanted <= bytes / server_shards;
}

CopyRoom Engine::RoomForCopies() const {
  const Impl& e = *impl_;
  const uint64_t room = e.pool.RoomForRows();
  if (room == UINT64_MAX) return {};
  return {room / std::max<uint64_t>(e.senders, 1), e.pool.limit_bytes()};
}

void Engine::Impl::ForgetCopy(uint32_t partition) {
  pool.ReturnScratch(copies[partition].parts);
  copies[partition] = {};
}

void Engine::Impl::ForgetRetired(TableState* state) {
  if (failpoints().keep_retired) return;
  for (auto& [partition, marks] : state->marks) {
    std::erase_if(marks.workers, [&](const auto& mark) { return Retired(*state, mark.first); });
  }
}

ReplyStatus Engine::Impl::CheckSender(const CopyId& from, const Copied& c) const {
  if (c.partition >= partitions.size()) {
    return partitions.empty() ? ReplyStatus::kNotReady : ReplyStatus::kOutOfRange;
  }
  const PartitionInfo& info = partitions[c.partition];
  if (c.group.epoch > info.epoch) return ReplyStatus::kNotReady;
  if (c.group.epoch < info.epoch || info.primary != from) return ReplyStatus::kWrongEpoch;
  // One view of the two is older. If it is ours: later.
  if (!info.copy || c.header.since > info.since) return ReplyStatus::kNotReady;
  return c.header.since < info.since ? ReplyStatus::kWrongEpoch : ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::Assemble(CopyState* copy, const ReplicaHeader& header,
                                   absl::Span<const std::byte>* data, bool* whole) {
  *whole = true;
  if (header.part_offset == 0 && data->size() == header.total_bytes) return ReplyStatus::kOk;
  if (header.part_offset == 0) {
    pool.ReturnScratch(copy->parts);
    copy->parts = pool.TakeScratch(header.total_bytes);
    copy->parts_bytes = 0;
    if (copy->parts.data == nullptr) return ReplyStatus::kResourceExhausted;
  }
  if (header.part_offset != copy->parts_bytes || copy->parts.bytes < header.total_bytes) {
    return ReplyStatus::kSequenceGap;
  }
  std::memcpy(copy->parts.data + header.part_offset, data->data(), data->size());
  copy->parts_bytes += static_cast<uint32_t>(data->size());
  *whole = copy->parts_bytes == header.total_bytes;
  *data = {copy->parts.data, copy->parts_bytes};
  return ReplyStatus::kOk;
}

// Makes the partition new, whatever its content was.
ReplyStatus Engine::Impl::Begin(uint32_t partition) {
  copies[partition].announced.clear();
  for (auto& [id, state] : tables) {
    if (state.table == nullptr) continue;
    const ReplyStatus status = MakeFresh(partition, &state);
    if (status != ReplyStatus::kOk) return status;
  }
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::MakeFresh(uint32_t partition, TableState* state) {
  const uint32_t slice = state->table->slice_of(partition);
  if (slice != PartitionedTable::kNone) {
    LeaveLocalPartition(state, slice, ReplyStatus::kWrongEpoch);
    state->table->Forget(slice);
  }
  state->marks.erase(partition);
  state->unserved = state->table->Acquire(state->placement);
  state->starved = !state->unserved.ok();
  state->consistency->Resize();
  return state->starved || state->table->LacksCopies() ? ReplyStatus::kMemoryLimit
                                                       : ReplyStatus::kOk;
}

Answer Engine::Replicate(const CopyId& from, const Record& record,
                         absl::Span<const std::byte> payload) {
  Impl& e = *impl_;
  const Group& group = record.groups[0];
  Impl::Copied c;
  c.partition = group.partition;
  c.group = group;
  Answer answer;
  if (!CopyReplicaHeader(record, payload, &c.header, &c.data).ok()) {
    answer.status = ReplyStatus::kMalformed;
    return answer;
  }
  answer.status = e.CheckSender(from, c);
  if (answer.status != ReplyStatus::kOk) return answer;
  CopyState& copy = e.copies[group.partition];
  answer.version = copy.sequence;
  if (failpoints().refuse_replicas) {
    answer.status = ReplyStatus::kResourceExhausted;
    return answer;
  }
  const bool begin = c.header.kind == ReplicaKind::kBegin;
  if (!begin && !copy.begun) answer.status = ReplyStatus::kSequenceGap;
  if (copy.begun && group.sequence <= copy.sequence) answer.status = ReplyStatus::kDuplicate;
  if (!begin && group.sequence > copy.sequence + 1) answer.status = ReplyStatus::kSequenceGap;
  if (answer.status != ReplyStatus::kOk) return answer;
  bool whole = false;
  answer.status = e.Assemble(&copy, c.header, &c.data, &whole);
  if (answer.status != ReplyStatus::kOk || !whole) return answer;
  const bool learner = (c.header.flags & kReplicaLearner) != 0;
  e.pool.SetFor(learner || copy.learning ? MemoryFor::kLearner : MemoryFor::kFollower);
  if (begin && learner && !e.MayLearn(c.header)) {
    answer.status = ReplyStatus::kMemoryLimit;
  } else if (begin) {
    answer.status = e.Begin(group.partition);
    if (answer.status == ReplyStatus::kOk) copy.begun = true;
    copy.learning = learner;
    copy.expected = learner ? uint64_t{c.header.learner_kib} << 10 : 0;
  } else if (c.header.kind == ReplicaKind::kComplete) {
    copy.learning = false;
    copy.expected = 0;
  } else {
    answer.status = e.FindCopied(record.header.table, &c);
    if (answer.status == ReplyStatus::kOk && c.state != nullptr) answer.status = e.Copy(c);
  }
  e.pool.SetFor(e.OwnMemory());
  e.pool.ReturnScratch(std::exchange(copy.parts, {}));
  copy.parts_bytes = 0;
  if (answer.status == ReplyStatus::kMemoryLimit) {
    ++e.sink.counters.memory_refusals;
    e.pool.Trim();  // idle buffers may be in the way of the next attempt
  }
  if (answer.status == ReplyStatus::kOk) answer.version = copy.sequence = group.sequence;
  return answer;
}

// kOk without a state: the table was dropped, or is new and not in the view here yet.
ReplyStatus Engine::Impl::FindCopied(uint32_t table, Copied* c) {
  const auto it = tables.find(table);
  absl::flat_hash_set<uint32_t>& announced = copies[c->partition].announced;
  const bool fresh = c->header.kind == ReplicaKind::kFresh;
  if (it == tables.end()) {
    if (table <= highest_table) return ReplyStatus::kOk;
    if (!fresh) return ReplyStatus::kNotReady;
    // The view that will name it makes it new.
    announced.insert(table);
    return ReplyStatus::kOk;
  }
  // Its primary serves it, so a server that cannot is no replica.
  if (it->second.lacks_cold_store || it->second.table == nullptr) return ReplyStatus::kNotReady;
  c->slice = it->second.table->slice_of(c->partition);
  // Lost in the view here, or there is no memory.
  if (c->slice == PartitionedTable::kNone || !it->second.table->ready(c->slice)) {
    const bool no_memory = it->second.starved || it->second.table->LacksCopies();
    return no_memory ? ReplyStatus::kMemoryLimit : ReplyStatus::kNotReady;
  }
  if (fresh ||
      (c->header.kind == ReplicaKind::kBeginPartition && (c->header.flags & kReplicaToCome) != 0)) {
    // One that was not announced before is as the view made it: new.
    if (!announced.insert(table).second) {
      const ReplyStatus status = MakeFresh(c->partition, &it->second);
      if (status != ReplyStatus::kOk) return status;
      c->slice = it->second.table->slice_of(c->partition);
    }
  } else if (!announced.contains(table)) {
    // An end of a step that waited on the primary: kBeginPartition will have it.
    return c->header.kind == ReplicaKind::kSettle ? ReplyStatus::kOk : ReplyStatus::kDataLoss;
  }
  c->state = &it->second;
  c->marks = &it->second.marks[c->partition];
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::Copy(const Copied& c) {
  ReplyStatus status = ReplyStatus::kOk;
  switch (c.header.kind) {
    case ReplicaKind::kDense:
      status = CopyDense(c);
      break;
    case ReplicaKind::kRows:
      status = CopyRows(c);
      break;
    case ReplicaKind::kBeginPartition:
      status = CopyLocalPartition(c);
      break;
    case ReplicaKind::kChunk:
      status = CopyChunk(c);
      break;
    case ReplicaKind::kRowStates:
      status = CopyRowStates(c);
      break;
    case ReplicaKind::kMakeRows:
      status = MakeRows(c);
      break;
    case ReplicaKind::kOptimizer:
      if (!c.state->table->optimizer().AddEncoded(c.slice, c.header.count, c.data,
                                                  c.header.version)) {
        status = ReplyStatus::kMalformed;
      }
      break;
    case ReplicaKind::kReset:
      c.state->table->SetVersions(c.slice, 0);
      c.marks->workers.clear();
      break;
    case ReplicaKind::kProveRows:
      status = CheckRows(c);
      break;
    case ReplicaKind::kProveChunk:
      status = CheckChunk(c);
      break;
    case ReplicaKind::kProvePartition:
      status = CheckLocalPartition(c);
      break;
    case ReplicaKind::kFresh:
    case ReplicaKind::kSettle:
    case ReplicaKind::kBegin:
    case ReplicaKind::kComplete:
      break;
  }
  if (status != ReplyStatus::kOk) return status;
  c.marks->generation = c.header.generation;
  if (c.header.worker != 0) {
    WorkerMark& mark = c.marks->workers[c.header.worker];
    mark.worker = c.header.worker;
    mark.sequence = std::max(mark.sequence, c.header.worker_sequence);
    mark.clock = std::max(mark.clock, c.header.worker_clock);
  }
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::CopyDense(const Copied& c) {
  DenseTable* table = c.state->dense.table.get();
  if (table == nullptr || c.group.index >= table->layout().chunks() ||
      table->partition_of(c.group.index) != c.partition) {
    return ReplyStatus::kOutOfRange;
  }
  const uint32_t index = table->local_chunk(c.group.index);
  const DenseTable::Chunk& chunk = table->chunk(index);
  const uint32_t count = c.header.count;
  if ((count != 0 && count != chunk.elements) || c.data.size() != count * sizeof(float) ||
      !AlignedFor<float>(c.data.data()) || !(c.header.divisor > 0)) {
    return ReplyStatus::kMalformed;
  }
  // Another apply was made here: this is no replica any more.
  if (c.header.applies != chunk.applies + 1) return ReplyStatus::kDataLoss;
  const Source sum = reinterpret_cast<const float*>(c.data.data());
  const auto sources = absl::MakeConstSpan(&sum, count > 0 ? 1 : 0);
  const StepScale scale = {c.header.gradient_scale, c.header.trust};
  if (!table->Apply(index, sources, c.header.divisor, scale, /*force=*/true)) {
    return ReplyStatus::kResourceExhausted;
  }
  table->SetVersion(index, c.header.version, c.header.applies);
  ++sink.counters.applies;
  return ReplyStatus::kOk;
}

bool Engine::Impl::TakeKeys(const Copied& c, size_t each, const std::byte** rest) {
  const uint64_t count = c.header.count;
  const uint64_t bytes = count == 0 ? 0 : KeyBytes(count) + count * each;
  if (c.data.size() != bytes || !AlignedFor<float>(c.data.data())) return false;
  copied_keys.resize(count);
  if (count > 0) std::memcpy(copied_keys.data(), c.data.data(), count * sizeof(uint64_t));
  *rest = c.data.data() + KeyBytes(count);
  const uint32_t table = c.state->table->id();
  const auto all = static_cast<uint32_t>(partitions.size());
  return std::all_of(copied_keys.begin(), copied_keys.end(),
                     [&](uint64_t key) { return PartitionOfKey(table, key, all) == c.partition; });
}

ReplyStatus Engine::Impl::CopyRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, table->row_bytes(), &rest) || !(c.header.divisor > 0)) {
    return ReplyStatus::kMalformed;
  }
  if (c.header.applies != table->slice(c.slice).applies + 1) return ReplyStatus::kDataLoss;
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  copied_rows.resize(copied_keys.size());
  if ((c.header.flags & kReplicaToCome) != 0) {
    table->Find(c.slice, copied_keys, copied_rows.data());
  } else if (!table->FindOrCreate(c.slice, copied_keys, copied_rows.data())) {
    return NoMemoryFor(*table);
  }
  std::vector<uint32_t> named;
  if (table->tiered()) {
    std::copy_if(copied_rows.begin(), copied_rows.end(), std::back_inserter(named),
                 [](uint32_t row) { return row != RowStore::kNone; });
    if (!table->PrepareNow(c.slice, named).ok()) return ReplyStatus::kResourceExhausted;
  }
  table->BeginApply(c.slice, {c.header.stamp, c.header.keep_from, c.header.keep_hash});
  for (size_t i = 0; i < copied_rows.size(); ++i) {
    if (copied_rows[i] == RowStore::kNone) continue;  // comes later, as it is then
    const Source sum = reinterpret_cast<const float*>(rest + i * table->row_bytes());
    table->ApplyRow(copied_rows[i], {&sum, 1}, c.header.divisor);
  }
  table->EndApply();
  table->SetVersion(c.slice, c.header.version, c.header.applies);
  ++sink.counters.applies;
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::CopyLocalPartition(const Copied& c) {
  if (c.data.size() != c.header.count * sizeof(WorkerMark)) return ReplyStatus::kMalformed;
  c.marks->workers.clear();
  for (uint32_t i = 0; i < c.header.count; ++i) {
    WorkerMark mark;
    std::memcpy(&mark, c.data.data() + i * sizeof(mark), sizeof(mark));
    c.marks->workers[mark.worker] = mark;
  }
  if (EmbeddingTable* table = c.state->rows.table.get()) {
    table->SetVersion(c.slice, c.header.version, c.header.applies);
  }
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::CopyChunk(const Copied& c) {
  DenseTable* table = c.state->dense.table.get();
  if (table == nullptr || c.group.index >= table->layout().chunks() ||
      table->partition_of(c.group.index) != c.partition) {
    return ReplyStatus::kOutOfRange;
  }
  if (c.data.size() != table->ContentBytes()) return ReplyStatus::kMalformed;
  const uint32_t index = table->local_chunk(c.group.index);
  table->WriteContent(index, c.data.data());
  table->SetVersion(index, c.header.version, c.header.applies);
  return ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::MakeRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, 0, &rest)) return ReplyStatus::kMalformed;
  copied_rows.resize(copied_keys.size());
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  const bool made = table->FindOrCreate(c.slice, copied_keys, copied_rows.data());
  return made ? ReplyStatus::kOk : NoMemoryFor(*table);
}

ReplyStatus Engine::Impl::CopyRowStates(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, table->content_bytes(), &rest)) return ReplyStatus::kMalformed;
  copied_rows.resize(copied_keys.size());
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  const uint32_t before = table->rows(c.slice).size();
  if (!table->FindOrCreate(c.slice, copied_keys, copied_rows.data())) return NoMemoryFor(*table);
  const uint64_t made = table->rows(c.slice).BytesOf(table->rows(c.slice).size() - before);
  uint64_t& expected = copies[c.partition].expected;
  expected -= std::min(expected, made);
  for (size_t i = 0; i < copied_rows.size(); ++i) {
    if (!table->WriteRow(c.slice, copied_rows[i], rest + i * table->content_bytes())) {
      return ReplyStatus::kResourceExhausted;  // all of it comes again
    }
  }
  return ReplyStatus::kOk;
}

}  // namespace verbena::shard
