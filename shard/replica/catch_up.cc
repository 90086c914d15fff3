#include "shard/replica/catch_up.h"

#include <algorithm>
#include <utility>

#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

// Turns in which a learner is sent nothing because applies are in flight, before new ones wait.
constexpr uint32_t kWaitsForQuiet = 32;

}  // namespace

bool CatchUp::ReplicateLearners() {
  core_.log.BeginCatchUp();
  core_.proofs.BeginTurn();
  core_.turn.looked_at = 0;
  held_back_ = false;
  for (const uint32_t p : core_.replicas.learners()) {
    if (!core_.log.leads(p) || !core_.log.copies(p).learning() || !core_.log.MayCopy(p)) continue;
    core_.turn.in_flight = false;
    bool sent = false;
    const CopySet::Cursor& c = core_.log.cursor(p);
    while (MayMove(p) && core_.log.HasRoomToCatchUp(p)) {
      const uint64_t before = c.copied_bytes;
      const bool more = ReplicateLearner(p);
      if (core_.partitions[p].moves && allowed_ != INT64_MAX) {
        allowed_ -= static_cast<int64_t>(c.copied_bytes - before);
      }
      if (!more) break;
      sent = true;
    }
    const bool waits = !MayMove(p) && !c.complete;
    held_back_ |= waits;
    core_.log.Quieten(p, !waits && WantsQuiet(p, sent));
  }
  core_.log.EndCatchUp();
  return core_.turn.full();
}

// With a follower there may be an apply in flight at each look, for as long as workers push.
bool CatchUp::WantsQuiet(uint32_t partition, bool sent) {
  CopySet::Cursor& c = core_.log.cursor(partition);
  if (sent || c.complete || !core_.turn.in_flight) {
    c.waits = 0;
    return false;
  }
  // Those in flight end when the followers answer, or are followers no more.
  c.waits = std::min(c.waits + 1, kWaitsForQuiet);
  return c.waits == kWaitsForQuiet && !VERBENA_FAILPOINT(shard, never_quiet);
}

bool CatchUp::MayMove(uint32_t partition) const {
  return allowed_ > 0 || !core_.partitions[partition].moves;
}

bool CatchUp::ReplicateLearner(uint32_t partition) {
  CopySet::Cursor& c = core_.log.cursor(partition);
  if (c.complete) return false;
  auto it = core_.tables.lower_bound(c.table);
  if (it == core_.tables.end() || it->first > c.last_table) {
    // It is admitted when it has proved that it has everything.
    if (!VERBENA_FAILPOINT(shard, skip_proof)) {
      uint64_t record = 0;
      const Proofs::Proved proved = core_.proofs.Prove(partition, &c.proof, &record);
      if (record != 0) c.appended = record;
      if (proved != Proofs::Proved::kAll) return proved == Proofs::Proved::kSome;
      c.proved = true;
    }
    if (core_.log.HasNotes(partition)) return false;
    // Until it has answered it may be that it never will: nobody waits for it.
    if (!core_.log.copies(partition).LearnerIsUpToDate() || !core_.proofs.ProveAgain(partition))
      return false;
    core_.log.Complete(partition);
    return false;
  }
  if (it->first != c.table) c.NextTable(it->first);
  const TableState& state = it->second;
  const uint32_t slice =
      state.table == nullptr ? PartitionedTable::kNone : state.table->slice_of(partition);
  // As a follower it would take a slice that it never received for present.
  if (slice != PartitionedTable::kNone && state.table->gone(slice)) return false;
  if (slice != PartitionedTable::kNone && state.table->ready(slice)) {
    const auto appended = c.slices.find(it->first);
    if (appended == c.slices.end()) return ReplicateLocalPartition(partition, state, slice);
    const DenseTable* dense = state.dense.table.get();
    const bool sends = !appended->second.reset;
    if (sends && dense != nullptr && !dense->slice(slice).chunks.empty() &&
        dense->slice(slice).chunks.back() >= c.chunk) {
      return ReplicateChunk(partition, state, slice);
    }
    if (sends && dense == nullptr) return ReplicateRows(partition, state, slice);
  }
  c.NextTable(it->first + 1);
  return true;
}

bool CatchUp::ReplicateLocalPartition(uint32_t partition, const TableState& state, uint32_t slice) {
  if (core_.log.HasNotesForOthers(partition) ||
      !core_.records.AtLastRecord(partition, state, slice)) {
    return false;
  }
  ReplicaLog::Append appended =
      core_.records.HeaderFor(ReplicaKind::kBeginPartition, partition, state);
  appended.header.flags = kReplicaToCome;
  appended.for_learner = true;
  ReplicaLog::Append changes = core_.records.HeaderFor(ReplicaKind::kOptimizer, partition, state);
  changes.for_learner = true;
  if (!core_.records.AddChanges(state, slice, &changes)) return false;
  if (!core_.records.AddMarks(state, slice, &appended)) {
    core_.pool.ReturnScratch(changes.data);
    return false;
  }
  if (const EmbeddingTable* rows = state.rows.table.get()) {
    appended.header.version = rows->slice(slice).version;
    appended.header.applies = rows->slice(slice).applies;
  }
  CopySet::Cursor& c = core_.log.cursor(partition);
  c.appended = core_.log.Add(std::move(appended));
  CopySet::Cursor::LocalPartition& sent = c.slices[state.table->id()];
  if (const EmbeddingTable* rows = state.rows.table.get()) {
    sent.rows_end = sent.rows_made = rows->rows_in(slice);
  }
  if (changes.header.count > 0) c.appended = core_.log.Add(std::move(changes));
  return true;
}

bool CatchUp::ReplicateGrowing(const TableState& state, absl::Span<const Group> groups,
                               absl::Span<const uint64_t> keys) {
  if (core_.replicas.learners().empty() || VERBENA_FAILPOINT(shard, announce_late)) return true;
  for (const Group& group : groups) {
    const absl::Span<const uint64_t> named = keys.first(group.count);
    keys.remove_prefix(group.count);
    const uint32_t p = group.partition;
    if (p >= core_.partitions.size() || !core_.log.leads(p) || !core_.log.copies(p).learning())
      continue;
    uint32_t slice = PartitionedTable::kNone;
    if (core_.log.Replicated(p, state.table->id()) ||
        core_.FindKeys(state, group, named, &slice) != ReplyStatus::kOk) {
      continue;
    }
    rows_.resize(named.size());
    state.rows.table->Find(slice, named, rows_.data());
    const bool grows =
        std::any_of(rows_.begin(), rows_.end(), [](uint32_t r) { return r == RowStore::kNone; });
    if (!grows || !core_.log.MayCopy(p)) continue;
    if (!core_.log.HasRoom(p)) return false;
    ReplicateLocalPartition(p, state, slice);
  }
  return true;
}

bool CatchUp::ReplicateChunk(uint32_t partition, const TableState& state, uint32_t slice) {
  const DenseTable& table = *state.dense.table;
  CopySet::Cursor& c = core_.log.cursor(partition);
  const std::vector<uint32_t>& chunks = table.slice(slice).chunks;
  const uint32_t index = *std::lower_bound(chunks.begin(), chunks.end(), c.chunk);
  // Records for followers that are not applied yet are not for the learner.
  if (!core_.log.AllApplied(partition, table.id(), table.chunk(index).id) &&
      !core_.records.AtLastRecord(partition, state, slice)) {
    return false;
  }
  // A chunk that is loaded already gets its version when the restore is finished, unannounced.
  const uint64_t version = state.restore != nullptr && state.restore->begun()
                               ? state.restore->request().version
                               : table.chunk(index).version;
  const uint64_t appended =
      core_.records.AddChunk(partition, state, index, version, /*for_learner=*/true);
  if (appended == 0) return false;
  c.appended = appended;
  c.copied_bytes += table.ContentBytes();
  c.chunk = index + 1;
  return true;
}

// Rows that were made and not changed are sent, too: later records count from them. A learner has
// skipped records of rows that it did not have, so rows are sent with those applied.
bool CatchUp::ReplicateRows(uint32_t partition, const TableState& state, uint32_t slice) {
  const EmbeddingTable& table = *state.rows.table;
  CopySet::Cursor& c = core_.log.cursor(partition);
  const bool behind = !core_.log.AllApplied(partition, table.id());
  if (!(behind && VERBENA_FAILPOINT(shard, cursor_before_apply)) &&
      !core_.records.AtLastRecord(partition, state, slice)) {
    return false;
  }
  // Rows made for no record that the learner has received, as by a step that is open.
  CopySet::Cursor::LocalPartition& sent = c.slices.at(table.id());
  if (c.row >= sent.rows_end && sent.rows_made < table.rows_in(slice)) {
    c.row = sent.rows_made;
    sent.rows_end = sent.rows_made = table.rows_in(slice);
  }
  const size_t most = core_.records.RowsOfRecord(table);
  uint32_t row = c.row;
  rows_.clear();
  const uint32_t end = core_.turn.EndOfLook(row, sent.rows_end);
  for (; row < end && rows_.size() < most; ++row) {
    if (!table.rows(slice).is_free(row)) rows_.push_back(row);
  }
  core_.turn.looked_at += row - std::min(row, c.row);
  if (!rows_.empty()) {
    const uint64_t appended =
        core_.records.AddRows(partition, state, slice, rows_, /*for_learner=*/true);
    if (appended == 0) return false;
    c.appended = appended;
    c.row = row;
    c.copied_bytes += rows_.size() * (sizeof(uint64_t) + table.content_bytes());
    return true;
  }
  if (row < sent.rows_end) {
    c.row = row;  // of those before it all are free
    return false;
  }
  c.NextTable(table.id() + 1);
  return true;
}

}  // namespace verbena::shard
