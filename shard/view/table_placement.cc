#include "shard/view/table_placement.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "proto/control/view_tables.h"
#include "proto/spec/table_spec.h"
#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {

void TablePlacement::DropTable(uint32_t id) {
  const auto it = core_.tables.find(id);
  TableState& state = it->second;
  if (state.table != nullptr) {
    for (uint32_t s = 0; s < state.table->slices(); ++s) {
      core_.LeaveLocalPartition(&state, s, ReplyStatus::kUnknownTable);
    }
    state.parking->FailAll(ReplyStatus::kUnknownTable);
  }
  core_.log.ForgetNotes(id);
  state.job->tables.erase(id);
  core_.jobs.MayLeave(state.job->name);
  unserved_.erase(id);
  evicting_.erase(id);
  core_.tables.erase(it);
}

void TablePlacement::Drop(const v1::ClusterView& view, const ViewDifference& what) {
  std::vector<uint32_t> gone;
  if (what.all) {
    std::vector<uint32_t> present;
    present.reserve(view.tables_size());
    for (const v1::Table& t : view.tables()) present.push_back(t.id());
    // A coordinator lists them in this order.
    if (!std::is_sorted(present.begin(), present.end())) std::sort(present.begin(), present.end());
    auto next = present.begin();
    for (const auto& [id, state] : core_.tables) {
      while (next != present.end() && *next < id) ++next;
      if (next == present.end() || *next != id) gone.push_back(id);
    }
  } else {
    for (const uint32_t id : what.tables) {
      if (core_.tables.contains(id) && FindTableById(id, view) == nullptr) gone.push_back(id);
    }
  }
  if (gone.empty()) return;
  for (const uint32_t id : gone) DropTable(id);
  core_.pool.Trim();
  // Ids are not used again: a replica would keep those of all tables that ever were.
  core_.copies.ForgetTables([&](uint32_t id) {
    return what.all ? id <= core_.highest_table && !core_.tables.contains(id)
                    : std::find(gone.begin(), gone.end(), id) != gone.end();
  });
}

absl::Status TablePlacement::CreateDense(const v1::Table& table, TableState* state) {
  absl::StatusOr<std::unique_ptr<DenseTable>> created = DenseTable::Create(
      table, static_cast<uint32_t>(core_.partitions.size()), &core_.pool, state->job->account);
  if (!created.ok()) return created.status();
  DenseState& dense = state->dense;
  dense.table = *std::move(created);
  const v1::Consistency consistency = table.spec().consistency();
  dense.parking =
      std::make_unique<DeferredPulls>(dense.table.get(), &core_.sink,
                                      /*by_version=*/consistency != v1::CONSISTENCY_SSP);
  const DenseParts parts = {dense.table.get(), dense.parking.get(), &core_.pool,
                            &state->job->members, &core_.sink};
  dense.consistency = consistency == v1::CONSISTENCY_SYNC  ? MakeSync(parts)
                      : consistency == v1::CONSISTENCY_SSP ? MakeSsp(parts)
                                                           : MakeAsync(parts);
  state->table = dense.table.get();
  state->parking = dense.parking.get();
  state->consistency = dense.consistency.get();
  return absl::OkStatus();
}

absl::Status TablePlacement::CreateRows(const v1::Table& table, TableState* state) {
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> created =
      EmbeddingTable::Create(table, static_cast<uint32_t>(core_.partitions.size()), &core_.pool,
                             state->job->account, &core_.cold);
  if (!created.ok()) return created.status();
  RowState& rows = state->rows;
  rows.table = *std::move(created);
  rows.table->SetSeconds(core_.seconds);
  if (rows.table->evicts()) evicting_.insert(table.id());
  const v1::Consistency consistency = table.spec().consistency();
  rows.parking =
      std::make_unique<DeferredLookups>(rows.table.get(), &core_.sink,
                                        /*by_version=*/consistency != v1::CONSISTENCY_SSP);
  const RowParts parts = {rows.table.get(), rows.parking.get(), &core_.pool, &state->job->members,
                          &core_.sink};
  rows.consistency =
      consistency == v1::CONSISTENCY_SYNC ? MakeSyncRows(parts) : MakeAsyncRows(parts);
  state->table = rows.table.get();
  state->parking = rows.parking.get();
  state->consistency = rows.consistency.get();
  return absl::OkStatus();
}

absl::Status TablePlacement::CreateTable(const v1::Table& table, TableState* state) {
  state->job = core_.jobs.Get(table.spec().job());
  state->job->tables.insert(table.id());
  state->lacks_cold_store = HotBytes(table.spec()) > 0 && !core_.cold.has_store();
  return table.spec().dim() > 0 ? CreateRows(table, state) : CreateDense(table, state);
}

bool TablePlacement::HasToPlace(const v1::Table& table, const TableState& state) const {
  if (core_.partitions_moved || state.placement.empty()) return true;
  if (state.starved && state.table->MayAcquire()) return true;
  const auto& lost = table.lost_partitions();
  return !std::equal(lost.begin(), lost.end(), state.lost.begin(), state.lost.end());
}

// Follows the view's partitions of the table.
absl::Status TablePlacement::Place(const v1::Table& table, TableState* state) {
  ++placed_;
  state->lost.assign(table.lost_partitions().begin(), table.lost_partitions().end());
  std::vector<Placement> placement(core_.partitions.size());
  for (size_t p = 0; p < core_.partitions.size(); ++p) {
    placement[p].ours = core_.partitions[p].ours || core_.partitions[p].copy;
    placement[p].copy = core_.partitions[p].copy;
  }
  for (const uint32_t p : table.lost_partitions()) {
    if (p < placement.size()) placement[p].lost = true;
  }
  PartitionedTable& sliced = *state->table;
  bool renewed = false;
  for (uint32_t s = 0; s < sliced.slices(); ++s) {
    const uint32_t p = sliced.life(s).partition;
    renewed |= core_.partitions[p].renewed;
    if (core_.partitions[p].renewed && sliced.gone(s)) sliced.Forget(s);
    if (!sliced.ready(s)) continue;
    const bool keep = placement[p].ours && !placement[p].lost && !core_.partitions[p].stale;
    if (keep && !core_.partitions[p].epoch_changed) continue;
    // Also where it is lost: callers learn that from the view, which may be over in theirs.
    const ReplyStatus why = placement[p].lost && VERBENA_FAILPOINT(shard, lost_by_old_view)
                                ? ReplyStatus::kDataLoss
                                : ReplyStatus::kWrongEpoch;
    if (keep) {
      state->consistency->FailLocalPartition(s, why, /*keep=*/true);
      // Another may have been its primary meanwhile.
      if (EmbeddingTable* rows = state->rows.table.get()) rows->changed(s) = nullptr;
    } else {
      core_.LeaveLocalPartition(state, s, why);
    }
    if (!VERBENA_FAILPOINT(shard, forget_deferred)) state->parking->FailLocalPartition(s, why);
    if (keep) continue;
    // Everything of a table that is being restored can be loaded again.
    const bool fresh =
        placement[p].lost || core_.partitions[p].renewed || state->restore != nullptr;
    sliced.Release(s, /*gone=*/!fresh);
    state->marks.erase(p);
    core_.copies.ForgetTable(p, sliced.id());
  }
  if (placement == state->placement && !state->starved && !renewed) return absl::OkStatus();
  std::vector<bool> before(sliced.slices());
  for (uint32_t s = 0; s < before.size(); ++s) before[s] = sliced.ready(s);
  const absl::Status acquired = sliced.Acquire(placement);
  const bool served = state->restore != nullptr && !table.restoring();
  // Slices that are new here, too: it never had partitions that are lost when it joins.
  for (uint32_t s = 0; served && s < sliced.slices(); ++s) {
    const uint32_t p = sliced.life(s).partition;
    const bool was_lost = p < state->placement.size() && state->placement[p].lost;
    if (placement[p].lost || !(was_lost || core_.partitions[p].renewed)) continue;
    if (!VERBENA_FAILPOINT(shard, lose_what_is_reset)) state->restore->SetReset(s);
  }
  state->starved = !acquired.ok();
  state->placement = std::move(placement);
  for (uint32_t s = 0; s < sliced.slices(); ++s) {
    if (sliced.ready(s) && (s >= before.size() || !before[s])) core_.replicas.Announce(*state, s);
  }
  state->consistency->Resize();
  return acquired;
}

// A new generation of its job. Replicas follow by a record.
void TablePlacement::ResetTable(TableState* state) {
  // A reset applies entries that the follower may not have yet.
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    core_.log.HoldReads(state->table->id(), state->table->life(s).partition);
  }
  state->consistency->Reset();
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const uint32_t p = state->table->life(s).partition;
    if (!state->table->ready(s) || !core_.partitions[p].ours) continue;
    // A follower until this view: it may have steps of this generation. Adopt() knows.
    if (core_.partitions[p].promoted) {
      const auto marks = state->marks.find(p);
      const bool has_steps = marks != state->marks.end() &&
                             marks->second.generation == state->job->members.generation();
      if (!has_steps || !VERBENA_FAILPOINT(shard, reset_promoted)) continue;
    }
    // A table that is being restored gets versions for whatever generation it begins with.
    const bool restoring = state->restore != nullptr;
    if (!restoring) state->table->SetVersions(s, 0);
    if (core_.log.mode(p) == ReplicaLog::Mode::kAlone ||
        !core_.log.Replicated(p, state->table->id()))
      continue;
    const ReplicaKind kind = restoring ? ReplicaKind::kSettle : ReplicaKind::kReset;
    core_.log.Note(p, state->table->id(), core_.records.HeaderFor(kind, p, *state).header);
  }
}

void TablePlacement::FollowRestore(const v1::Table& table, TableState* state) {
  if (state->restore == nullptr) return;
  if (!table.restoring()) return core_.restores.End(state);
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const PartitionInfo& p = core_.partitions[state->table->life(s).partition];
    const bool ready = state->table->ready(s);
    if (!p.ours || p.epoch_changed || !ready) state->restore->Forget(s);
    if (p.promoted && ready && !VERBENA_FAILPOINT(shard, forget_inherited))
      state->restore->Inherit(s);
  }
}

absl::Status TablePlacement::UpdateTable(const v1::Table& table) {
  ++followed_;
  const auto [it, is_new] = core_.tables.try_emplace(table.id());
  TableState& state = it->second;
  core_.highest_table = std::max(core_.highest_table, table.id());
  if (is_new) {
    if (const absl::Status s = CreateTable(table, &state); !s.ok()) return s;
    if (table.restoring()) {
      state.restore = std::make_unique<Restore>();
      if (state.table != nullptr) state.table->set_initialises(false);
    }
  }
  if (state.table == nullptr) return absl::OkStatus();
  // Slices that are placed by the view that ends the restore were reset since.
  if (!table.restoring()) state.table->set_initialises(true);
  if (HasToPlace(table, state)) state.unserved = Place(table, &state);
  absl::Status placed = state.unserved;
  FollowRestore(table, &state);
  if (is_new || state.job->change == Members::Change::kNone) return placed;
  const bool of_workers = state.job->change != Members::Change::kObservers;
  if (state.job->change == Members::Change::kGeneration) {
    core_.checkpoints.AbortTable(table.id(), absl::AbortedError("its job has begun anew"));
    ResetTable(&state);
    // Data kept for the workers of the run before may have been in the way.
    if (!placed.ok()) placed = state.unserved = Place(table, &state);
  } else if (of_workers) {
    state.consistency->Resize();
    state.consistency->MembersChanged();
  }
  if (of_workers) core_.copies.ForgetRetired(&state);
  state.table->optimizer().ForgetClients(
      [&](uint64_t client) { return core_.jobs.Retired(*state.job, client); });
  const Members& members = state.job->members;
  state.parking->FailWorkers([&](uint64_t worker) {
    return members.Find(worker) == nullptr && !core_.jobs.IsReader(worker);
  });
  return placed;
}

std::vector<uint32_t> TablePlacement::ToFollow(const v1::ClusterView& view,
                                               const ViewDifference& what) const {
  std::vector<uint32_t> ids;
  if (what.all) {
    for (const v1::Table& t : view.tables()) ids.push_back(t.id());
    return ids;
  }
  std::set<uint32_t> some = what.tables;
  for (const JobState* job : core_.jobs.changed())
    some.insert(job->tables.begin(), job->tables.end());
  for (const uint32_t id : unserved_) {
    const TableState& state = core_.tables.at(id);
    if (state.starved && state.table->MayAcquire()) some.insert(id);
  }
  ids.assign(some.begin(), some.end());
  return ids;
}

// The first error, in the order of the view, also of tables that have one since an earlier view.
absl::Status TablePlacement::Follow(const v1::ClusterView& view, const std::vector<uint32_t>& ids) {
  std::map<uint32_t, absl::Status> errors;
  for (const uint32_t id : ids) {
    const v1::Table* table = FindTableById(id, view);
    if (table == nullptr) continue;
    absl::Status status = UpdateTable(*table);
    if (core_.tables.at(id).unserved.ok()) {
      unserved_.erase(id);
    } else {
      unserved_.insert(id);
    }
    if (!status.ok()) errors[id] = std::move(status);
  }
  for (const uint32_t id : unserved_) errors.try_emplace(id, core_.tables.at(id).unserved);
  return errors.empty() ? absl::OkStatus() : errors.begin()->second;
}

bool TablePlacement::HasStarved() const {
  return std::any_of(unserved_.begin(), unserved_.end(),
                     [&](uint32_t id) { return core_.tables.at(id).starved; });
}

}  // namespace verbena::shard
