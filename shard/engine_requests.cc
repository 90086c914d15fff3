// Requests about dense tables, and ends of steps of all tables.
#include <algorithm>

#include "shard/codec/codec.h"
#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

ReplyStatus CheckPayload(const PushRequest& request, const DenseTable& table,
                         const DenseTable::Chunk& chunk) {
  const ElementType type = request.array != 0 ? ElementType::kF32
                           : request.assigns  ? table.parameter_type()
                                              : table.push_type();
  if (request.array > table.StateArrays()) return ReplyStatus::kOutOfRange;
  if (request.dtype != type) return ReplyStatus::kMalformed;
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

PushOutcome PushTo(EngineCore& e, const PushRequest& request) {
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = e.Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk && member->rank < 0) status = ReplyStatus::kPermissionDenied;
  if (status == ReplyStatus::kOk) status = e.FindChunk(*state, request.group, &chunk);
  if (status == ReplyStatus::kOk) {
    const DenseTable& table = *state->dense.table;
    status = CheckPayload(request, table, table.chunk(chunk));
  }
  if (status == ReplyStatus::kOk) status = e.CheckCopies(request.group.partition);
  if (status == ReplyStatus::kOk) status = EngineCore::CheckAdmission(*state, {&request.group, 1});
  if (status != ReplyStatus::kOk) return {false, false, {status, 0, 0}};
  if (e.LacksRoom(*state, {&request.group, 1})) {
    return {false, false, {ReplyStatus::kResourceExhausted, 0, 0}, true};
  }
  const PushOutcome outcome = state->dense.consistency->Push(request, *member, chunk);
  if (outcome.held || outcome.answer.status == ReplyStatus::kOk) {
    e.sink.Pushed(request.payload.size(), &state->table->counters());
  }
  return outcome;
}

}  // namespace

PushOutcome Engine::Push(const PushRequest& request) {
  EngineCore& e = *core_;
  e.log.Ask(&request.token);
  PushOutcome outcome = PushTo(e, request);
  outcome.replicating = e.log.EndRequest(outcome.answer, {&outcome.answer.status, 1});
  if (!outcome.held && !outcome.no_room) e.CountAnswer(outcome.answer.status);
  return outcome;
}

PullOutcome Engine::Pull(const PullRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  uint32_t chunk = 0;
  ReplyStatus status = e.Find(request.worker, request.table, &state, &member);
  if (status == ReplyStatus::kOk) status = e.FindChunk(*state, request.group, &chunk);
  if (status == ReplyStatus::kOk) {
    const DenseTable& table = *state->dense.table;
    const ElementType type = request.array != 0 ? ElementType::kF32 : table.pull_type();
    if (request.array > table.StateArrays()) status = ReplyStatus::kOutOfRange;
    if (request.dtype != type) status = ReplyStatus::kMalformed;
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
  outcome.answer.applies = dense.table->chunk(chunk).applies;
  if (!dense.table->PinToPull(chunk, request.array, &outcome.view)) {
    outcome.answer = {ReplyStatus::kResourceExhausted, 0, 0};
    e.CountAnswer(outcome.answer.status);
    return outcome;
  }
  outcome.kind = PullOutcome::Kind::kReady;
  const bool ssp = dense.table->spec().consistency() == v1::CONSISTENCY_SSP;
  e.sink.Pulled(outcome.view, &dense.table->counters(), ssp ? &outcome.answer.detail : nullptr);
  return outcome;
}

GroupsOutcome Engine::EndStep(const GroupsRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && member->rank < 0) found = ReplyStatus::kPermissionDenied;
  if (found == ReplyStatus::kOk) found = EngineCore::CheckAdmission(*state, request.groups);
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  if (e.LacksRoom(*state, request.groups)) return e.NoRoom(request.groups.size());
  return ChangeGroups(&e, *state, request, [&](const Group& g, uint32_t slice, Answer* answer) {
    uint32_t missing = 0;
    const ReplyStatus status = state->consistency->EndStep(g, request.min_version, request.worker,
                                                           *member, slice, &missing);
    answer->detail += missing;
    return status;
  });
}

GroupsOutcome Engine::Await(const GroupsRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk) found = EngineCore::CheckAdmission(*state, request.groups);
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  GroupsOutcome outcome;
  e.group_status.clear();
  e.await_slices.clear();
  for (const Group& g : request.groups) {
    uint32_t slice = 0;
    const ReplyStatus status = e.FindLocalPartition(*state, g, &slice);
    if (status == ReplyStatus::kOk && slice != PartitionedTable::kNone) {
      state->consistency->Awaited(*member, slice);
    }
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
