#include "shard/engine_core.h"

#include <algorithm>
#include <utility>

#include "shard/failpoints.h"

namespace verbena::shard {

EngineCore::EngineCore(EngineOptions o)
    : options(std::move(o)),
      jobs(options),
      pool(options.allocator != nullptr ? options.allocator : &heap, options.spare_buffers,
           &sink.counters.resident_bytes),
      cold(options.cold_store),
      log(&pool, &sink, options.replica_log),
      view(this),
      placement(this),
      replicas(this),
      records(this),
      catch_up(this),
      proofs(this),
      copy_reads(this),
      copies(this, &pool, options.replica_log),
      checkpoints(this),
      restores(this),
      cold_events(this) {
  sink.log = &log;
  if (options.commit_observer) {
    sink.commit_observer = [this](const Commit& commit) { Observe(commit); };
  }
  group_status.reserve(kMaxGroups);
  await_slices.reserve(kMaxGroups);
}

void EngineCore::Observe(Commit commit) const {
  const DenseTable* dense = tables.at(commit.table).dense.table.get();
  const uint32_t partition = dense != nullptr ? dense->partition_of(commit.chunk) : commit.chunk;
  commit.server = options.server;
  commit.epoch = partitions[partition].ours ? partitions[partition].epoch : 0;
  options.commit_observer(commit);
}

void EngineCore::RetryBlocked() {
  if (sink.blocked == 0) return;
  for (auto& [id, state] : tables) {
    if (state.consistency != nullptr) state.consistency->Retry();
  }
}

void EngineCore::FollowRoom() {
  if (!log.TakeRoom()) return;
  room = true;
  RetryBlocked();
}

void EngineCore::LeaveLocalPartition(TableState* state, uint32_t slice, ReplyStatus why) {
  const uint32_t partition = state->table->life(slice).partition;
  state->consistency->FailLocalPartition(slice, why, /*keep=*/false);
  log.FailWaiters(state->table->id(), partition, why);
  log.Disown(state->table->id(), partition);
}

ReplyStatus EngineCore::Find(uint64_t worker, uint32_t table, TableState** state,
                             const Members::Member** member) {
  const auto it = tables.find(table);
  if (it == tables.end()) {
    return table > highest_table ? ReplyStatus::kNotReady : ReplyStatus::kUnknownTable;
  }
  *state = &it->second;
  if (it->second.table == nullptr) return ReplyStatus::kUnavailable;
  if (it->second.restore != nullptr) return ReplyStatus::kNotReady;
  const Members& members = it->second.job->members;
  *member = members.Find(worker);
  // A worker makes requests once its own view has its rank: this one is older.
  if (*member != nullptr) return (*member)->joining ? ReplyStatus::kNotReady : ReplyStatus::kOk;
  if (!VERBENA_FAILPOINT(shard, expire_other_jobs)) {
    // Reads are all that an observer may do, and no read looks at the index.
    static constexpr Members::Member kReader = {-1, UINT32_MAX};
    if (jobs.IsReader(worker)) {
      *member = &kReader;
      return ReplyStatus::kOk;
    }
    if (jobs.IsMember(worker)) return ReplyStatus::kOtherJob;
  }
  return members.known() ? ReplyStatus::kExpired : ReplyStatus::kNotReady;
}

ReplyStatus EngineCore::FindLocalPartition(const TableState& state, const Group& group,
                                           uint32_t* slice) const {
  if (group.partition >= partitions.size()) return ReplyStatus::kOutOfRange;
  const PartitionInfo& p = partitions[group.partition];
  if ((!p.ours || p.epoch != group.epoch) && !VERBENA_FAILPOINT(shard, ignore_epoch)) {
    return ReplyStatus::kWrongEpoch;
  }
  // A view that is as new as this one has the loss, and its owner asks for nothing here: the
  // caller's is newer, and has the table reset.
  if (state.placement[group.partition].lost) {
    return VERBENA_FAILPOINT(shard, lost_by_old_view) ? ReplyStatus::kDataLoss
                                                      : ReplyStatus::kNotReady;
  }
  *slice = state.table->slice_of(group.partition);
  if (*slice != PartitionedTable::kNone) {
    switch (state.table->life(*slice).state) {
      case PartitionedTable::LocalPartitionState::kReady:
        return ReplyStatus::kOk;
      case PartitionedTable::LocalPartitionState::kGone:
        return ReplyStatus::kDataLoss;
      default:
        break;
    }
  }
  if (state.starved) return ReplyStatus::kResourceExhausted;
  return *slice == PartitionedTable::kNone ? ReplyStatus::kOk : ReplyStatus::kNotReady;
}

ReplyStatus EngineCore::CheckAdmission(const TableState& state, absl::Span<const Group> groups) {
  const uint32_t known = state.job->members.admission();
  const bool ahead = std::any_of(groups.begin(), groups.end(),
                                 [known](const Group& g) { return g.admission > known; });
  return ahead && !VERBENA_FAILPOINT(shard, ignore_admission) ? ReplyStatus::kNotReady
                                                              : ReplyStatus::kOk;
}

ReplyStatus EngineCore::FindChunk(const TableState& state, const Group& group,
                                  uint32_t* chunk) const {
  uint32_t slice = 0;
  const ReplyStatus status = FindLocalPartition(state, group, &slice);
  if (status != ReplyStatus::kOk) return status;
  const DenseTable* table = state.dense.table.get();
  if (table == nullptr) return ReplyStatus::kOutOfRange;  // an embedding table has no chunks
  if (group.index >= table->layout().chunks() ||
      table->partition_of(group.index) != group.partition) {
    return ReplyStatus::kOutOfRange;
  }
  *chunk = table->local_chunk(group.index);
  return *chunk == PartitionedTable::kNone ? ReplyStatus::kNotReady : ReplyStatus::kOk;
}

ReplyStatus EngineCore::FindRows(uint64_t worker, uint32_t table, TableState** state,
                                 const Members::Member** member) {
  const ReplyStatus status = Find(worker, table, state, member);
  if (status != ReplyStatus::kOk) return status;
  return (*state)->rows.table == nullptr ? ReplyStatus::kOutOfRange : ReplyStatus::kOk;
}

ReplyStatus EngineCore::FindKeys(const TableState& state, const Group& group,
                                 absl::Span<const uint64_t> keys, uint32_t* slice) const {
  const ReplyStatus status = FindLocalPartition(state, group, slice);
  if (status != ReplyStatus::kOk) return status;
  if (*slice == PartitionedTable::kNone) return ReplyStatus::kNotReady;
  const uint32_t table = state.table->id();
  const auto count = static_cast<uint32_t>(partitions.size());
  for (const uint64_t key : keys) {
    if (PartitionOfKey(table, key, count) != group.partition) return ReplyStatus::kOutOfRange;
  }
  return ReplyStatus::kOk;
}

// A sync push does not make a record; its step's commit does, and waits for room itself.
bool EngineCore::LacksRoom(const TableState& state, absl::Span<const Group> groups) {
  return state.table->spec().consistency() != v1::CONSISTENCY_SYNC &&
         std::any_of(groups.begin(), groups.end(), [&](const Group& g) {
           return !LeavesOut(state, groups, g.partition) && LacksLogRoom(state, {&g, 1});
         });
}

bool EngineCore::LeavesOut(const TableState& state, absl::Span<const Group> groups,
                           uint32_t partition) const {
  return groups.size() > 1 && state.table->spec().consistency() != v1::CONSISTENCY_SYNC &&
         partition < partitions.size() && log.sealed(partition);
}

bool EngineCore::LacksLogRoom(const TableState& state, absl::Span<const Group> groups) {
  return std::any_of(groups.begin(), groups.end(), [&](const Group& g) {
    return g.partition < partitions.size() && log.mode(g.partition) != ReplicaLog::Mode::kAlone &&
           log.Replicated(g.partition, state.table->id()) && !log.HasRoom(g.partition);
  });
}

ReplyStatus Worse(ReplyStatus a, ReplyStatus b) {
  const auto bad = [](ReplyStatus s) {
    return s == ReplyStatus::kDuplicate ? ReplyStatus::kOk : s;
  };
  return std::max(bad(a), bad(b));
}

void EngineCore::CountAnswer(ReplyStatus status) {
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

GroupsOutcome EngineCore::RefuseGroups(size_t groups, ReplyStatus status) {
  group_status.assign(groups, status);
  CountAnswer(status);
  return {false, false, {status, 0, 0}, group_status};
}

GroupsOutcome EngineCore::NoRoom(size_t groups) {
  group_status.assign(groups, ReplyStatus::kResourceExhausted);
  return {false, false, {ReplyStatus::kResourceExhausted, 0, 0}, group_status, true};
}

}  // namespace verbena::shard
