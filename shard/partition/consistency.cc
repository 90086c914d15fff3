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
             uint32_t slice, const WorkerMark& mark, ReplicaLog::Append* appended) {
  const ReplicaLog& log = *sink.log;
  appended->table = table.id();
  appended->partition = table.life(slice).partition;
  if (log.mode(appended->partition) == ReplicaLog::Mode::kAlone ||
      !log.Replicated(appended->partition, table.id())) {
    return false;
  }
  appended->header.kind = ReplicaKind::kSettle;
  appended->header.generation = members.generation();
  appended->header.worker = mark.worker;
  appended->header.worker_sequence = mark.sequence;
  appended->header.worker_clock = mark.clock;
  return true;
}

}  // namespace

void ReplicateMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
                   uint32_t slice, const WorkerMark& mark) {
  ReplicaLog::Append appended;
  if (MarkFor(*sink, table, members, slice, mark, &appended)) sink->log->Add(std::move(appended));
}

void NoteMark(EngineContext* sink, const PartitionedTable& table, const Members& members,
              uint32_t slice, const WorkerMark& mark) {
  ReplicaLog::Append appended;
  if (!MarkFor(*sink, table, members, slice, mark, &appended)) return;
  sink->log->Note(appended.partition, appended.table, appended.header);
}

uint32_t AsyncDivisor(const v1::TableSpec& spec, const Members& members) {
  return spec.reduction() == v1::REDUCTION_MEAN ? std::max(members.expected(), 1u) : 1;
}

}  // namespace verbena::shard
