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

void TellMark(Sink* sink, const SlicedTable& table, const Roster& roster, uint32_t slice,
              const WorkerMark& mark) {
  ReplicaLog& log = *sink->log;
  const uint32_t partition = table.life(slice).partition;
  if (log.mode(partition) == ReplicaLog::Mode::kAlone || !log.Told(partition, table.id())) return;
  ReplicaLog::Append told;
  told.table = table.id();
  told.partition = partition;
  told.header.kind = ReplicaKind::kSettle;
  told.header.generation = roster.generation();
  told.header.worker = mark.worker;
  told.header.worker_sequence = mark.sequence;
  told.header.worker_clock = mark.clock;
  log.Add(std::move(told));
}

uint32_t AsyncDivisor(const v1::TableSpec& spec, const Roster& roster) {
  return spec.reduction() == v1::REDUCTION_MEAN ? std::max(roster.expected(), 1u) : 1;
}

}  // namespace verbena::shard
