// Checks of verbena.v1.Optimizer that need no optimizer registry: rate, schedule, clipping.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_OPTIMIZER_SPEC_H_
#define VERBENA_PROTO_OPTIMIZER_SPEC_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults (name "sgd") and brings what says the same into one form: a constant schedule
// without warm-up is no schedule. INVALID_ARGUMENT names the field, the value and what is allowed;
// a field that the kind of schedule does not use must not be set.
absl::Status NormalizeOptimizer(v1::Optimizer* optimizer);

// Whether a step needs the norms of a whole table's weights and update: LAMB's trust ratio.
bool NeedsTrustRatio(const v1::Optimizer& optimizer);
// Whether a step commits in two phases, because its norm spans several chunks (record.h: kNorms).
bool NeedsStepNorms(const v1::Optimizer& optimizer);

struct FieldDifference {
  std::string field;  // "optimizer.rate"
  std::string first;
  std::string second;
};

// Of two normalised ones.
std::optional<FieldDifference> FirstDifference(const v1::Optimizer& first,
                                               const v1::Optimizer& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_OPTIMIZER_SPEC_H_
