#include "shard/replica/copy_records.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "shard/engine_core.h"
#include "shard/failpoints.h"
#include "shard/table/row_reader.h"

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

ReplyStatus CopyRecords::Apply(const Copied& c) {
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
    case ReplicaKind::kNothing:
      break;
  }
  if (status != ReplyStatus::kOk) return status;
  c.marks->generation = c.header.generation;
  // A change without a sequence is known by the table's optimizer, and is no progress.
  const bool progress = c.header.kind != ReplicaKind::kOptimizer || c.header.worker_sequence != 0;
  if (c.header.worker != 0 && progress) {
    WorkerMark& mark = c.marks->workers[c.header.worker];
    mark.worker = c.header.worker;
    mark.sequence = std::max(mark.sequence, c.header.worker_sequence);
    mark.clock = std::max(mark.clock, c.header.worker_clock);
  }
  return ReplyStatus::kOk;
}

ReplyStatus CopyRecords::CopyDense(const Copied& c) {
  DenseTable* table = c.state->dense.table.get();
  if (table == nullptr || c.group.index >= table->layout().chunks() ||
      table->partition_of(c.group.index) != c.partition) {
    return ReplyStatus::kOutOfRange;
  }
  const uint32_t index = table->local_chunk(c.group.index);
  const DenseTable::Chunk& chunk = table->chunk(index);
  const uint32_t count = c.header.count;
  if ((count != 0 && count != chunk.elements) || c.data.size() != count * sizeof(float) ||
      !AlignedFor<float>(c.data.data()) || !(c.header.divisor > 0) ||
      (c.header.assigned != 0 && c.header.assigned != count)) {
    return ReplyStatus::kMalformed;
  }
  if (c.header.array > table->StateArrays()) return ReplyStatus::kMalformed;
  Source sum = reinterpret_cast<const float*>(c.data.data());
  sum.assigns = c.header.assigned > 0;
  sum.array = static_cast<uint8_t>(c.header.array);
  sum.applies = c.header.applies;
  auto sources = absl::MakeConstSpan(&sum, count > 0 ? 1 : 0);
  // Another apply was made here: this is no replica any more.
  if (c.header.applies != AppliesAfter(chunk.applies, sources)) return ReplyStatus::kDataLoss;
  if (VERBENA_FAILPOINT(shard, replicate_as_gradients)) sum.assigns = false;
  if (VERBENA_FAILPOINT(shard, replicate_no_state) && sum.array != 0) sources = {};
  const StepScale scale = {c.header.gradient_scale, c.header.trust};
  if (!table->Apply(index, sources, c.header.divisor, scale, /*force=*/true)) {
    return ReplyStatus::kResourceExhausted;
  }
  table->SetVersion(index, c.header.version, c.header.applies);
  ++core_.sink.counters.applies;
  return ReplyStatus::kOk;
}

bool CopyRecords::TakeKeys(const Copied& c, size_t each, const std::byte** rest) {
  const uint64_t count = c.header.count;
  const uint64_t bytes = count == 0 ? 0 : KeyBytes(count) + count * each;
  if (c.data.size() != bytes || !AlignedFor<float>(c.data.data())) return false;
  keys_.resize(count);
  if (count > 0) std::memcpy(keys_.data(), c.data.data(), count * sizeof(uint64_t));
  *rest = c.data.data() + KeyBytes(count);
  const uint32_t table = c.state->table->id();
  const auto all = static_cast<uint32_t>(core_.partitions.size());
  return std::all_of(keys_.begin(), keys_.end(),
                     [&](uint64_t key) { return PartitionOfKey(table, key, all) == c.partition; });
}

ReplyStatus CopyRecords::CopyRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, table->row_bytes(), &rest) || !(c.header.divisor > 0)) {
    return ReplyStatus::kMalformed;
  }
  if (c.header.applies != table->slice(c.slice).applies + 1) return ReplyStatus::kDataLoss;
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  rows_.resize(keys_.size());
  if ((c.header.flags & kReplicaToCome) != 0) {
    table->Find(c.slice, keys_, rows_.data());
  } else if (!table->FindOrCreate(c.slice, keys_, rows_.data())) {
    return NoMemoryFor(*table);
  }
  std::vector<uint32_t> named;
  if (table->tiered()) {
    std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(named),
                 [](uint32_t row) { return row != RowStore::kNone; });
    if (!table->PrepareNow(c.slice, named).ok()) return ReplyStatus::kResourceExhausted;
  }
  table->BeginApply(c.slice, {c.header.stamp, c.header.keep_from, c.header.keep_hash});
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i] == RowStore::kNone) continue;  // comes later, as it is then
    Source sum = reinterpret_cast<const float*>(rest + i * table->row_bytes());
    sum.assigns =
        i >= rows_.size() - c.header.assigned && !VERBENA_FAILPOINT(shard, replicate_as_gradients);
    table->ApplyRow(rows_[i], {&sum, 1}, c.header.divisor);
  }
  table->EndApply();
  table->SetVersion(c.slice, c.header.version, c.header.applies);
  ++core_.sink.counters.applies;
  return ReplyStatus::kOk;
}

ReplyStatus CopyRecords::CopyLocalPartition(const Copied& c) {
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

ReplyStatus CopyRecords::CopyChunk(const Copied& c) {
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

ReplyStatus CopyRecords::MakeRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, 0, &rest)) return ReplyStatus::kMalformed;
  rows_.resize(keys_.size());
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  const bool made = table->FindOrCreate(c.slice, keys_, rows_.data());
  return made ? ReplyStatus::kOk : NoMemoryFor(*table);
}

ReplyStatus CopyRecords::CopyRowStates(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, table->content_bytes(), &rest)) return ReplyStatus::kMalformed;
  rows_.resize(keys_.size());
  if (table->behind()) return ReplyStatus::kResourceExhausted;
  const uint32_t before = table->rows(c.slice).size();
  if (!table->FindOrCreate(c.slice, keys_, rows_.data())) return NoMemoryFor(*table);
  const uint64_t made = table->rows(c.slice).BytesOf(table->rows(c.slice).size() - before);
  core_.copies.Came(c.partition, made);
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!table->WriteRow(c.slice, rows_[i], rest + i * table->content_bytes())) {
      return ReplyStatus::kResourceExhausted;  // all of it comes again
    }
  }
  return ReplyStatus::kOk;
}

ReplyStatus CopyRecords::CheckRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, 0, &rest)) return ReplyStatus::kMalformed;
  const RowStore& rows = table->rows(c.slice);
  rows_.resize(keys_.size());
  table->Find(c.slice, keys_, rows_.data());
  const auto missing = [&](uint32_t row) {
    return row == RowStore::kNone || rows.applies(row) == 0;
  };
  if (std::any_of(rows_.begin(), rows_.end(), missing)) return ReplyStatus::kDataLoss;
  uint64_t digest = 0;
  RowReader reader(rows, rows_);
  for (const uint32_t row : rows_) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) return ReplyStatus::kResourceExhausted;
    digest += table->Digest(c.slice, row, content);
  }
  return digest == c.header.digest ? ReplyStatus::kOk : ReplyStatus::kDataLoss;
}

ReplyStatus CopyRecords::CheckChunk(const Copied& c) {
  const DenseTable* table = c.state->dense.table.get();
  if (table == nullptr || c.group.index >= table->layout().chunks() ||
      table->partition_of(c.group.index) != c.partition) {
    return ReplyStatus::kOutOfRange;
  }
  const uint32_t index = table->local_chunk(c.group.index);
  const DenseTable::Chunk& chunk = table->chunk(index);
  const bool equal = chunk.version == c.header.version && chunk.applies == c.header.applies &&
                     table->Digest(index) == c.header.digest;
  return equal ? ReplyStatus::kOk : ReplyStatus::kDataLoss;
}

ReplyStatus CopyRecords::CheckLocalPartition(const Copied& c) {
  if (c.data.size() != c.header.count * sizeof(WorkerMark)) return ReplyStatus::kMalformed;
  if (c.state->table->optimizer().Digest(c.slice) != c.header.digest) return ReplyStatus::kDataLoss;
  if (const EmbeddingTable* table = c.state->rows.table.get()) {
    const EmbeddingTable::LocalPartition& slice = table->slice(c.slice);
    if (slice.version != c.header.version || slice.applies != c.header.applies ||
        table->rows(c.slice).applied_rows() != c.header.rows) {
      return ReplyStatus::kDataLoss;
    }
  } else if (c.state->dense.table->slice(c.slice).chunks.size() != c.header.rows) {
    return ReplyStatus::kDataLoss;
  }
  for (uint32_t i = 0; i < c.header.count; ++i) {
    WorkerMark mark;
    std::memcpy(&mark, c.data.data() + i * sizeof(mark), sizeof(mark));
    // The primary's view may be older than the one here, which has forgotten that worker.
    if (core_.jobs.Retired(*c.state->job, mark.worker)) continue;
    const auto it = c.marks->workers.find(mark.worker);
    const WorkerMark known = it == c.marks->workers.end() ? WorkerMark{} : it->second;
    // Only tables with clocks know those of workers.
    if (known.sequence != mark.sequence || (mark.clock != 0 && known.clock != mark.clock)) {
      return ReplyStatus::kDataLoss;
    }
  }
  return ReplyStatus::kOk;
}

}  // namespace verbena::shard
