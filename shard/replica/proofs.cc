#include "shard/replica/proofs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/engine_core.h"
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

Proofs::Proved Proofs::Prove(uint32_t partition, CopySet::Proof* at, uint64_t* record) {
  if (core_.log.HasNotes(partition)) return Proved::kWait;
  const auto it = core_.tables.lower_bound(at->table);
  if (it == core_.tables.end()) return Proved::kAll;
  if (it->first != at->table) *at = {it->first};
  const TableState& state = it->second;
  const uint32_t slice =
      state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
  // While a table is restored, its contents are ahead of the records for its replicas.
  if (slice == PartitionedTable::kNone || !state.table->ready(slice) || state.restore != nullptr) {
    *at = {it->first + 1};
    return Proved::kSome;
  }
  if (bytes_ == 0) return Proved::kWait;
  uint64_t bytes = 0;
  if (const DenseTable* dense = state.dense.table.get()) {
    const std::vector<uint32_t>& chunks = dense->slice(slice).chunks;
    const auto chunk = std::lower_bound(chunks.begin(), chunks.end(), at->chunk);
    if (chunk != chunks.end()) {
      // Others may wait for pulls that read them: only this one is compared.
      if (!core_.log.AllApplied(partition, it->first, dense->chunk(*chunk).id)) {
        core_.turn.in_flight = true;
        return Proved::kWait;
      }
      *record = ProveChunk(partition, state, *chunk);
      at->chunk = *chunk + 1;
      bytes = dense->ContentBytes();
    }
  } else {
    if (!core_.records.AtLastRecord(partition, state, slice)) return Proved::kWait;
    const EmbeddingTable& rows = *state.rows.table;
    const size_t most = std::min(core_.records.RowsOfRecord(rows), kProofRows);
    rows_.clear();
    uint32_t row = at->row;
    const uint32_t end = core_.turn.EndOfLook(row, rows.rows_in(slice));
    for (; row < end && rows_.size() < most; ++row) {
      if (!rows.rows(slice).is_free(row) && rows.rows(slice).applies(row) > 0) {
        rows_.push_back(row);
      }
    }
    if (!rows_.empty()) {
      *record = ProveRows(partition, state, slice, rows_);
      if (*record == 0) return Proved::kWait;
      bytes = rows_.size() * rows.content_bytes();
    }
    core_.turn.looked_at += row - at->row;
    at->row = row;
    if (rows_.empty() && row < rows.rows_in(slice)) return Proved::kWait;
  }
  if (*record == 0) {
    *record = ProveLocalPartition(partition, state, slice);
    if (*record == 0) return Proved::kWait;
    *at = {it->first + 1};
  }
  bytes_ -= std::min(bytes_, bytes);
  return Proved::kSome;
}

uint64_t Proofs::ProveChunk(uint32_t partition, const TableState& state, uint32_t index) {
  const DenseTable& table = *state.dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  ReplicaLog::Append proof = core_.records.HeaderFor(ReplicaKind::kProveChunk, partition, state);
  proof.index = chunk.id;
  proof.header.version = chunk.version;
  proof.header.applies = chunk.applies;
  proof.header.digest = table.Digest(index);
  return core_.log.Add(std::move(proof));
}

// Returns its sequence; 0: no memory, or a row that cannot be read.
uint64_t Proofs::ProveRows(uint32_t partition, const TableState& state, uint32_t slice,
                           absl::Span<const uint32_t> rows) {
  const EmbeddingTable& table = *state.rows.table;
  ReplicaLog::Append proof = core_.records.HeaderFor(ReplicaKind::kProveRows, partition, state);
  const size_t bytes = KeyBytes(rows.size());
  proof.data = core_.pool.TakeScratch(bytes, table.account());
  if (proof.data.data == nullptr) return 0;
  std::memset(proof.data.data, 0, bytes);
  RowReader reader(table.rows(slice), rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) {
      core_.pool.ReturnScratch(proof.data);
      return 0;
    }
    const uint64_t key = table.rows(slice).key(rows[i]);
    std::memcpy(proof.data.data + i * sizeof(key), &key, sizeof(key));
    proof.header.digest += table.Digest(slice, rows[i], content);
  }
  proof.header.count = static_cast<uint32_t>(rows.size());
  proof.header.total_bytes = static_cast<uint32_t>(bytes);
  return core_.log.Add(std::move(proof));
}

uint64_t Proofs::ProveLocalPartition(uint32_t partition, const TableState& state, uint32_t slice) {
  ReplicaLog::Append proof =
      core_.records.HeaderFor(ReplicaKind::kProvePartition, partition, state);
  if (!core_.records.AddMarks(state, slice, &proof)) return 0;
  proof.header.digest = state.table->optimizer().Digest(slice);
  if (const EmbeddingTable* table = state.rows.table.get()) {
    proof.header.version = table->slice(slice).version;
    proof.header.applies = table->slice(slice).applies;
    proof.header.rows = table->rows(slice).applied_rows();
  } else {
    proof.header.rows = state.dense.table->slice(slice).chunks.size();
  }
  return core_.log.Add(std::move(proof));
}

// By then both sides have applied everything that was added since the first comparison. No record
// can come in between, because this thread takes workers' records. So both sides compare the
// contents that the follower begins with.
bool Proofs::ProveAgain(uint32_t partition) {
  if (VERBENA_FAILPOINT(shard, skip_proof) || VERBENA_FAILPOINT(shard, prove_once)) return true;
  // More than a turn allows is not waited for.
  const uint64_t bytes = core_.replicas.ContentsOf(partition).bytes;
  if (bytes <= kBytesOfTurn && bytes > again_bytes_) return false;
  std::vector<std::pair<const TableState*, uint32_t>> slices;
  for (const auto& [id, state] : core_.tables) {
    const uint32_t slice =
        state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice) ||
        state.restore != nullptr) {
      continue;
    }
    if (!core_.records.AtLastRecord(partition, state, slice)) return false;
    slices.emplace_back(&state, slice);
  }
  for (const auto& [state, slice] : slices) {
    if (core_.log.HasRoomToCatchUp(partition)) ProveLocalPartition(partition, *state, slice);
  }
  CopySet::Proof at;
  Proved proved = Proved::kSome;
  std::swap(bytes_, again_bytes_);
  while (proved == Proved::kSome && core_.log.HasRoomToCatchUp(partition)) {
    uint64_t record = 0;
    proved = Prove(partition, &at, &record);
  }
  std::swap(bytes_, again_bytes_);
  return true;
}

void Proofs::AuditPartition() {
  const uint32_t p = audit_.partition;
  // A follower that is slower than the audit gets no more of it before it has answered: records of
  // pushes would wait behind the audit. Record numbers restart when this shard has become primary
  // again.
  const bool answered =
      audited_[p] > core_.log.last(p) || core_.log.copies(p).acknowledged() >= audited_[p];
  Proved proved = answered || VERBENA_FAILPOINT(shard, hurry_audit) ? Proved::kSome : Proved::kWait;
  while (proved == Proved::kSome && !core_.records.BehindOnCopies(p)) {
    uint64_t record = 0;
    proved = Prove(p, &audit_.at, &record);
    if (record != 0) audited_[p] = record;
  }
  const bool busy = proved != Proved::kAll && bytes_ > 0;
  audit_.waits = busy ? audit_.waits + 1 : 0;
  if (proved != Proved::kAll && audit_.waits < kMostWaits) return;
  audit_ = {p + 1, 0, {}};
}

bool Proofs::AuditFollowers(uint64_t bytes) {
  bytes_ = bytes;
  core_.turn.looked_at = 0;
  for (size_t i = 0; i < core_.partitions.size(); ++i) {
    if (audit_.partition >= core_.partitions.size()) audit_ = {};
    const uint32_t p = audit_.partition;
    if (core_.log.leads(p) && core_.log.mode(p) == ReplicaLog::Mode::kRequired &&
        !core_.log.copies(p).learning() && !core_.log.sealed(p)) {
      AuditPartition();
      return true;
    }
    audit_ = {p + 1, 0, {}};
  }
  return false;
}

}  // namespace verbena::shard
