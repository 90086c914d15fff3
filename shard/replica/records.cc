#include "shard/replica/records.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shard/engine_core.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {
namespace {

// The bytes that a restore may have in a partition's log: enough to keep its link busy.
constexpr uint64_t kRestoreBytes = 4 << 20;

}  // namespace

ReplicaLog::Append ReplicaRecords::HeaderFor(ReplicaKind kind, uint32_t partition,
                                             const TableState& state) const {
  ReplicaLog::Append told;
  told.table = state.table->id();
  told.partition = partition;
  told.header.kind = kind;
  told.header.generation = state.job->members.generation();
  return told;
}

bool ReplicaRecords::AddMarks(const TableState& state, uint32_t slice, ReplicaLog::Append* told) {
  const std::vector<WorkerMark> marks = state.consistency->Marks(slice);
  static_assert(sizeof(WorkerMark) == 24);
  told->header.count = static_cast<uint32_t>(marks.size());
  if (marks.empty()) return true;
  const size_t bytes = marks.size() * sizeof(WorkerMark);
  told->data = core_.pool.TakeScratch(bytes, state.table->account());
  if (told->data.data == nullptr) return false;
  std::memcpy(told->data.data, marks.data(), bytes);
  told->header.total_bytes = static_cast<uint32_t>(bytes);
  return true;
}

// Returns its sequence; 0: no memory.
uint64_t ReplicaRecords::AddChunk(uint32_t partition, const TableState& state, uint32_t index,
                                  uint64_t version) {
  const DenseTable& table = *state.dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  ReplicaLog::Append told = HeaderFor(ReplicaKind::kChunk, partition, state);
  told.index = chunk.id;
  told.header.total_bytes = table.ContentBytes();
  told.header.version = version;
  told.header.applies = chunk.applies;
  told.data = core_.pool.TakeScratch(told.header.total_bytes, table.account());
  if (told.data.data == nullptr) return 0;
  table.ReadContent(index, told.data.data);
  return core_.log.Add(std::move(told));
}

// The same of rows.
uint64_t ReplicaRecords::AddRows(uint32_t partition, const TableState& state, uint32_t slice,
                                 absl::Span<const uint32_t> rows) {
  const EmbeddingTable& table = *state.rows.table;
  const size_t content = table.content_bytes();
  ReplicaLog::Append told = HeaderFor(ReplicaKind::kRowStates, partition, state);
  told.header.count = static_cast<uint32_t>(rows.size());
  const size_t bytes = KeyBytes(rows.size()) + rows.size() * content;
  told.data = core_.pool.TakeScratch(bytes, table.account());
  if (told.data.data == nullptr) return 0;
  told.header.total_bytes = static_cast<uint32_t>(bytes);
  std::memset(told.data.data, 0, KeyBytes(rows.size()));
  std::byte* out = told.data.data + KeyBytes(rows.size());
  RowReader reader(table.rows(slice), rows);
  for (size_t i = 0; i < rows.size(); ++i, out += content) {
    const std::byte* const from = reader.Next();
    if (from == nullptr) {
      core_.pool.ReturnScratch(told.data);
      return 0;
    }
    uint64_t key = 0;
    table.ReadRow(slice, rows[i], from, &key, out);
    std::memcpy(told.data.data + i * sizeof(key), &key, sizeof(key));
  }
  return core_.log.Add(std::move(told));
}

bool ReplicaRecords::AddChanges(const TableState& state, uint32_t slice, ReplicaLog::Append* told) {
  const TableOptimizer& optimizer = state.table->optimizer();
  const std::vector<std::byte> data = optimizer.Encode(slice);
  if (data.empty()) return true;
  told->data = core_.pool.TakeScratch(data.size());
  if (told->data.data == nullptr) return false;
  std::memcpy(told->data.data, data.data(), data.size());
  told->header.count = optimizer.Count(slice);
  told->header.total_bytes = static_cast<uint32_t>(data.size());
  return true;
}

size_t ReplicaRecords::RowsOfRecord(const EmbeddingTable& table) const {
  return std::max<size_t>(
      core_.log.limits().rows_bytes / (table.content_bytes() + sizeof(uint64_t)), 1);
}

bool ReplicaRecords::BehindOnCopies(uint32_t partition) const {
  if (core_.log.mode(partition) == ReplicaLog::Mode::kAlone) return false;
  return core_.log.HasNotes(partition) || core_.log.bytes() >= core_.log.limits().shard_bytes ||
         core_.log.bytes(partition) >= std::min(core_.log.limits().partition_bytes, kRestoreBytes);
}

bool ReplicaRecords::AtLastRecord(uint32_t partition, const TableState& state, uint32_t slice) {
  const uint32_t id = state.table->id();
  if (!core_.log.AllApplied(partition, id)) state.consistency->ApplyNow(slice);
  return core_.log.AllApplied(partition, id);
}

}  // namespace verbena::shard
