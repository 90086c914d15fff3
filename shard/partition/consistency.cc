#include "shard/partition/consistency.h"

#include <algorithm>

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

uint32_t AsyncDivisor(const v1::TableSpec& spec, const Roster& roster) {
  return spec.reduction() == v1::REDUCTION_MEAN ? std::max(roster.expected(), 1u) : 1;
}

}  // namespace verbena::shard
