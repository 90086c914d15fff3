// Comparisons of a replica with its primary: the hashes that the primary adds to its records, and
// the check by the replica.
//
// The primary goes through a partition, some contents with each record, and adds a digest of each
// as of that record. The replica compares when it applies the record, so both sides compare the
// same state, and pushes continue meanwhile. Digests of rows are sums over rows and include their
// keys, because rows may be in another order. The number of changed rows reveals rows that only the
// replica has; a table counts them.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "shard/engine_impl.h"
#include "shard/failpoints.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {
namespace {

// Keys in one record: their rows are read at once.
constexpr size_t kProofRows = 1024;
// Turns for which the next partition waits while an audited one has applies in progress, or a
// follower that has not answered the last turn.
constexpr uint32_t kMostWaits = 64;

}  // namespace

// ---- as the primary -----------------------------------------------------------------------------

Engine::Impl::Proved Engine::Impl::Prove(uint32_t partition, ReplicaLog::Proof* at,
                                         uint64_t* record) {
  if (log.HasNotes(partition)) return Proved::kWait;
  const auto it = tables.lower_bound(at->table);
  if (it == tables.end()) return Proved::kAll;
  if (it->first != at->table) *at = {it->first};
  const TableState& state = it->second;
  const uint32_t slice =
      state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
  // While a table is restored, its contents are ahead of the records for its replicas.
  if (slice == PartitionedTable::kNone || !state.table->ready(slice) || state.restore != nullptr) {
    *at = {it->first + 1};
    return Proved::kSome;
  }
  if (proof_bytes == 0) return Proved::kWait;
  uint64_t bytes = 0;
  if (const DenseTable* dense = state.dense.table.get()) {
    const std::vector<uint32_t>& chunks = dense->slice(slice).chunks;
    const auto chunk = std::lower_bound(chunks.begin(), chunks.end(), at->chunk);
    if (chunk != chunks.end()) {
      // Others may wait for pulls that read them: only this one is compared.
      if (!log.AllApplied(partition, it->first, dense->chunk(*chunk).id)) return Proved::kWait;
      *record = ProveChunk(partition, state, *chunk);
      at->chunk = *chunk + 1;
      bytes = dense->ContentBytes();
    }
  } else {
    if (!AtLastRecord(partition, state, slice)) return Proved::kWait;
    const EmbeddingTable& rows = *state.rows.table;
    const size_t most = std::min(RowsOfRecord(rows), kProofRows);
    copied_rows.clear();
    uint32_t row = at->row;
    const uint32_t end = EndOfLook(row, rows.rows_in(slice));
    for (; row < end && copied_rows.size() < most; ++row) {
      if (!rows.rows(slice).is_free(row) && rows.rows(slice).applies(row) > 0) {
        copied_rows.push_back(row);
      }
    }
    if (!copied_rows.empty()) {
      *record = ProveRows(partition, state, slice, copied_rows);
      if (*record == 0) return Proved::kWait;
      bytes = copied_rows.size() * rows.content_bytes();
    }
    rows_looked_at += row - at->row;
    at->row = row;
    if (copied_rows.empty() && row < rows.rows_in(slice)) return Proved::kWait;
  }
  if (*record == 0) {
    *record = ProveLocalPartition(partition, state, slice);
    if (*record == 0) return Proved::kWait;
    *at = {it->first + 1};
  }
  proof_bytes -= std::min(proof_bytes, bytes);
  return Proved::kSome;
}

uint64_t Engine::Impl::ProveChunk(uint32_t partition, const TableState& state, uint32_t index) {
  const DenseTable& table = *state.dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  ReplicaLog::Append proof = HeaderFor(ReplicaKind::kProveChunk, partition, state);
  proof.index = chunk.id;
  proof.header.version = chunk.version;
  proof.header.applies = chunk.applies;
  proof.header.digest = table.Digest(index);
  return log.Add(std::move(proof));
}

// Returns its sequence; 0: no memory, or a row that cannot be read.
uint64_t Engine::Impl::ProveRows(uint32_t partition, const TableState& state, uint32_t slice,
                                 absl::Span<const uint32_t> rows) {
  const EmbeddingTable& table = *state.rows.table;
  ReplicaLog::Append proof = HeaderFor(ReplicaKind::kProveRows, partition, state);
  const size_t bytes = KeyBytes(rows.size());
  proof.data = pool.TakeScratch(bytes, table.account());
  if (proof.data.data == nullptr) return 0;
  std::memset(proof.data.data, 0, bytes);
  RowReader reader(table.rows(slice), rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) {
      pool.ReturnScratch(proof.data);
      return 0;
    }
    const uint64_t key = table.rows(slice).key(rows[i]);
    std::memcpy(proof.data.data + i * sizeof(key), &key, sizeof(key));
    proof.header.digest += table.Digest(slice, rows[i], content);
  }
  proof.header.count = static_cast<uint32_t>(rows.size());
  proof.header.total_bytes = static_cast<uint32_t>(bytes);
  return log.Add(std::move(proof));
}

uint64_t Engine::Impl::ProveLocalPartition(uint32_t partition, const TableState& state,
                                           uint32_t slice) {
  ReplicaLog::Append proof = HeaderFor(ReplicaKind::kProvePartition, partition, state);
  if (!AddMarks(state, slice, &proof)) return 0;
  proof.header.digest = state.table->optimizer().Digest(slice);
  if (const EmbeddingTable* table = state.rows.table.get()) {
    proof.header.version = table->slice(slice).version;
    proof.header.applies = table->slice(slice).applies;
    proof.header.rows = table->rows(slice).applied_rows();
  } else {
    proof.header.rows = state.dense.table->slice(slice).chunks.size();
  }
  return log.Add(std::move(proof));
}

// By then both sides have applied everything that was added since the first comparison. No record
// can come in between, because this thread takes workers' records. So both sides compare the
// contents that the follower begins with.
bool Engine::Impl::ProveAgain(uint32_t partition) {
  if (failpoints().skip_proof || failpoints().prove_once) return true;
  // More than a turn allows is not waited for.
  const uint64_t bytes = BytesOf(partition);
  if (bytes <= kProofBytesOfTurn && bytes > proof_again_bytes) return false;
  std::vector<std::pair<const TableState*, uint32_t>> slices;
  for (const auto& [id, state] : tables) {
    const uint32_t slice =
        state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice) ||
        state.restore != nullptr) {
      continue;
    }
    if (!AtLastRecord(partition, state, slice)) return false;
    slices.emplace_back(&state, slice);
  }
  for (const auto& [state, slice] : slices) {
    if (log.HasRoomToCatchUp(partition)) ProveLocalPartition(partition, *state, slice);
  }
  ReplicaLog::Proof at;
  Proved proved = Proved::kSome;
  std::swap(proof_bytes, proof_again_bytes);
  while (proved == Proved::kSome && log.HasRoomToCatchUp(partition)) {
    uint64_t record = 0;
    proved = Prove(partition, &at, &record);
  }
  std::swap(proof_bytes, proof_again_bytes);
  return true;
}

void Engine::Impl::AuditPartition() {
  const uint32_t p = audit.partition;
  // A follower that is slower than the audit gets no more of it before it has answered: records of
  // pushes would wait behind the audit. Record numbers restart when this shard has become primary
  // again.
  const bool answered = audited[p] > log.last(p) || log.acknowledged(p) >= audited[p];
  Proved proved = answered || failpoints().hurry_audit ? Proved::kSome : Proved::kWait;
  while (proved == Proved::kSome && !BehindOnCopies(p)) {
    uint64_t record = 0;
    proved = Prove(p, &audit.at, &record);
    if (record != 0) audited[p] = record;
  }
  const bool busy = proved != Proved::kAll && proof_bytes > 0;
  audit.waits = busy ? audit.waits + 1 : 0;
  if (proved != Proved::kAll && audit.waits < kMostWaits) return;
  audit = {p + 1, 0, {}};
}

bool Engine::AuditFollowers(uint64_t bytes) {
  Impl& e = *impl_;
  e.proof_bytes = bytes;
  e.rows_looked_at = 0;
  for (size_t i = 0; i < e.partitions.size(); ++i) {
    if (e.audit.partition >= e.partitions.size()) e.audit = {};
    const uint32_t p = e.audit.partition;
    if (e.log.leads(p) && e.log.mode(p) == ReplicaLog::Mode::kRequired) {
      e.AuditPartition();
      return true;
    }
    e.audit = {p + 1, 0, {}};
  }
  return false;
}

// ---- as a replica ------------------------------------------------------------------------------

ReplyStatus Engine::Impl::CheckRows(const Copied& c) {
  EmbeddingTable* table = c.state->rows.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;
  const std::byte* rest = nullptr;
  if (!TakeKeys(c, 0, &rest)) return ReplyStatus::kMalformed;
  const RowStore& rows = table->rows(c.slice);
  copied_rows.resize(copied_keys.size());
  table->Find(c.slice, copied_keys, copied_rows.data());
  const auto missing = [&](uint32_t row) {
    return row == RowStore::kNone || rows.applies(row) == 0;
  };
  if (std::any_of(copied_rows.begin(), copied_rows.end(), missing)) return ReplyStatus::kDataLoss;
  uint64_t digest = 0;
  RowReader reader(rows, copied_rows);
  for (const uint32_t row : copied_rows) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) return ReplyStatus::kResourceExhausted;
    digest += table->Digest(c.slice, row, content);
  }
  return digest == c.header.digest ? ReplyStatus::kOk : ReplyStatus::kDataLoss;
}

ReplyStatus Engine::Impl::CheckChunk(const Copied& c) {
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

ReplyStatus Engine::Impl::CheckLocalPartition(const Copied& c) {
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
    if (Retired(*c.state, mark.worker)) continue;
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
