// Requests of sync steps that commit in two phases.
#include "shard/engine_core.h"
#include "shard/partition/norms.h"

namespace verbena::shard {
namespace {

// EngineCore::Find() for a table whose steps need norms over several chunks.
ReplyStatus FindNorms(EngineCore& e, uint64_t worker, uint32_t table, TableState** state,
                      shard::Norms** norms) {
  const Members::Member* member = nullptr;
  const ReplyStatus status = e.Find(worker, table, state, &member);
  if (status != ReplyStatus::kOk) return status;
  if (member->rank < 0) return ReplyStatus::kPermissionDenied;
  DenseConsistency* consistency = (*state)->dense.consistency.get();
  *norms = consistency == nullptr ? nullptr : consistency->norms();
  return *norms == nullptr ? ReplyStatus::kMalformed : ReplyStatus::kOk;
}

}  // namespace

PullOutcome Engine::Norms(const NormsRequest& request) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  shard::Norms* norms = nullptr;
  const ReplyStatus found = FindNorms(e, request.worker, request.table, &state, &norms);
  PullOutcome outcome;
  outcome.answer.status = found;
  e.group_status.assign(request.groups.size(), found);
  e.await_slices.clear();
  for (size_t i = 0; found == ReplyStatus::kOk && i < request.groups.size(); ++i) {
    uint32_t slice = 0;
    ReplyStatus status = e.FindLocalPartition(*state, request.groups[i], &slice);
    if (status == ReplyStatus::kOk && slice == PartitionedTable::kNone)
      status = ReplyStatus::kOutOfRange;
    e.await_slices.push_back(slice);
    // Others are answered only when all can be.
    e.group_status[i] = status == ReplyStatus::kOk ? ReplyStatus::kNotReady : status;
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  if (outcome.answer.status == ReplyStatus::kOk) {
    outcome = norms->Ask(request, e.await_slices);
    e.group_status.assign(request.groups.size(), outcome.answer.status);
  }
  if (outcome.kind == PullOutcome::Kind::kAnswer) e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

GroupsOutcome Engine::Totals(const GroupsRequest& request, const NormTotals& totals) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  shard::Norms* norms = nullptr;
  const ReplyStatus found = FindNorms(e, request.worker, request.table, &state, &norms);
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  GroupsOutcome outcome;
  e.group_status.clear();
  for (const Group& g : request.groups) {
    uint32_t slice = 0;
    ReplyStatus status = e.FindLocalPartition(*state, g, &slice);
    if (status == ReplyStatus::kOk && slice != PartitionedTable::kNone) {
      const auto kind = static_cast<NormKind>(g.index);
      status = norms->Replicate(slice, g.sequence, kind, totals);
      if (status == ReplyStatus::kOk) state->dense.consistency->OnTotals(slice);
    }
    e.group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  e.CountAnswer(outcome.answer.status);
  outcome.group_status = e.group_status;
  return outcome;
}

}  // namespace verbena::shard
