#include "shard/partition/consistency.h"

#include "shard/kernel/reduce.h"

namespace verbena::shard {

bool ContributesZero(DenseTable* table, const PushRequest& request, uint32_t elements, Sink* sink,
                     ReplyStatus* answer) {
  *answer = ReplyStatus::kOk;
  if (request.payload.empty()) return true;
  const v1::NonFinite policy = table->spec().non_finite();
  const auto* payload = reinterpret_cast<const float*>(request.payload.data());
  if (policy == v1::NON_FINITE_APPLY || !HasNonFinite(BestIsa(), payload, elements)) return false;
  ++sink->counters.non_finite;
  ++table->counters().non_finite;
  if (policy != v1::NON_FINITE_SKIP) *answer = ReplyStatus::kNonFinite;
  return true;
}

}  // namespace verbena::shard
