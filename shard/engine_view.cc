// Changes of a view of the cluster: tables, the partitions of this shard, jobs.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"
#include "proto/spec/job_limits.h"
#include "proto/spec/table_spec.h"
#include "shard/engine_impl.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

// A contribution entry is kept per chunk and rank.
constexpr uint32_t kMaxWorkers = 1 << 16;

}  // namespace

absl::Status Engine::Impl::CheckPartitions(const v1::ClusterView& view) const {
  const auto count = static_cast<uint32_t>(view.partitions_size());
  if (!partitions.empty() && count != partitions.size()) {
    return absl::FailedPreconditionError(absl::StrCat("view ", view.revision(), " has ", count,
                                                      " partitions; this cluster has ",
                                                      partitions.size()));
  }
  for (const v1::Partition& p : view.partitions()) {
    if (p.id() >= count) {
      return absl::FailedPreconditionError(
          absl::StrCat("view ", view.revision(), ": partition ", p.id(), " of ", count));
    }
  }
  return absl::OkStatus();
}

// This shard's place among the partition's replicas.
const v1::Replica* Engine::Impl::FindReplica(const v1::Partition& partition) const {
  for (const auto* list : {&partition.followers(), &partition.learners()}) {
    for (const v1::Replica& r : *list) {
      if (r.server() == options.server && r.shard() == options.shard) return &r;
    }
  }
  return nullptr;
}

void Engine::Impl::UpdatePartitions(const v1::ClusterView& view) {
  partitions.resize(view.partitions_size());
  copies.resize(partitions.size());
  audited.resize(partitions.size());
  log.Resize(static_cast<uint32_t>(partitions.size()));
  partitions_moved = false;
  for (const v1::Partition& p : view.partitions()) {
    PartitionInfo& info = partitions[p.id()];
    const PartitionInfo was = info;
    info.epoch_changed = info.epoch != p.epoch();
    info.epoch = p.epoch();
    info.primary = {p.primary(), p.shard()};
    info.ours = p.primary() != 0 && p.primary() == options.server && p.shard() == options.shard;
    const v1::Replica* here = info.ours ? nullptr : FindReplica(p);
    info.copy = here != nullptr;
    info.since = info.copy ? here->since() : 0;
    info.enough = 1 + static_cast<uint32_t>(p.followers_size()) >= view.min_replicas();
    // Content goes from a copy to the next epoch; one whose content is lost skips an epoch
    // (server/coordinator/configurations.cc).
    // That holds for a primary, too, which may have missed the views between.
    const bool skipped = was.epoch > 0 && p.epoch() > was.epoch + 1;
    info.renewed = info.ours && skipped && !(was.copy && failpoints().keep_lost);
    info.promoted = was.copy && info.ours && !info.renewed;
    const bool again = was.copy && info.copy && was.since != info.since;
    info.stale = again || (was.ours && info.copy) || info.renewed ||
                 (info.promoted && copies[p.id()].learning);
    if (!info.ours && (!info.copy || info.epoch_changed || again)) ForgetCopy(p.id());
    partitions_moved |= info.epoch_changed || info.ours != was.ours || info.copy != was.copy ||
                        info.since != was.since || info.renewed || info.promoted || info.stale;
  }
  CountSenders(view);
}

void Engine::Impl::DropTable(uint32_t id) {
  const auto it = tables.find(id);
  TableState& state = it->second;
  if (state.table != nullptr) {
    for (uint32_t s = 0; s < state.table->slices(); ++s) {
      LeaveLocalPartition(&state, s, ReplyStatus::kUnknownTable);
    }
    state.parking->FailAll(ReplyStatus::kUnknownTable);
  }
  log.ForgetNotes(id);
  state.job->tables.erase(id);
  leaving.insert(state.job->name);
  unserved.erase(id);
  evicting.erase(id);
  tables.erase(it);
}

void Engine::Impl::DropTables(const v1::ClusterView& view, const ViewDifference& what) {
  std::vector<uint32_t> gone;
  if (what.all) {
    std::vector<uint32_t> present;
    present.reserve(view.tables_size());
    for (const v1::Table& t : view.tables()) present.push_back(t.id());
    // A coordinator lists them in this order.
    if (!std::is_sorted(present.begin(), present.end())) std::sort(present.begin(), present.end());
    auto next = present.begin();
    for (const auto& [id, state] : tables) {
      while (next != present.end() && *next < id) ++next;
      if (next == present.end() || *next != id) gone.push_back(id);
    }
  } else {
    for (const uint32_t id : what.tables) {
      if (tables.contains(id) && FindTableById(id, view) == nullptr) gone.push_back(id);
    }
  }
  if (gone.empty()) return;
  for (const uint32_t id : gone) DropTable(id);
  pool.Trim();
  // Ids are not used again: a replica would keep those of all tables that ever were.
  for (CopyState& copy : copies) {
    if (!what.all) {
      for (const uint32_t id : gone) copy.announced.erase(id);
      continue;
    }
    absl::erase_if(copy.announced,
                   [&](uint32_t id) { return id <= highest_table && !tables.contains(id); });
  }
}

JobState* Engine::Impl::JobOf(const std::string& name) {
  const auto [it, is_new] = jobs.try_emplace(name);
  if (is_new) {
    it->second.name = name;
    auto account = accounts.find(name);
    if (account == accounts.end()) {
      std::shared_ptr<JobMemory> memory;
      if (options.job_memory) memory = options.job_memory(name);
      if (memory == nullptr) memory = std::make_shared<JobMemory>();
      account = accounts.try_emplace(name, std::move(memory)).first;
    }
    it->second.account = &account->second;
  }
  return &it->second;
}

// The part of a job's limit on this server: its share for each replica of a partition. All shards
// of the server compute the same.
void Engine::Impl::LimitJobs(const v1::ClusterView& view, const ViewDifference& what) {
  uint64_t owned = 0;
  for (const v1::Partition& p : view.partitions()) {
    const auto here = [&](const v1::Replica& r) { return r.server() == options.server; };
    owned += p.primary() != 0 && p.primary() == options.server ? 1 : 0;
    owned += static_cast<uint64_t>(std::count_if(p.followers().begin(), p.followers().end(), here));
    owned += static_cast<uint64_t>(std::count_if(p.learners().begin(), p.learners().end(), here));
  }
  const auto share_of = [&](const v1::Job* job) {
    const uint64_t limit = job == nullptr ? 0 : job->limits().memory_bytes();
    return limit == 0 ? JobMemory::kUnlimited : ShareOfServer(limit, owned, partitions.size());
  };
  if (!what.all && owned == owned_here) {
    for (const std::string& name : what.jobs) {
      const auto it = accounts.find(name);
      if (it != accounts.end()) it->second.job().SetLimit(share_of(FindJobNamed(name, view)));
    }
    return;
  }
  owned_here = owned;
  absl::flat_hash_map<std::string, const v1::Job*> limited;
  for (const v1::Job& j : view.jobs()) {
    if (j.limits().memory_bytes() > 0) limited[j.name()] = &j;
  }
  for (auto& [name, account] : accounts) {
    const auto it = limited.find(name);
    account.job().SetLimit(share_of(it == limited.end() ? nullptr : it->second));
  }
}

void Engine::Impl::UpdateJob(const std::string& name, const v1::Job* job) {
  std::vector<uint64_t>& reading = readers_of[name];
  for (const uint64_t reader : reading) readers.erase(reader);
  reading.clear();
  refused_jobs.erase(name);
  const v1::Job* followed = job;
  if (job != nullptr) {
    for (const v1::Worker& member : job->members()) {
      newest_member = std::max(newest_member, member.incarnation());
      if (member.rank() < 0 && member.only_job().empty()) reading.push_back(member.incarnation());
    }
    readers.insert(reading.begin(), reading.end());
    if (job->expected_workers() > kMaxWorkers) {
      refused_jobs[name] = absl::InvalidArgumentError(
          absl::StrCat("job \"", name, "\" expects ", job->expected_workers(),
                       " workers; allowed: at most ", kMaxWorkers));
      followed = nullptr;
    }
  }
  if (reading.empty()) readers_of.erase(name);
  leaving.insert(name);
  JobState* state = followed != nullptr ? JobOf(name) : nullptr;
  if (const auto it = jobs.find(name); it != jobs.end()) state = &it->second;
  if (state == nullptr) return;
  state->change = followed == nullptr ? state->members.Clear() : state->members.Update(*followed);
  if (state->change != Members::Change::kNone) changed_jobs.push_back(state);
}

absl::Status Engine::Impl::UpdateJobs(const v1::ClusterView& view, const ViewDifference& what) {
  for (const v1::Server& s : view.servers()) {
    newest_member = std::max(newest_member, s.incarnation());
  }
  if (what.all) {
    std::map<std::string, const v1::Job*> present;
    for (const auto& [name, job] : jobs) present[name] = nullptr;
    for (const auto& [name, reading] : readers_of) present[name] = nullptr;
    for (const auto& [name, why] : refused_jobs) present[name] = nullptr;
    for (const v1::Job& j : view.jobs()) present[j.name()] = &j;
    for (const auto& [name, job] : present) UpdateJob(name, job);
  } else {
    for (const std::string& name : what.jobs) UpdateJob(name, FindJobNamed(name, view));
  }
  return refused_jobs.empty() ? absl::OkStatus() : refused_jobs.begin()->second;
}

absl::Status Engine::Impl::CreateDense(const v1::Table& table, TableState* state) {
  absl::StatusOr<std::unique_ptr<DenseTable>> created = DenseTable::Create(
      table, static_cast<uint32_t>(partitions.size()), &pool, state->job->account);
  if (!created.ok()) return created.status();
  DenseState& dense = state->dense;
  dense.table = *std::move(created);
  const v1::Consistency consistency = table.spec().consistency();
  dense.parking =
      std::make_unique<DeferredPulls>(dense.table.get(), &sink,
                                      /*by_version=*/consistency != v1::CONSISTENCY_SSP);
  const DenseParts parts = {dense.table.get(), dense.parking.get(), &pool, &state->job->members,
                            &sink};
  dense.consistency = consistency == v1::CONSISTENCY_SYNC  ? MakeSync(parts)
                      : consistency == v1::CONSISTENCY_SSP ? MakeSsp(parts)
                                                           : MakeAsync(parts);
  state->table = dense.table.get();
  state->parking = dense.parking.get();
  state->consistency = dense.consistency.get();
  return absl::OkStatus();
}

absl::Status Engine::Impl::CreateRows(const v1::Table& table, TableState* state) {
  absl::StatusOr<std::unique_ptr<EmbeddingTable>> created = EmbeddingTable::Create(
      table, static_cast<uint32_t>(partitions.size()), &pool, state->job->account, &cold);
  if (!created.ok()) return created.status();
  RowState& rows = state->rows;
  rows.table = *std::move(created);
  rows.table->SetSeconds(seconds);
  if (rows.table->evicts()) evicting.insert(table.id());
  const v1::Consistency consistency = table.spec().consistency();
  rows.parking =
      std::make_unique<DeferredLookups>(rows.table.get(), &sink,
                                        /*by_version=*/consistency != v1::CONSISTENCY_SSP);
  const RowParts parts = {rows.table.get(), rows.parking.get(), &pool, &state->job->members, &sink};
  rows.consistency =
      consistency == v1::CONSISTENCY_SYNC ? MakeSyncRows(parts) : MakeAsyncRows(parts);
  state->table = rows.table.get();
  state->parking = rows.parking.get();
  state->consistency = rows.consistency.get();
  return absl::OkStatus();
}

absl::Status Engine::Impl::CreateTable(const v1::Table& table, TableState* state) {
  state->job = JobOf(table.spec().job());
  state->job->tables.insert(table.id());
  state->lacks_cold_store = HotBytes(table.spec()) > 0 && !cold.has_store();
  return table.spec().dim() > 0 ? CreateRows(table, state) : CreateDense(table, state);
}

void Engine::Impl::LeaveLocalPartition(TableState* state, uint32_t slice, ReplyStatus why) {
  const uint32_t partition = state->table->life(slice).partition;
  state->consistency->FailLocalPartition(slice, why, /*keep=*/false);
  log.FailWaiters(state->table->id(), partition, why);
  log.Disown(state->table->id(), partition);
}

bool Engine::Impl::HasToPlace(const v1::Table& table, const TableState& state) const {
  if (partitions_moved || state.placement.empty()) return true;
  if (state.starved && state.table->MayAcquire()) return true;
  const auto& lost = table.lost_partitions();
  return !std::equal(lost.begin(), lost.end(), state.lost.begin(), state.lost.end());
}

// Follows the view's partitions of the table.
absl::Status Engine::Impl::Place(const v1::Table& table, TableState* state) {
  ++tables_placed;
  state->lost.assign(table.lost_partitions().begin(), table.lost_partitions().end());
  std::vector<Placement> placement(partitions.size());
  for (size_t p = 0; p < partitions.size(); ++p) {
    placement[p].ours = partitions[p].ours || partitions[p].copy;
    placement[p].copy = partitions[p].copy;
  }
  for (const uint32_t p : table.lost_partitions()) {
    if (p < placement.size()) placement[p].lost = true;
  }
  PartitionedTable& sliced = *state->table;
  bool renewed = false;
  for (uint32_t s = 0; s < sliced.slices(); ++s) {
    const uint32_t p = sliced.life(s).partition;
    renewed |= partitions[p].renewed;
    if (partitions[p].renewed && sliced.gone(s)) sliced.Forget(s);
    if (!sliced.ready(s)) continue;
    const bool keep = placement[p].ours && !placement[p].lost && !partitions[p].stale;
    if (keep && !partitions[p].epoch_changed) continue;
    // Also where it is lost: callers learn that from the view, which may be over in theirs.
    const ReplyStatus why = placement[p].lost && failpoints().lost_by_old_view
                                ? ReplyStatus::kDataLoss
                                : ReplyStatus::kWrongEpoch;
    if (keep) {
      state->consistency->FailLocalPartition(s, why, /*keep=*/true);
      // Another may have been its primary meanwhile.
      if (EmbeddingTable* rows = state->rows.table.get()) rows->changed(s) = nullptr;
    } else {
      LeaveLocalPartition(state, s, why);
    }
    if (!failpoints().forget_deferred) state->parking->FailLocalPartition(s, why);
    if (keep) continue;
    // Everything of a table that is being restored can be loaded again.
    const bool fresh = placement[p].lost || partitions[p].renewed || state->restore != nullptr;
    sliced.Release(s, /*gone=*/!fresh);
    state->marks.erase(p);
    copies[p].announced.erase(sliced.id());
  }
  if (placement == state->placement && !state->starved && !renewed) return absl::OkStatus();
  std::vector<bool> before(sliced.slices());
  for (uint32_t s = 0; s < before.size(); ++s) before[s] = sliced.ready(s);
  const absl::Status acquired = sliced.Acquire(placement);
  const bool served = state->restore != nullptr && !table.restoring();
  // Slices that are new here, too: what is lost when a shard joins it has never had.
  for (uint32_t s = 0; served && s < sliced.slices(); ++s) {
    const uint32_t p = sliced.life(s).partition;
    const bool was_lost = p < state->placement.size() && state->placement[p].lost;
    if (placement[p].lost || !(was_lost || partitions[p].renewed)) continue;
    if (!failpoints().lose_what_is_reset) state->restore->SetReset(s);
  }
  state->starved = !acquired.ok();
  state->placement = std::move(placement);
  for (uint32_t s = 0; s < sliced.slices(); ++s) {
    if (sliced.ready(s) && (s >= before.size() || !before[s])) Announce(*state, s);
  }
  state->consistency->Resize();
  return acquired;
}

// A new generation of its job. Replicas follow by a record.
void Engine::Impl::ResetTable(TableState* state) {
  // A reset applies entries that the follower may not have yet.
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    log.HoldReads(state->table->id(), state->table->life(s).partition);
  }
  state->consistency->Reset();
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const uint32_t p = state->table->life(s).partition;
    if (!state->table->ready(s) || !partitions[p].ours) continue;
    // A follower until this view: it may have steps of this generation. Adopt() knows.
    if (partitions[p].promoted) {
      const auto marks = state->marks.find(p);
      const bool has_steps = marks != state->marks.end() &&
                             marks->second.generation == state->job->members.generation();
      if (!has_steps || !failpoints().reset_promoted) continue;
    }
    // A table that is being restored gets versions for whatever generation it begins with.
    const bool restoring = state->restore != nullptr;
    if (!restoring) state->table->SetVersions(s, 0);
    if (log.mode(p) == ReplicaLog::Mode::kAlone || !log.Replicated(p, state->table->id())) continue;
    const ReplicaKind kind = restoring ? ReplicaKind::kSettle : ReplicaKind::kReset;
    log.Note(p, state->table->id(), HeaderFor(kind, p, *state).header);
  }
}

void Engine::Impl::FollowRestore(const v1::Table& table, TableState* state) {
  if (state->restore == nullptr) return;
  if (!table.restoring()) return EndRestoring(state);
  for (uint32_t s = 0; s < state->table->slices(); ++s) {
    const PartitionInfo& p = partitions[state->table->life(s).partition];
    const bool ready = state->table->ready(s);
    if (!p.ours || p.epoch_changed || !ready) state->restore->Forget(s);
    if (p.promoted && ready && !failpoints().forget_inherited) state->restore->Inherit(s);
  }
}

absl::Status Engine::Impl::UpdateTable(const v1::Table& table) {
  ++tables_followed;
  const auto [it, is_new] = tables.try_emplace(table.id());
  TableState& state = it->second;
  highest_table = std::max(highest_table, table.id());
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
    AbortCheckpoints(table.id(), absl::AbortedError("its job has begun anew"));
    ResetTable(&state);
    // Data kept for the workers of the run before may have been in the way.
    if (!placed.ok()) placed = state.unserved = Place(table, &state);
  } else if (of_workers) {
    state.consistency->Resize();
    state.consistency->MembersChanged();
  }
  if (of_workers) ForgetRetired(&state);
  const Members& members = state.job->members;
  state.parking->FailWorkers([&](uint64_t worker) {
    return members.Find(worker) == nullptr && !readers.contains(worker);
  });
  return placed;
}

std::vector<uint32_t> Engine::Impl::ToFollow(const v1::ClusterView& view,
                                             const ViewDifference& what) const {
  std::vector<uint32_t> ids;
  if (what.all) {
    for (const v1::Table& t : view.tables()) ids.push_back(t.id());
    return ids;
  }
  std::set<uint32_t> some = what.tables;
  for (const JobState* job : changed_jobs) some.insert(job->tables.begin(), job->tables.end());
  for (const uint32_t id : unserved) {
    const TableState& state = tables.at(id);
    if (state.starved && state.table->MayAcquire()) some.insert(id);
  }
  ids.assign(some.begin(), some.end());
  return ids;
}

// The first error, in the order of the view, also of tables that have one since an earlier view.
absl::Status Engine::Impl::UpdateTables(const v1::ClusterView& view,
                                        const std::vector<uint32_t>& ids) {
  std::map<uint32_t, absl::Status> errors;
  for (const uint32_t id : ids) {
    const v1::Table* table = FindTableById(id, view);
    if (table == nullptr) continue;
    absl::Status status = UpdateTable(*table);
    if (tables.at(id).unserved.ok()) {
      unserved.erase(id);
    } else {
      unserved.insert(id);
    }
    if (!status.ok()) errors[id] = std::move(status);
  }
  for (const uint32_t id : unserved) errors.try_emplace(id, tables.at(id).unserved);
  return errors.empty() ? absl::OkStatus() : errors.begin()->second;
}

// Jobs that the view has no more and no table names; accounts that nothing is left of.
void Engine::Impl::ForgetJobs(const ViewDifference& what) {
  if (what.all) {
    for (const auto& [name, job] : jobs) leaving.insert(name);
    for (const auto& [name, account] : accounts) leaving.insert(name);
  }
  for (auto it = leaving.begin(); it != leaving.end();) {
    const auto job = jobs.find(*it);
    const bool forget =
        job != jobs.end() && !job->second.members.known() && job->second.tables.empty();
    if (forget) jobs.erase(job);
    const auto account = accounts.find(*it);
    const bool has_job = jobs.contains(*it);
    // Its memory may still be written out.
    const bool stays = !has_job && account != accounts.end() && account->second.bytes() > 0;
    if (!has_job && !stays && account != accounts.end()) accounts.erase(account);
    it = stays ? std::next(it) : leaving.erase(it);
  }
}

bool Engine::HasStarved() const {
  const Impl& e = *impl_;
  return std::any_of(e.unserved.begin(), e.unserved.end(),
                     [&](uint32_t id) { return e.tables.at(id).starved; });
}

bool Engine::RetryStarved(const v1::ClusterView& view, absl::Status* applied) {
  Impl& e = *impl_;
  if (e.unserved.empty() || view.revision() != e.revision) return false;
  ViewDifference nothing;
  nothing.all = nothing.placement = false;
  const std::vector<uint32_t> starved = e.ToFollow(view, nothing);
  if (starved.empty()) return false;
  // What the last view moved has moved.
  e.partitions_moved = false;
  for (PartitionInfo& p : e.partitions) {
    p.epoch_changed = p.renewed = p.promoted = p.stale = false;
  }
  *applied = e.UpdateTables(view, starved);
  e.RetryBlocked();
  return true;
}

absl::Status Engine::ApplyView(const v1::ClusterView& view,
                               absl::Span<const v1::ViewChange> changes) {
  Impl& e = *impl_;
  if (view.revision() < e.revision) return absl::OkStatus();
  if (const absl::Status s = e.CheckPartitions(view); !s.ok()) return s;
  ViewDifference what = DifferenceOf(e.revision, view, changes);
  what.all |= e.partitions.empty();
  e.revision = view.revision();
  e.UpdatePartitions(view);
  what.all |= e.partitions_moved;
  e.changed_jobs.clear();
  e.FollowCheckpoints(view, what);
  e.DropTables(view, what);
  absl::Status first = e.UpdateJobs(view, what);
  e.LimitJobs(view, what);
  // Without partitions nothing can be placed: tables are not known yet.
  if (!e.partitions.empty()) {
    const std::vector<uint32_t> followed = e.ToFollow(view, what);
    first.Update(e.UpdateTables(view, followed));
    e.FollowCopies(view, what, followed);
  }
  for (JobState* job : e.changed_jobs) job->change = Members::Change::kNone;
  e.ForgetJobs(what);
  e.RetryBlocked();
  return first;
}

}  // namespace verbena::shard
