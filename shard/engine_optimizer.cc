// Changes of the values of a table's optimizer, by slice.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

// One group of a SetOptimizer().
struct SliceChange {
  uint64_t worker;
  const Members::Member& member;
  const Group& group;
  absl::Span<const NamedValue> values;
  TableState* state;
  uint32_t slice;
};

// Takes the memory first: a sequence that was taken cannot be returned. False: there is none.
bool BeginRecord(EngineCore& e, const SliceChange& c, uint64_t sequence, uint64_t least,
                 ReplicaLog::Append* told) {
  const ReplicaKind kind = c.values.empty() ? ReplicaKind::kSettle : ReplicaKind::kOptimizer;
  *told = e.records.HeaderFor(kind, c.group.partition, *c.state);
  told->header.worker = c.worker;
  told->header.worker_sequence = sequence;
  if (c.values.empty()) return true;
  const size_t bytes = TableOptimizer::EncodedBytes(c.values.size());
  told->data = e.pool.TakeScratch(bytes);
  told->header.count = 1;
  told->header.total_bytes = static_cast<uint32_t>(bytes);
  told->header.version = least;
  return told->data.data != nullptr;
}

ReplyStatus ChangeSlice(EngineCore& e, const SliceChange& c, uint64_t* from) {
  PartitionedTable& table = *c.state->table;
  const uint32_t p = c.group.partition;
  const bool sync = table.spec().consistency() == v1::CONSISTENCY_SYNC;
  // Changes of async and ssp tables are in force at once: none is kept for a step.
  const uint64_t least = sync ? table.version(c.slice) : 1;
  const bool numbered = c.member.rank >= 0 && !sync;
  const uint64_t sequence = numbered ? c.group.sequence : c.group.index;
  const bool tell = (numbered || !c.values.empty()) && e.log.mode(p) != ReplicaLog::Mode::kAlone &&
                    e.log.Replicated(p, table.id()) && !VERBENA_FAILPOINT(shard, keep_optimizer);
  ReplicaLog::Append told;
  if (tell && !BeginRecord(e, c, sequence, least, &told)) return ReplyStatus::kResourceExhausted;
  ReplyStatus status =
      c.state->consistency->SetOptimizer(c.group, c.worker, c.member, c.slice, from);
  if (status == ReplyStatus::kOk && !c.values.empty()) {
    const OptimizerChange change = {
        *from, c.worker, c.group.index, c.member.rank, {c.values.begin(), c.values.end()}};
    bool added = false;
    *from = table.optimizer().Add(c.slice, change, least, &added);
    if (!added) {
      status = ReplyStatus::kDuplicate;
      e.log.Join(table.id(), p, c.worker, sequence);
    } else if (tell) {
      const std::vector<std::byte> data = TableOptimizer::Encode(change);
      std::memcpy(told.data.data, data.data(), data.size());
    }
  }
  if (tell && status == ReplyStatus::kOk) {
    e.log.Add(std::move(told));
  } else if (tell) {
    e.pool.ReturnScratch(told.data);
  }
  return status;
}

}  // namespace

GroupsOutcome Engine::SetOptimizer(const GroupsRequest& request,
                                   absl::Span<const NamedValue> values) {
  EngineCore& e = *core_;
  TableState* state = nullptr;
  const Members::Member* member = nullptr;
  ReplyStatus found = e.Find(request.worker, request.table, &state, &member);
  if (found == ReplyStatus::kOk && member->rank < 0 && !member->may_write) {
    found = ReplyStatus::kPermissionDenied;
  }
  if (found == ReplyStatus::kOk && !values.empty() &&
      !state->table->optimizer().Check(values).ok()) {
    found = ReplyStatus::kOutOfRange;
  }
  if (found != ReplyStatus::kOk) return e.RefuseGroups(request.groups.size(), found);
  if (e.LacksLogRoom(*state, request.groups)) return e.NoRoom(request.groups.size());
  GroupsOutcome outcome;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t greatest = 0;
  e.group_status.clear();
  e.log.Ask(&request.token);
  for (const Group& g : request.groups) {
    e.log.AskGroup(static_cast<uint32_t>(e.group_status.size()));
    uint32_t slice = 0;
    ReplyStatus status = e.FindLocalPartition(*state, g, &slice);
    if (status == ReplyStatus::kOk) status = e.CheckCopies(g.partition);
    if (status == ReplyStatus::kOk && slice != PartitionedTable::kNone) {
      uint64_t from = 0;
      status = ChangeSlice(e, {request.worker, *member, g, values, state, slice}, &from);
      if (status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate) {
        least = std::min(least, from);
        greatest = std::max(greatest, from);
      }
    }
    e.group_status.push_back(status);
    outcome.answer.status = Worse(outcome.answer.status, status);
  }
  outcome.answer.version = std::min(least, greatest);
  outcome.answer.detail = static_cast<uint32_t>(greatest - outcome.answer.version);
  e.CountAnswer(outcome.answer.status);
  outcome.replicating = e.log.EndRequest(outcome.answer, e.group_status);
  outcome.group_status = e.group_status;
  return outcome;
}

}  // namespace verbena::shard
