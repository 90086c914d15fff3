// Requests about dense tables, and ends of steps of all tables.
#include <algorithm>

#include "shard/codec/codec.h"
#include "shard/engine_impl.h"
#include "shard/failpoints.h"

namespace verbena::shard {

ReplyStatus Worse(ReplyStatus a, ReplyStatus b) {
  const auto bad = [](ReplyStatus s) {
    return s == ReplyStatus::kDuplicate ? ReplyStatus::kOk : s;
  };
  return std::max(bad(a), bad(b));
}

ReplyStatus Engine::Impl::Find(uint64_t worker, uint32_t table, TableState** state,
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
  if (*member != nullptr) return ReplyStatus::kOk;
  if (!failpoints().expire_other_jobs) {
    // Reads are all that an observer may do, and no read looks at the index.
    static constexpr Members::Member kReader = {-1, UINT32_MAX};
    if (readers.contains(worker)) {
      *member = &kReader;
      return ReplyStatus::kOk;
    }
    if (IsMember(worker)) return ReplyStatus::kOtherJob;
  }
  return members.known() ? ReplyStatus::kExpired : ReplyStatus::kNotReady;
}

bool Engine::Impl::IsMember(uint64_t incarnation) const {
  return std::any_of(jobs.begin(), jobs.end(), [&](const auto& job) {
    return job.second.members.Find(incarnation) != nullptr;
  });
}

ReplyStatus Engine::Impl::FindLocalPartition(const TableState& state, const Group& group,
                                             uint32_t* slice) const {
  if (group.partition >= partitions.size()) return ReplyStatus::kOutOfRange;
  const PartitionInfo& p = partitions[group.partition];
  if ((!p.ours || p.epoch != group.epoch) && !failpoints().ignore_epoch) {
    return ReplyStatus::kWrongEpoch;
  }
  // A view that is as new as this one has the loss, and its owner asks for nothing here: the
  // caller's is newer, and has the table reset.
  if (state.placement[group.partition].lost) {
    return failpoints().lost_by_old_view ? ReplyStatus::kDataLoss : ReplyStatus::kNotReady;
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

ReplyStatus Engine::Impl::FindChunk(const TableState& state, const Group& group,
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

ReplyStatus Engine::Impl::CheckPayload(const PushRequest& request, const DenseTable& table,
                                       const DenseTable::Chunk& chunk) const {
  if (request.dtype != table.push_type()) return ReplyStatus::kMalformed;
  // An empty record: its buffer was released, it only settles. It contributes zero.
  if (request.group.count == 0 && request.payload.empty()) return ReplyStatus::kOk;
  if (request.group.count != chunk.elements) return ReplyStatus::kOutOfRange;
  // A scale is an f32, too.
  const uint32_t alignment = InBlocks(request.dtype) ? sizeof(float) : ElementBytes(request.dtype);
  const bool aligned = reinterpret_cast<uintptr_t>(request.payload.data()) % alignment == 0;
  if (request.payload.size() != PayloadBytes(request.dtype, chunk.elements) || !aligned) {
    return ReplyStatus::kMalformed;
  }
  const bool formed = codec::WellFormed(request.dtype, request.payload.data(), chunk.elements);
  return formed ? ReplyStatus::kOk : ReplyStatus::kMalformed;
}

// A sync push does not make a record; its step's commit does, and waits for room itself.
bool Engine::Impl::LacksRoom(const TableState& state, absl::Span<const Group> groups) {
  return state.table->spec().consistency() != v1::CONSISTENCY_SYNC && LacksLogRoom(state, groups);
}

bool Engine::Impl::LacksLogRoom(const TableState& state, absl::Span<const Group> groups) {
  return std::any_of(groups.begin(), groups.end(), [&](const Group& g) {
    return g.partition < partitions.size() && log.mode(g.partition) != ReplicaLog::Mode::kAlone &&
           log.Replicated(g.partition, state.table->id()) && !log.HasRoom(g.partition);
  });
}

PushOutcome Engine::Impl::Push(const PushRequest& request) {
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk && member->rank < 0) status = ReplyStatus::kPermissionDenied;
  if (status == ReplyStatus::kOk) status = FindChunk(*state, request.group, &chunk);
  if (status == ReplyStatus::kOk) {
    const DenseTable& table = *state->dense.table;
    status = CheckPayload(request, table, table.chunk(chunk));
  }
  if (status == ReplyStatus::kOk) status = CheckCopies(request.group.partition);
  if (status != ReplyStatus::kOk) return {false, false, {status, 0, 0}};
  if (LacksRoom(*state, {&request.group, 1})) {
    return {false, false, {ReplyStatus::kResourceExhausted, 0, 0}, true};
  }
  const PushOutcome outcome = state->dense.consistency->Push(request, *member, chunk);
  if (outcome.held || outcome.answer.status == ReplyStatus::kOk) {
    sink.Pushed(request.payload.size(), &state->table->counters());
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
  Impl& e = *impl_;
  e.log.Ask(&request.token);
  PushOutcome outcome = e.Push(request);
  outcome.replicating = e.log.EndRequest(outcome.answer, {&outcome.answer.status, 1});
  if (!outcome.held && !outcome.no_room) e.CountAnswer(outcome.answer.status);
  return outcome;
}

PullOutcome Engine::Pull(const PullRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = e.Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk) status = e.FindChunk(*state, request.group, &chunk);
  if (status == ReplyStatus::kOk && request.dtype != state->dense.table->pull_type()) {
    status = ReplyStatus::kMalformed;
  }
  if (status == ReplyStatus::kOk) status = e.CheckRead(request.group.partition, request.table);
  PullOutcome outcome;
  if (status != ReplyStatus::kOk) {
    e.CountAnswer(status);
    outcome.answer.status = status;
    return outcome;
  }
  const DenseState& dense = state->dense;
  if (!dense.consistency->Includes(*member, chunk, request.group.sequence)) {
    outcome.answer = {ReplyStatus::kSequenceGap, 0, 0};
    e.CountAnswer(outcome.answer.status);
    return outcome;
  }
  if (!dense.consistency->Readable(*member, chunk, request.min_version, &outcome.answer)) {
    if (!request.may_park) {
      outcome.answer = {ReplyStatus::kResourceExhausted, 0, 0};
      e.CountAnswer(outcome.answer.status);
      return outcome;
    }
    dense.parking->DeferPull(chunk, request);
    outcome.kind = PullOutcome::Kind::kDeferred;
    return outcome;
  }
  if (!dense.table->PinToPull(chunk, &outcome.view)) {
    outcome.answer = {ReplyStatus::kResourceExhausted, 0, 0};
    e.CountAnswer(outcome.answer.status);
    return outcome;
  }
  outcome.kind = PullOutcome::Kind::kReady;
  const bool ssp = dense.table->spec().consistency() == v1::CONSISTENCY_SSP;
  e.sink.Pulled(outcome.view, &dense.table->counters(), ssp ? &outcome.answer.detail : nullptr);
  return outcome;
}

GroupsOutcome Engine::Impl::RefuseGroups(size_t groups, ReplyStatus status) {
  group_status.assign(groups, status);
  CountAnswer(status);
  return {false, false, {status, 0, 0}, group_status};
}

GroupsOutcome Engine::Impl::NoRoom(size_t groups) {
  group_status.assign(groups, ReplyStatus::kResourceExhausted);
  return {false, false, {ReplyStatus::kResourceExhausted, 0, 0}, group_status, true};
}

GroupsOutcome Engine::EndStep(const GroupsRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && member->rank < 0) found = ReplyStatus::kPermissionDenied;
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  if (e.LacksRoom(*state, request.groups)) return e.NoRoom(request.groups.size());
  GroupsOutcome outcome;
  e.group_status.clear();
  e.log.Ask(&request.token);
  for (const Group& g : request.groups) {
    e.log.AskGroup(static_cast<uint32_t>(e.group_status.size()));
    uint32_t slice = 0;
    ReplyStatus status = e.FindLocalPartition(*state, g, &slice);
    if (status == ReplyStatus::kOk) status = e.CheckCopies(g.partition);
    if (status == ReplyStatus::kOk && slice != PartitionedTable::kNone) {
      uint32_t missing = 0;
      status = state->consistency->EndStep(g, request.min_version, request.worker, *member, slice,
                                           &missing);
      outcome.answer.detail += missing;
    }
    e.group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  e.CountAnswer(outcome.answer.status);
  outcome.replicating = e.log.EndRequest(outcome.answer, e.group_status);
  outcome.group_status = e.group_status;
  return outcome;
}

GroupsOutcome Engine::Await(const GroupsRequest& request) {
  Impl& e = *impl_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  const ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  GroupsOutcome outcome;
  e.group_status.clear();
  e.await_slices.clear();
  for (const Group& g : request.groups) {
    uint32_t slice = 0;
    const ReplyStatus status = e.FindLocalPartition(*state, g, &slice);
    const bool waits = status == ReplyStatus::kOk && slice != PartitionedTable::kNone &&
                       !state->consistency->Reached(slice, request.min_version);
    if (waits) e.await_slices.push_back(slice);
    // Used only if the request is not deferred: it may not be, or another group is refused.
    e.group_status.push_back(!waits             ? status
                             : request.may_park ? ReplyStatus::kNotReady
                                                : ReplyStatus::kResourceExhausted);
    const bool refused = !waits || !request.may_park;
    if (refused) outcome.answer.status = Worse(outcome.answer.status, e.group_status.back());
  }
  if (outcome.answer.status == ReplyStatus::kOk && !e.await_slices.empty()) {
    state->parking->DeferAwait(request, e.await_slices);
    outcome.deferred = true;
    return outcome;
  }
  e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

}  // namespace verbena::shard
