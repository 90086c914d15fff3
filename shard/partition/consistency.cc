#include "shard/partition/consistency.h"

#include <algorithm>
#include <utility>

#include "shard/failpoints.h"

namespace verbena::shard {

bool AwaitsEmpty(ReplyStatus status) {
  return status == ReplyStatus::kResourceExhausted ||
         (status != ReplyStatus::kOk && !VERBENA_FAILPOINT(shard, settle_refused));
}

bool ContributesZero(PartitionedTable* table, const Source& gradient, size_t n, EngineContext* sink,
                     ReplyStatus* answer) {
  *answer = ReplyStatus::kOk;
  if (n == 0) return true;
  const v1::NonFinite policy = table->spec().non_finite();
  if (policy == v1::NON_FINITE_APPLY || !HasNonFinite(BestIsa(), gradient, n)) return false;
  ++sink->counters.non_finite;
  ++table->counters().non_finite;
  if (policy != v1::NON_FINITE_SKIP) *answer = ReplyStatus::kNonFinite;
  return true;
}

namespace {

// Whether the slice's progress must be replicated; if so, fills the record.
bool MarkFor(const EngineContext& sink, const PartitionedTable& table, const Members& members,
             uint32_t slice, const WorkerMark& mark, ReplicaLog::Append* told) {
  const ReplicaLog& log = *sink.log;
  told->table = table.id();
  told->partition = table.life(slice).partition;
  if (log.mode(told->partition) == ReplicaLog::Mode::kAlone ||
      !log.Replicated(told->partition, table.id())) {
    return false;
  }
  told->header.kind = ReplicaKind::kSettle;
  told->header.generation = members.generation();
  told->header.worker = mark.worker;
  told->header.worker_sequence = mark.sequence;
  told->header.worker_clock = mark.clock;
  return true;
}

}  // namespace

void ReplicateMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
                   uint32_t slice, const WorkerMark& mark) {
  ReplicaLog::Append told;
  if (MarkFor(*sink, table, members, slice, mark, &told)) sink->log->Add(std::move(told));
}

void NoteMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
              uint32_t slice, const WorkerMark& mark) {
  ReplicaLog::Append told;
  if (!MarkFor(*sink, table, members, slice, mark, &told)) return;
  sink->log->Note(told.partition, told.table, told.header);
}

uint32_t AsyncDivisor(const v1::TableSpec& spec, const Members& members) {
  return spec.reduction() == v1::REDUCTION_MEAN ? std::max(members.expected(), 1u) : 1;
}

}  // namespace verbena::shard
