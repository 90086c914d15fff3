#include "shard/engine.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "shard/partition/consistency.h"
#include "shard/partition/parking.h"
#include "shard/partition/roster.h"
#include "shard/partition/sink.h"
#include "shard/table/buffer_pool.h"
#include "shard/table/dense_table.h"

namespace verbena::shard {
namespace {

// A contribution entry is kept per chunk and rank.
constexpr uint32_t kMaxWorkers = 1 << 16;

// What the last view says of a partition.
struct PartitionInfo {
  uint64_t epoch = 0;
  bool ours = false;
  bool epoch_changed = false;  // by the view being applied
};

struct JobState {
  Roster roster;
  Roster::Change change = Roster::Change::kNone;  // by the view being applied
};

struct TableState {
  // Null: the specification cannot be served here; the table answers kUnavailable.
  std::unique_ptr<DenseTable> table;
  std::unique_ptr<Parking> parking;
  std::unique_ptr<Consistency> consistency;
  JobState* job = nullptr;
  std::vector<Placement> placement;  // by partition
  bool starved = false;              // slices that are not ready lack memory
};

ReplyStatus Worse(ReplyStatus a, ReplyStatus b) {
  const auto bad = [](ReplyStatus s) {
    return s == ReplyStatus::kDuplicate ? ReplyStatus::kOk : s;
  };
  return std::max(bad(a), bad(b));
}

}  // namespace

struct Engine::Impl {
  explicit Impl(EngineOptions o)
      : options(std::move(o)),
        pool(options.allocator != nullptr ? options.allocator : &heap, options.spare_buffers,
             &sink.counters.resident_bytes) {
    sink.commit_observer = options.commit_observer;
    group_status.reserve(kMaxGroups);
    await_slices.reserve(kMaxGroups);
  }

  // ---- the view ----
  absl::Status CheckPartitions(const v1::ClusterView& view) const;
  void UpdatePartitions(const v1::ClusterView& view);
  void DropTables(const v1::ClusterView& view);
  absl::Status UpdateJobs(const v1::ClusterView& view);
  absl::Status UpdateTable(const v1::Table& table);
  absl::Status CreateTable(const v1::Table& table, TableState* state);
  absl::Status Place(const v1::Table& table, TableState* state);
  void ForgetJobs();

  // ---- requests ----
  // Table and member of a request; kOk or why not.
  ReplyStatus Find(uint64_t worker, uint32_t table, TableState** state,
                   const Roster::Member** member);
  // kOk: *slice is ready, or kNone when the table has no chunk in the partition.
  ReplyStatus FindSlice(const TableState& state, const Group& group, uint32_t* slice) const;
  ReplyStatus FindChunk(const TableState& state, const Group& group, uint32_t* chunk) const;
  ReplyStatus CheckPayload(const PushRequest& request, const DenseTable::Chunk& chunk) const;
  PushOutcome Push(const PushRequest& request);
  void CountAnswer(ReplyStatus status);
  GroupsOutcome RefuseGroups(const GroupsRequest& request, ReplyStatus status);
  void RetryBlocked();

  const EngineOptions options;
  HeapAllocator heap;
  Sink sink;
  BufferPool pool;
  uint64_t revision = 0;
  uint32_t highest_table = 0;
  std::vector<PartitionInfo> partitions;
  std::map<std::string, JobState> jobs;   // nodes do not move: tables point at them
  std::map<uint32_t, TableState> tables;  // ordered: a replayed run makes the same events
  std::vector<ReplyStatus> group_status;
  std::vector<uint32_t> await_slices;
};

// ---- the view ----

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

void Engine::Impl::UpdatePartitions(const v1::ClusterView& view) {
  partitions.resize(view.partitions_size());
  for (const v1::Partition& p : view.partitions()) {
    PartitionInfo& info = partitions[p.id()];
    info.epoch_changed = info.epoch != p.epoch();
    info.epoch = p.epoch();
    info.ours = p.primary() != 0 && p.primary() == options.server && p.shard() == options.shard;
  }
}

void Engine::Impl::DropTables(const v1::ClusterView& view) {
  absl::flat_hash_set<uint32_t> present;
  for (const v1::Table& t : view.tables()) present.insert(t.id());
  bool dropped = false;
  for (auto it = tables.begin(); it != tables.end();) {
    if (present.contains(it->first)) {
      ++it;
      continue;
    }
    TableState& state = it->second;
    if (state.table != nullptr) {
      for (uint32_t s = 0; s < state.table->slices(); ++s) {
        state.consistency->FailSlice(s, ReplyStatus::kUnknownTable, /*keep=*/false);
      }
      state.parking->FailAll(ReplyStatus::kUnknownTable);
    }
    it = tables.erase(it);
    dropped = true;
  }
  if (dropped) pool.Trim();
}

absl::Status Engine::Impl::UpdateJobs(const v1::ClusterView& view) {
  absl::Status status;
  absl::flat_hash_map<std::string, const v1::Job*> present;
  for (const v1::Job& j : view.jobs()) {
    if (j.expected_workers() > kMaxWorkers) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat("job \"", j.name(), "\" expects ", j.expected_workers(),
                       " workers; allowed: at most ", kMaxWorkers)));
      continue;
    }
    present[j.name()] = &j;
    jobs.try_emplace(j.name());
  }
  for (auto& [name, job] : jobs) {
    const auto it = present.find(name);
    job.change = it == present.end() ? job.roster.Clear() : job.roster.Update(*it->second);
  }
  return status;
}

absl::Status Engine::Impl::CreateTable(const v1::Table& table, TableState* state) {
  state->job = &jobs[table.spec().job()];
  absl::StatusOr<std::unique_ptr<DenseTable>> created =
      DenseTable::Create(table, static_cast<uint32_t>(partitions.size()), &pool);
  if (!created.ok()) return created.status();
  state->table = *std::move(created);
  const v1::Consistency consistency = table.spec().consistency();
  state->parking = std::make_unique<Parking>(state->table.get(), &sink,
                                             /*by_version=*/consistency != v1::CONSISTENCY_SSP);
  const TableParts parts = {state->table.get(), state->parking.get(), &pool, &state->job->roster,
                            &sink};
  state->consistency = consistency == v1::CONSISTENCY_SYNC  ? MakeSync(parts)
                       : consistency == v1::CONSISTENCY_SSP ? MakeSsp(parts)
                                                            : MakeAsync(parts);
  return absl::OkStatus();
}

// Follows what the view says of the table's partitions.
absl::Status Engine::Impl::Place(const v1::Table& table, TableState* state) {
  std::vector<Placement> placement(partitions.size());
  for (size_t p = 0; p < partitions.size(); ++p) placement[p].ours = partitions[p].ours;
  for (const uint32_t p : table.lost_partitions()) {
    if (p < placement.size()) placement[p].lost = true;
  }
  DenseTable& dense = *state->table;
  for (uint32_t s = 0; s < dense.slices(); ++s) {
    if (dense.slice(s).state != DenseTable::SliceState::kReady) continue;
    const uint32_t p = dense.slice(s).partition;
    const bool keep = placement[p].ours && !placement[p].lost;
    if (keep && !partitions[p].epoch_changed) continue;
    const ReplyStatus why = placement[p].lost ? ReplyStatus::kDataLoss : ReplyStatus::kWrongEpoch;
    state->consistency->FailSlice(s, why, keep);
    state->parking->FailSlice(s, why);
    if (!keep) dense.Release(s, /*gone=*/!placement[p].lost);
  }
  if (placement == state->placement && !state->starved) return absl::OkStatus();
  const absl::Status acquired = dense.Acquire(placement);
  state->starved = !acquired.ok();
  state->placement = std::move(placement);
  state->consistency->Resize();
  return acquired;
}

absl::Status Engine::Impl::UpdateTable(const v1::Table& table) {
  const auto [it, is_new] = tables.try_emplace(table.id());
  TableState& state = it->second;
  highest_table = std::max(highest_table, table.id());
  if (is_new) {
    if (const absl::Status s = CreateTable(table, &state); !s.ok()) return s;
  }
  if (state.table == nullptr) return absl::OkStatus();
  const absl::Status placed = Place(table, &state);
  if (is_new || state.job->change == Roster::Change::kNone) return placed;
  if (state.job->change == Roster::Change::kGeneration) {
    state.consistency->Reset();
    state.table->ResetVersions();
  } else {
    state.consistency->Resize();
    state.consistency->RosterChanged();
  }
  const Roster& roster = state.job->roster;
  state.parking->FailWorkers([&](uint64_t worker) { return roster.Find(worker) == nullptr; });
  return placed;
}

// Jobs that the view has no more and no table names.
void Engine::Impl::ForgetJobs() {
  absl::flat_hash_set<const JobState*> named;
  for (const auto& [id, state] : tables) named.insert(state.job);
  for (auto it = jobs.begin(); it != jobs.end();) {
    const bool forget = !it->second.roster.known() && !named.contains(&it->second);
    it = forget ? jobs.erase(it) : std::next(it);
  }
}

absl::Status Engine::ApplyView(const v1::ClusterView& view) {
  Impl& e = *impl_;
  if (view.revision() < e.revision) return absl::OkStatus();
  if (const absl::Status s = e.CheckPartitions(view); !s.ok()) return s;
  e.revision = view.revision();
  e.UpdatePartitions(view);
  e.DropTables(view);
  absl::Status first = e.UpdateJobs(view);
  // Without partitions nothing can be placed: tables are not known yet.
  if (!e.partitions.empty()) {
    for (const v1::Table& t : view.tables()) first.Update(e.UpdateTable(t));
  }
  e.ForgetJobs();
  e.RetryBlocked();
  return first;
}

// ---- requests ----

ReplyStatus Engine::Impl::Find(uint64_t worker, uint32_t table, TableState** state,
                               const Roster::Member** member) {
  const auto it = tables.find(table);
  if (it == tables.end()) {
    return table > highest_table ? ReplyStatus::kNotReady : ReplyStatus::kUnknownTable;
  }
  *state = &it->second;
  if (it->second.table == nullptr) return ReplyStatus::kUnavailable;
  const Roster& roster = it->second.job->roster;
  if (!roster.known()) return ReplyStatus::kNotReady;
  *member = roster.Find(worker);
  return *member == nullptr ? ReplyStatus::kExpired : ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::FindSlice(const TableState& state, const Group& group,
                                    uint32_t* slice) const {
  if (group.partition >= partitions.size()) return ReplyStatus::kOutOfRange;
  const PartitionInfo& p = partitions[group.partition];
  if (!p.ours || p.epoch != group.epoch) return ReplyStatus::kWrongEpoch;
  if (state.placement[group.partition].lost) return ReplyStatus::kDataLoss;
  *slice = state.table->slice_of(group.partition);
  if (*slice != DenseTable::kNone) {
    switch (state.table->slice(*slice).state) {
      case DenseTable::SliceState::kReady:
        return ReplyStatus::kOk;
      case DenseTable::SliceState::kGone:
        return ReplyStatus::kDataLoss;
      default:
        break;
    }
  }
  if (state.starved) return ReplyStatus::kResourceExhausted;
  return *slice == DenseTable::kNone ? ReplyStatus::kOk : ReplyStatus::kNotReady;
}

ReplyStatus Engine::Impl::FindChunk(const TableState& state, const Group& group,
                                    uint32_t* chunk) const {
  uint32_t slice = 0;
  const ReplyStatus status = FindSlice(state, group, &slice);
  if (status != ReplyStatus::kOk) return status;
  if (group.index >= state.table->layout().chunks() ||
      state.table->partition_of(group.index) != group.partition) {
    return ReplyStatus::kOutOfRange;
  }
  *chunk = state.table->local_chunk(group.index);
  return *chunk == DenseTable::kNone ? ReplyStatus::kNotReady : ReplyStatus::kOk;
}

ReplyStatus Engine::Impl::CheckPayload(const PushRequest& request,
                                       const DenseTable::Chunk& chunk) const {
  if (request.dtype != ElementType::kF32) return ReplyStatus::kMalformed;
  // An empty record: its buffer was released, it only settles. It contributes zero.
  if (request.group.count == 0 && request.payload.empty()) return ReplyStatus::kOk;
  if (request.group.count != chunk.elements) return ReplyStatus::kOutOfRange;
  const bool aligned = reinterpret_cast<uintptr_t>(request.payload.data()) % alignof(float) == 0;
  if (request.payload.size() != size_t{chunk.elements} * sizeof(float) || !aligned) {
    return ReplyStatus::kMalformed;
  }
  return ReplyStatus::kOk;
}

PushOutcome Engine::Impl::Push(const PushRequest& request) {
  TableState* state = nullptr;
  const Roster::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk && member->rank < 0) status = ReplyStatus::kPermissionDenied;
  if (status == ReplyStatus::kOk) status = FindChunk(*state, request.group, &chunk);
  if (status == ReplyStatus::kOk) status = CheckPayload(request, state->table->chunk(chunk));
  if (status != ReplyStatus::kOk) return {false, {status, 0, 0}};
  const PushOutcome outcome = state->consistency->Push(request, *member, chunk);
  if (outcome.held || outcome.answer.status == ReplyStatus::kOk) {
    TableCounters& table = state->table->counters();
    ++table.pushes;
    table.push_bytes += request.payload.size();
    ++sink.counters.pushes;
    sink.counters.push_bytes += request.payload.size();
  }
  return outcome;
}

void Engine::Impl::CountAnswer(ReplyStatus status) {
  EngineCounters& c = sink.counters;
  switch (status) {
    case ReplyStatus::kOk:
    case ReplyStatus::kNonFinite:  // counted where it was found
      return;
    case ReplyStatus::kDuplicate:
      ++c.duplicates;
      return;
    default:
      ++c.refused;
  }
}

PushOutcome Engine::Push(const PushRequest& request) {
  const PushOutcome outcome = impl_->Push(request);
  if (!outcome.held) impl_->CountAnswer(outcome.answer.status);
  return outcome;
}

PullOutcome Engine::Pull(const PullRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Roster::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = e.Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk) status = e.FindChunk(*state, request.group, &chunk);
  if (status != ReplyStatus::kOk) {
    e.CountAnswer(status);
    return {PullOutcome::Kind::kAnswer, {status, 0, 0}, {}};
  }
  Answer answer;
  if (!state->consistency->Readable(*member, chunk, request.min_version, &answer)) {
    state->parking->ParkPull(chunk, request);
    return {PullOutcome::Kind::kParked, {}, {}};
  }
  const ChunkView view = state->table->Pin(chunk);
  const bool ssp = state->table->spec().consistency() == v1::CONSISTENCY_SSP;
  e.sink.Pulled(view, &state->table->counters(), ssp ? &answer.detail : nullptr);
  return {PullOutcome::Kind::kReady, answer, view};
}

GroupsOutcome Engine::Impl::RefuseGroups(const GroupsRequest& request, ReplyStatus status) {
  group_status.assign(request.groups.size(), status);
  CountAnswer(status);
  return {false, {status, 0, 0}, group_status};
}

GroupsOutcome Engine::EndStep(const GroupsRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Roster::Member* member = nullptr;
  ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && member->rank < 0) found = ReplyStatus::kPermissionDenied;
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request, found);
  GroupsOutcome outcome;
  e.group_status.clear();
  for (const Group& g : request.groups) {
    uint32_t slice = 0;
    ReplyStatus status = e.FindSlice(*state, g, &slice);
    if (status == ReplyStatus::kOk && slice != DenseTable::kNone) {
      uint32_t missing = 0;
      status = state->consistency->EndStep(g, request.min_version, request.worker, *member, slice,
                                           &missing);
      outcome.answer.detail += missing;
    }
    e.group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

GroupsOutcome Engine::Await(const GroupsRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Roster::Member* member = nullptr;
  const ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request, found);
  GroupsOutcome outcome;
  e.group_status.clear();
  e.await_slices.clear();
  for (const Group& g : request.groups) {
    uint32_t slice = 0;
    const ReplyStatus status = e.FindSlice(*state, g, &slice);
    const bool waits = status == ReplyStatus::kOk && slice != DenseTable::kNone &&
                       !state->consistency->Reached(slice, request.min_version);
    if (waits) e.await_slices.push_back(slice);
    // Matters only when another group is refused, so that nothing is parked.
    e.group_status.push_back(waits ? ReplyStatus::kNotReady : status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  if (outcome.answer.status == ReplyStatus::kOk && !e.await_slices.empty()) {
    state->parking->ParkAwait(request, e.await_slices);
    outcome.parked = true;
    return outcome;
  }
  e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

void Engine::Impl::RetryBlocked() {
  if (sink.blocked == 0) return;
  for (auto& [id, state] : tables) {
    if (state.consistency != nullptr) state.consistency->Retry();
  }
}

void Engine::Unpin(uint64_t pin) {
  if (impl_->pool.Unpin(pin)) impl_->RetryBlocked();
}

void Engine::ForgetLane(uint32_t lane) {
  Impl& e = *impl_;
  const auto forget = [&](const Event& event) {
    if (event.token.lane != lane) return false;
    if (event.kind == Event::Kind::kPullReady) e.pool.Unpin(event.view.pin);
    return true;
  };
  std::vector<Event>& events = e.sink.events;
  events.erase(std::remove_if(events.begin(), events.end(), forget), events.end());
  for (auto& [id, state] : e.tables) {
    if (state.table == nullptr) continue;
    state.consistency->ForgetLane(lane);
    state.parking->ForgetLane(lane);
  }
  e.RetryBlocked();
}

bool Engine::TakeEvents(std::vector<Event>* events) {
  std::vector<Event>& pending = impl_->sink.events;
  if (pending.empty()) return false;
  events->insert(events->end(), pending.begin(), pending.end());
  pending.clear();
  return true;
}

const EngineCounters& Engine::counters() const { return impl_->sink.counters; }

std::vector<TableStatistics> Engine::tables() const {
  std::vector<TableStatistics> tables;
  for (const auto& [id, state] : impl_->tables) {
    if (state.table == nullptr) continue;
    tables.push_back(
        {id, state.table->spec().name(), state.table->parameter_bytes(), state.table->counters()});
  }
  return tables;
}

Engine::Engine(EngineOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Engine::~Engine() = default;

}  // namespace verbena::shard
