#include "shard/partition/consistency.h"

#include <algorithm>
#include <utility>

namespace verbena::shard {

bool ContributesZero(SlicedTable* table, const Source& gradient, size_t n, Sink* sink,
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
bool MarkFor(const Sink& sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
             const WorkerMark& mark, ReplicaLog::Append* told) {
  const ReplicaLog& log = *sink.log;
  told->table = table.id();
  told->partition = table.life(slice).partition;
  if (log.mode(told->partition) == ReplicaLog::Mode::kAlone ||
      !log.Told(told->partition, table.id())) {
    return false;
  }
  told->header.kind = ReplicaKind::kSettle;
  told->header.generation = roster.generation();
  told->header.worker = mark.worker;
  told->header.worker_sequence = mark.sequence;
  told->header.worker_clock = mark.clock;
  return true;
}

}  // namespace

void TellMark(Sink* sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
              const WorkerMark& mark) {
  ReplicaLog::Append told;
  if (MarkFor(*sink, table, roster, slice, mark, &told)) sink->log->Add(std::move(told));
}

void NoteMark(Sink* sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
              const WorkerMark& mark) {
  ReplicaLog::Append told;
  if (!MarkFor(*sink, table, roster, slice, mark, &told)) return;
  sink->log->Note(told.partition, told.table, told.header);
}

uint32_t AsyncDivisor(const v1::TableSpec& spec, const Roster& roster) {
  return spec.reduction() == v1::REDUCTION_MEAN ? std::max(roster.expected(), 1u) : 1;
}

}  // namespace verbena::shard
