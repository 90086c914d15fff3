// Replicas elsewhere of this shard's partitions: the records for them beyond those of applies
// (partition/), and their answers.
#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/engine_impl.h"
#include "shard/failpoints.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {
namespace {

// The bytes that a restore may have in a partition's log: enough to keep its link busy.
constexpr uint64_t kRestoreBytes = 4 << 20;
// Rows that one turn looks at in search of rows to send or compare, which takes about as long as
// sending.
constexpr uint32_t kRowsOfTurn = 1 << 16;

}  // namespace

// ---- the view -----------------------------------------------------------------------------------

void Engine::Impl::FollowCopies(const v1::ClusterView& view, const ViewDifference& what,
                                const std::vector<uint32_t>& followed) {
  if (what.all) {
    for (auto& [id, state] : tables) {
      if (state.table != nullptr) Adopt(&state);
    }
  }
  const bool copies_changed = what.all || what.placement;
  learners.clear();
  for (const v1::Partition& p : view.partitions()) {
    const uint32_t id = p.id();
    if (!partitions[id].ours) {
      if (!log.leads(id)) continue;
      log.Clear(id, ReplyStatus::kWrongEpoch);
      KeepNumbers(id);
      continue;
    }
    log.Lead(id, p.epoch(), copies[id].sequence);
    ForgetCopy(id);
    const v1::Replica none;
    const bool learner = p.followers().empty();
    const v1::Replica& r = !learner ? p.followers(0) : !p.learners().empty() ? p.learners(0) : none;
    if (learner && r.server() != 0) learners.push_back(id);
    const bool is_new = log.SetCopy(id, {r.server(), r.shard()}, r.since(), learner, highest_table);
    if (copies_changed) KeepNumbers(id);
    if (!is_new || r.server() == 0) continue;
    if (learner) {
      log.cursor(id).total_bytes = BytesOf(id);
      log.Expect(id, RowMemoryOf(id));
    } else {
      AnnounceAll(id);
      ReplicateClocks(id);
    }
  }
  log.NewConfiguration(learners.size());
  for (const uint32_t id : followed) {
    if (evicting.contains(id) && !copies_changed) KeepNumbersOf(tables.at(id));
  }
}

void Engine::Impl::KeepNumbersOf(const TableState& state) {
  for (uint32_t slice = 0; slice < state.table->slices(); ++slice) {
    const uint32_t p = state.table->life(slice).partition;
    if (!partitions[p].ours || !state.table->ready(slice)) continue;
    state.rows.table->SetReuses(slice, !log.learning(p));
  }
}

void Engine::Impl::KeepNumbers(uint32_t partition) {
  for (const uint32_t id : evicting) {
    const TableState& state = tables.at(id);
    const uint32_t slice = state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice)) continue;
    state.rows.table->SetReuses(slice, !log.learning(partition));
  }
}

void Engine::Impl::Announce(const TableState& state, uint32_t slice) {
  const uint32_t p = state.table->life(slice).partition;
  const uint32_t id = state.table->id();
  if (!partitions[p].ours || log.mode(p) == ReplicaLog::Mode::kAlone || !log.Replicated(p, id))
    return;
  // Lost and reset while it was being sent: there is nothing more to send of it.
  ReplicaLog::Cursor& c = log.cursor(p);
  if (c.sends(id)) c.slices.at(id).reset = true;
  log.Note(p, id, HeaderFor(ReplicaKind::kFresh, p, state).header);
}

void Engine::Impl::AnnounceAll(uint32_t partition) {
  for (const auto& [id, state] : tables) {
    if (state.table == nullptr) continue;
    const uint32_t slice = state.table->slice_of(partition);
    if (slice != PartitionedTable::kNone && state.table->ready(slice)) Announce(state, slice);
  }
}

void Engine::Impl::ReplicateClocks(uint32_t partition) {
  for (const auto& [id, state] : tables) {
    if (state.table == nullptr) continue;
    const uint32_t slice = state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice)) continue;
    state.consistency->ReplicateClocks(slice);
  }
}

void Engine::Impl::Adopt(TableState* state) {
  for (auto it = state->marks.begin(); it != state->marks.end();) {
    const uint32_t partition = it->first;
    const CopyMarks& marks = it->second;
    if (!partitions[partition].promoted) {
      ++it;
      continue;
    }
    const uint32_t slice = state->table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state->table->ready(slice)) {
      // The table has nothing there, or it is lost.
    } else if (marks.generation != state->job->members.generation()) {
      state->table->SetVersions(slice, 0);
    } else {
      std::vector<WorkerMark> workers;
      for (const auto& [worker, mark] : marks.workers) workers.push_back(mark);
      state->consistency->Adopt(slice, workers);
    }
    it = state->marks.erase(it);
  }
}

uint64_t Engine::Impl::BytesOf(uint32_t partition) const {
  uint64_t bytes = 0;
  for (const auto& [id, state] : tables) {
    if (state.table == nullptr) continue;
    const uint32_t slice = state.table->slice_of(partition);
    if (slice == PartitionedTable::kNone || !state.table->ready(slice)) continue;
    if (const DenseTable* dense = state.dense.table.get()) {
      bytes += dense->slice(slice).chunks.size() * uint64_t{dense->ContentBytes()};
    } else {
      const EmbeddingTable& rows = *state.rows.table;
      bytes += rows.rows_in(slice) * (sizeof(uint64_t) + uint64_t{rows.content_bytes()});
    }
  }
  return bytes;
}

uint64_t Engine::Impl::RowMemoryOf(uint32_t partition) const {
  uint64_t bytes = 0;
  for (const auto& [id, state] : tables) {
    const EmbeddingTable* const rows = state.rows.table.get();
    const uint32_t slice = rows == nullptr ? PartitionedTable::kNone : rows->slice_of(partition);
    if (slice == PartitionedTable::kNone || !rows->ready(slice)) continue;
    // Nothing idles yet.
    bytes += rows->rows(slice).BytesOf(rows->rows(slice).live()) / 9 * 8;
  }
  return bytes;
}

// ---- learners -----------------------------------------------------------------------------------

uint32_t Engine::Impl::EndOfLook(uint32_t from, uint32_t rows) const {
  const uint32_t left = kRowsOfTurn - std::min(rows_looked_at, kRowsOfTurn);
  return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{from} + left, rows));
}

bool Engine::Impl::ReplicateLearners() {
  log.BeginCatchUp();
  proof_bytes = proof_again_bytes = kProofBytesOfTurn;
  rows_looked_at = 0;
  for (const uint32_t p : learners) {
    if (!log.leads(p) || !log.learning(p) || !log.MayCopy(p)) continue;
    while (log.HasRoomToCatchUp(p) && ReplicateLearner(p)) {
    }
  }
  log.EndCatchUp();
  return rows_looked_at >= kRowsOfTurn;
}

bool Engine::Impl::ReplicateLearner(uint32_t partition) {
  ReplicaLog::Cursor& c = log.cursor(partition);
  if (c.complete) return false;
  auto it = tables.lower_bound(c.table);
  if (it == tables.end() || it->first > c.last_table) {
    // It is admitted when it has proved that it has everything.
    if (!failpoints().skip_proof) {
      uint64_t record = 0;
      const Proved proved = Prove(partition, &c.proof, &record);
      if (record != 0) c.told = record;
      if (proved != Proved::kAll) return proved == Proved::kSome;
      c.proved = true;
    }
    if (log.HasNotes(partition)) return false;
    // Until it has answered it may be that it never will: nobody waits for it.
    if (log.acknowledged(partition) < c.told || !ProveAgain(partition)) return false;
    log.Complete(partition);
    return false;
  }
  if (it->first != c.table) c.NextTable(it->first);
  const TableState& state = it->second;
  const uint32_t slice =
      state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
  // As a follower it would take a slice that it never received for present.
  if (slice != PartitionedTable::kNone && state.table->gone(slice)) return false;
  if (slice != PartitionedTable::kNone && state.table->ready(slice)) {
    const auto told = c.slices.find(it->first);
    if (told == c.slices.end()) return ReplicateLocalPartition(partition, state, slice);
    const DenseTable* dense = state.dense.table.get();
    const bool sends = !told->second.reset;
    if (sends && dense != nullptr && !dense->slice(slice).chunks.empty() &&
        dense->slice(slice).chunks.back() >= c.chunk) {
      return ReplicateChunk(partition, state, slice);
    }
    if (sends && dense == nullptr) return ReplicateRows(partition, state, slice);
  }
  c.NextTable(it->first + 1);
  return true;
}

ReplicaLog::Append Engine::Impl::HeaderFor(ReplicaKind kind, uint32_t partition,
                                           const TableState& state) const {
  ReplicaLog::Append told;
  told.table = state.table->id();
  told.partition = partition;
  told.header.kind = kind;
  told.header.generation = state.job->members.generation();
  return told;
}

bool Engine::Impl::AddMarks(const TableState& state, uint32_t slice, ReplicaLog::Append* told) {
  const std::vector<WorkerMark> marks = state.consistency->Marks(slice);
  static_assert(sizeof(WorkerMark) == 24);
  told->header.count = static_cast<uint32_t>(marks.size());
  if (marks.empty()) return true;
  const size_t bytes = marks.size() * sizeof(WorkerMark);
  told->data = pool.TakeScratch(bytes, state.table->account());
  if (told->data.data == nullptr) return false;
  std::memcpy(told->data.data, marks.data(), bytes);
  told->header.total_bytes = static_cast<uint32_t>(bytes);
  return true;
}

bool Engine::Impl::ReplicateLocalPartition(uint32_t partition, const TableState& state,
                                           uint32_t slice) {
  if (!AtLastRecord(partition, state, slice)) return false;
  ReplicaLog::Append told = HeaderFor(ReplicaKind::kBeginPartition, partition, state);
  told.header.flags = kReplicaToCome;
  ReplicaLog::Append changes = HeaderFor(ReplicaKind::kOptimizer, partition, state);
  if (!FillChanges(state.table->optimizer(), slice, &pool, &changes)) return false;
  if (!AddMarks(state, slice, &told)) {
    pool.ReturnScratch(changes.data);
    return false;
  }
  if (const EmbeddingTable* rows = state.rows.table.get()) {
    told.header.version = rows->slice(slice).version;
    told.header.applies = rows->slice(slice).applies;
  }
  ReplicaLog::Cursor& c = log.cursor(partition);
  c.told = log.Add(std::move(told));
  ReplicaLog::Cursor::LocalPartition& sent = c.slices[state.table->id()];
  if (const EmbeddingTable* rows = state.rows.table.get()) {
    sent.rows_end = sent.rows_made = rows->rows_in(slice);
  }
  if (changes.header.count > 0) c.told = log.Add(std::move(changes));
  return true;
}

bool Engine::Impl::ReplicateGrowing(const TableState& state, absl::Span<const Group> groups,
                                    absl::Span<const uint64_t> keys) {
  if (learners.empty() || failpoints().announce_late) return true;
  for (const Group& group : groups) {
    const absl::Span<const uint64_t> named = keys.first(group.count);
    keys.remove_prefix(group.count);
    const uint32_t p = group.partition;
    if (p >= partitions.size() || !log.leads(p) || !log.learning(p)) continue;
    uint32_t slice = PartitionedTable::kNone;
    if (log.Replicated(p, state.table->id()) ||
        FindKeys(state, group, named, &slice) != ReplyStatus::kOk) {
      continue;
    }
    copied_rows.resize(named.size());
    state.rows.table->Find(slice, named, copied_rows.data());
    const bool grows = std::any_of(copied_rows.begin(), copied_rows.end(),
                                   [](uint32_t r) { return r == RowStore::kNone; });
    if (!grows || !log.MayCopy(p)) continue;
    if (!log.HasRoom(p)) return false;
    ReplicateLocalPartition(p, state, slice);
  }
  return true;
}

// Returns its sequence; 0: no memory.
uint64_t Engine::Impl::AddChunk(uint32_t partition, const TableState& state, uint32_t index,
                                uint64_t version) {
  const DenseTable& table = *state.dense.table;
  const DenseTable::Chunk& chunk = table.chunk(index);
  ReplicaLog::Append told = HeaderFor(ReplicaKind::kChunk, partition, state);
  told.index = chunk.id;
  told.header.total_bytes = table.ContentBytes();
  told.header.version = version;
  told.header.applies = chunk.applies;
  told.data = pool.TakeScratch(told.header.total_bytes, table.account());
  if (told.data.data == nullptr) return 0;
  table.ReadContent(index, told.data.data);
  return log.Add(std::move(told));
}

// The same of rows.
uint64_t Engine::Impl::AddRows(uint32_t partition, const TableState& state, uint32_t slice,
                               absl::Span<const uint32_t> rows) {
  const EmbeddingTable& table = *state.rows.table;
  const size_t content = table.content_bytes();
  ReplicaLog::Append told = HeaderFor(ReplicaKind::kRowStates, partition, state);
  told.header.count = static_cast<uint32_t>(rows.size());
  const size_t bytes = KeyBytes(rows.size()) + rows.size() * content;
  told.data = pool.TakeScratch(bytes, table.account());
  if (told.data.data == nullptr) return 0;
  told.header.total_bytes = static_cast<uint32_t>(bytes);
  std::memset(told.data.data, 0, KeyBytes(rows.size()));
  std::byte* out = told.data.data + KeyBytes(rows.size());
  RowReader reader(table.rows(slice), rows);
  for (size_t i = 0; i < rows.size(); ++i, out += content) {
    const std::byte* const from = reader.Next();
    if (from == nullptr) {
      pool.ReturnScratch(told.data);
      return 0;
    }
    uint64_t key = 0;
    table.ReadRow(slice, rows[i], from, &key, out);
    std::memcpy(told.data.data + i * sizeof(key), &key, sizeof(key));
  }
  return log.Add(std::move(told));
}

size_t Engine::Impl::RowsOfRecord(const EmbeddingTable& table) const {
  return std::max<size_t>(log.limits().rows_bytes / (table.content_bytes() + sizeof(uint64_t)), 1);
}

bool Engine::Impl::BehindOnCopies(uint32_t partition) const {
  if (log.mode(partition) == ReplicaLog::Mode::kAlone) return false;
  return log.HasNotes(partition) || log.bytes() >= log.limits().shard_bytes ||
         log.bytes(partition) >= std::min(log.limits().partition_bytes, kRestoreBytes);
}

bool Engine::Impl::ReplicateChunk(uint32_t partition, const TableState& state, uint32_t slice) {
  const DenseTable& table = *state.dense.table;
  ReplicaLog::Cursor& c = log.cursor(partition);
  const std::vector<uint32_t>& chunks = table.slice(slice).chunks;
  const uint32_t index = *std::lower_bound(chunks.begin(), chunks.end(), c.chunk);
  // A chunk that is loaded already gets its version when the restore is finished, unannounced.
  const uint64_t version = state.restore != nullptr && state.restore->begun()
                               ? state.restore->request().version
                               : table.chunk(index).version;
  const uint64_t told = AddChunk(partition, state, index, version);
  if (told == 0) return false;
  c.told = told;
  c.copied_bytes += table.ContentBytes();
  c.chunk = index + 1;
  return true;
}

bool Engine::Impl::AtLastRecord(uint32_t partition, const TableState& state, uint32_t slice) {
  const uint32_t id = state.table->id();
  if (!log.AllApplied(partition, id)) state.consistency->ApplyNow(slice);
  return log.AllApplied(partition, id);
}

// Rows that were made and not changed are sent, too: later records count from them. A learner has
// skipped records of rows that it did not have, so rows are sent with those applied.
bool Engine::Impl::ReplicateRows(uint32_t partition, const TableState& state, uint32_t slice) {
  const EmbeddingTable& table = *state.rows.table;
  ReplicaLog::Cursor& c = log.cursor(partition);
  const bool behind = !log.AllApplied(partition, table.id());
  if (!(behind && failpoints().cursor_before_apply) && !AtLastRecord(partition, state, slice)) {
    return false;
  }
  // Rows made for no record that the learner has received, as by a step that is open.
  ReplicaLog::Cursor::LocalPartition& sent = c.slices.at(table.id());
  if (c.row >= sent.rows_end && sent.rows_made < table.rows_in(slice)) {
    c.row = sent.rows_made;
    sent.rows_end = sent.rows_made = table.rows_in(slice);
  }
  const size_t most = RowsOfRecord(table);
  uint32_t row = c.row;
  copied_rows.clear();
  const uint32_t end = EndOfLook(row, sent.rows_end);
  for (; row < end && copied_rows.size() < most; ++row) {
    if (!table.rows(slice).is_free(row)) copied_rows.push_back(row);
  }
  rows_looked_at += row - std::min(row, c.row);
  if (!copied_rows.empty()) {
    const uint64_t told = AddRows(partition, state, slice, copied_rows);
    if (told == 0) return false;
    c.told = told;
    c.row = row;
    c.copied_bytes += copied_rows.size() * (sizeof(uint64_t) + table.content_bytes());
    return true;
  }
  if (row < sent.rows_end) {
    c.row = row;  // of those before it all are free
    return false;
  }
  c.NextTable(table.id() + 1);
  return true;
}

// ---- the link -----------------------------------------------------------------------------------

bool Engine::TakeReplicas(std::vector<ReplicaRecord>* records, size_t most) {
  impl_->log.AddNotes();
  // There is more to look at, though there may be nothing to send.
  const bool more = impl_->ReplicateLearners();
  return impl_->log.Take(records, most) || more;
}

void Engine::ReplicaAnswered(const CopyId& from, uint32_t partition, uint64_t sequence,
                             ReplyStatus status) {
  Impl& e = *impl_;
  e.log.Released(from, partition, sequence);
  if (status != ReplyStatus::kOk && status != ReplyStatus::kDuplicate) return;
  e.log.Answered(from, partition, sequence);
}

void Engine::ReplicasLost(const CopyId& copy) {
  Impl& e = *impl_;
  e.log.ForgetCopy(copy);
  for (uint32_t p = 0; p < e.partitions.size(); ++p) {
    if (e.log.copy(p) == copy) e.log.Rewind(p);
  }
}

void Engine::SetCopyRoom(const CopyId& copy, const CopyRoom& room) {
  impl_->log.rooms().Report(copy, room);
}

void Engine::ResendReplicas(uint32_t partition) { impl_->log.Rewind(partition); }

bool Engine::CaughtUp(uint32_t partition) const {
  const Impl& e = *impl_;
  return partition < e.partitions.size() && e.log.CaughtUp(partition);
}

bool Engine::Learns(uint32_t partition) const {
  const Impl& e = *impl_;
  return partition < e.partitions.size() && e.log.learning(partition);
}

bool Engine::ReplicaDiffers(uint32_t partition) const {
  const Impl& e = *impl_;
  return partition < e.partitions.size() && e.log.differs(partition);
}

std::vector<CopyStatus> Engine::copies() const {
  const Impl& e = *impl_;
  std::vector<CopyStatus> copies;
  for (uint32_t p = 0; p < e.partitions.size(); ++p) {
    const PartitionInfo& info = e.partitions[p];
    if (info.copy) {
      copies.push_back({p, {}, e.copies[p].learning, e.copies[p].sequence, 0, 0, 0});
    } else if (info.ours && e.log.copy(p).server != 0) {
      const ReplicaLog::Cursor& c = e.log.cursor(p);
      copies.push_back({p, e.log.copy(p), !e.log.CaughtUp(p), e.log.last(p), e.log.acknowledged(p),
                        c.copied_bytes, c.total_bytes});
    }
  }
  return copies;
}

}  // namespace verbena::shard
