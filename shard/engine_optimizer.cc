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
                 ReplicaLog::Append* appended) {
  const ReplicaKind kind = c.values.empty() ? ReplicaKind::kSettle : ReplicaKind::kOptimizer;
  *appended = e.records.HeaderFor(kind, c.group.partition, *c.state);
  appended->header.worker = c.worker;
  appended->header.worker_sequence = sequence;
  if (c.values.empty()) return true;
  const size_t bytes = TableOptimizer::EncodedBytes(c.values.size());
  appended->data = e.pool.TakeScratch(bytes);
  appended->header.count = 1;
  appended->header.total_bytes = static_cast<uint32_t>(bytes);
  appended->header.version = least;
  return appended->data.data != nullptr;
}

ReplyStatus ChangeSlice(EngineCore& e, const SliceChange& c, uint64_t* from) {
  PartitionedTable& table = *c.state->table;
  const uint32_t p = c.group.partition;
  const bool sync = table.spec().consistency() == v1::CONSISTENCY_SYNC;
  // Changes of async and ssp tables are in force at once: none is kept for a step.
  const uint64_t least = sync ? table.version(c.slice) : 1;
  const bool numbered = c.member.rank >= 0 && !sync;
  // Others are known by their client and its number, and a client sends one after the other.
  const uint64_t sequence = numbered ? c.group.sequence : 0;
  const bool replicates =
      (numbered || !c.values.empty()) && e.log.mode(p) != ReplicaLog::Mode::kAlone &&
      e.log.Replicated(p, table.id()) && !VERBENA_FAILPOINT(shard, keep_optimizer);
  ReplicaLog::Append appended;
  if (replicates && !BeginRecord(e, c, sequence, least, &appended))
    return ReplyStatus::kResourceExhausted;
  ReplyStatus status =
      c.state->consistency->SetOptimizer(c.group, c.worker, c.member, c.slice, from);
  if (status == ReplyStatus::kOk && !c.values.empty()) {
    // Workers' values come later in the order of a step: there it would have no effect.
    if (sync && c.member.rank < 0) {
      *from = table.optimizer().AfterWorkers(c.slice, c.values, *from);
    }
    const OptimizerChange change = {*from,
                                    numbered ? 0 : c.worker,
                                    c.group.index,
                                    c.member.rank,
                                    {c.values.begin(), c.values.end()}};
    bool added = false;
    *from = table.optimizer().Add(c.slice, change, least, &added);
    if (!added) {
      status = ReplyStatus::kDuplicate;
      e.log.Join(table.id(), p, c.worker, sequence);
    } else if (replicates) {
      const std::vector<std::byte> data = TableOptimizer::Encode(change);
      std::memcpy(appended.data.data, data.data(), data.size());
    }
  }
  if (replicates && status == ReplyStatus::kOk) {
    e.log.Add(std::move(appended));
  } else if (replicates) {
    e.pool.ReturnScratch(appended.data);
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
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t greatest = 0;
  return ChangeGroups(&e, *state, request, [&](const Group& g, uint32_t slice, Answer* answer) {
    uint64_t from = 0;
    const ReplyStatus status =
        ChangeSlice(e, {request.worker, *member, g, values, state, slice}, &from);
    if (status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate) {
      least = std::min(least, from);
      greatest = std::max(greatest, from);
      answer->version = least;
      answer->detail = static_cast<uint32_t>(greatest - least);
    }
    return status;
  });
}

}  // namespace verbena::shard
