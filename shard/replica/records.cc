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
  ReplicaLog::Append appended;
  appended.table = state.table->id();
  appended.partition = partition;
  appended.header.kind = kind;
  appended.header.generation = state.job->members.generation();
  return appended;
}

bool ReplicaRecords::AddMarks(const TableState& state, uint32_t slice,
                              ReplicaLog::Append* appended) {
  const std::vector<WorkerMark> marks = state.consistency->Marks(slice);
  static_assert(sizeof(WorkerMark) == 24);
  appended->header.count = static_cast<uint32_t>(marks.size());
  if (marks.empty()) return true;
  const size_t bytes = marks.size() * sizeof(WorkerMark);
  appended->data = core_.pool.TakeScratch(bytes, state.table->account());
  if (appended->data.data == nullptr) return false;
  std::memcpy(appended->data.data, marks.data(), bytes);
  appended->header.total_bytes = static_cast<uint32_t>(bytes);
  return true;
}

// Returns its sequence; 0: no memory.
uint64_t ReplicaRecords::AddChunk(uint32_t partition, const TableState& state, uint32_t index,
                                  uint64_t version, bool for_learner) {
  const DenseTable& table = *state.dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  ReplicaLog::Append appended = HeaderFor(ReplicaKind::kChunk, partition, state);
  appended.index = chunk.id;
  appended.local = index;
  appended.for_learner = for_learner;
  appended.header.total_bytes = table.ContentBytes();
  appended.header.version = version;
  appended.header.applies = chunk.applies;
  appended.data = core_.pool.TakeScratch(appended.header.total_bytes, table.account());
  if (appended.data.data == nullptr) return 0;
  table.ReadContent(index, appended.data.data);
  return core_.log.Add(std::move(appended));
}

// The same of rows.
uint64_t ReplicaRecords::AddRows(uint32_t partition, const TableState& state, uint32_t slice,
                                 absl::Span<const uint32_t> rows, bool for_learner) {
  const EmbeddingTable& table = *state.rows.table;
  const size_t content = table.content_bytes();
  ReplicaLog::Append appended = HeaderFor(ReplicaKind::kRowStates, partition, state);
  appended.header.count = static_cast<uint32_t>(rows.size());
  appended.for_learner = for_learner;
  const size_t bytes = KeyBytes(rows.size()) + rows.size() * content;
  appended.data = core_.pool.TakeScratch(bytes, table.account());
  if (appended.data.data == nullptr) return 0;
  appended.header.total_bytes = static_cast<uint32_t>(bytes);
  std::memset(appended.data.data, 0, KeyBytes(rows.size()));
  std::byte* out = appended.data.data + KeyBytes(rows.size());
  RowReader reader(table.rows(slice), rows);
  for (size_t i = 0; i < rows.size(); ++i, out += content) {
    const std::byte* const from = reader.Next();
    if (from == nullptr) {
      core_.pool.ReturnScratch(appended.data);
      return 0;
    }
    uint64_t key = 0;
    table.ReadRow(slice, rows[i], from, &key, out);
    std::memcpy(appended.data.data + i * sizeof(key), &key, sizeof(key));
  }
  return core_.log.Add(std::move(appended));
}

bool ReplicaRecords::AddChanges(const TableState& state, uint32_t slice,
                                ReplicaLog::Append* appended) {
  const TableOptimizer& optimizer = state.table->optimizer();
  const std::vector<std::byte> data = optimizer.Encode(slice);
  if (data.empty()) return true;
  appended->data = core_.pool.TakeScratch(data.size());
  if (appended->data.data == nullptr) return false;
  std::memcpy(appended->data.data, data.data(), data.size());
  appended->header.count = optimizer.Count(slice);
  appended->header.total_bytes = static_cast<uint32_t>(data.size());
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
  if (core_.log.AllApplied(partition, id)) return true;
  core_.turn.in_flight = true;
  return false;
}

}  // namespace verbena::shard
