// Checks of verbena.v1.Optimizer that need no optimizer registry: rate, schedule, clipping.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_
#define VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_

#include "absl/status/status.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults and checks the optimizer's options: NormalizeOptions() and CheckOptimizerRules().
absl::Status NormalizeOptimizer(v1::Optimizer* optimizer);
// Rules that join several options: at most one clip, the parts of a schedule. INVALID_ARGUMENT:
// "optimizer.NAME is VALUE; allowed: ...".
absl::Status CheckOptimizerRules(const v1::Optimizer& optimizer);

// Whether a step needs the norms of a whole table's weights and update, for LAMB's trust ratio.
bool NeedsTrustRatio(const v1::Optimizer& optimizer);
// Whether a step commits in two phases because its norm covers several chunks (record.h: kNorms).
bool NeedsStepNorms(const v1::Optimizer& optimizer);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_
