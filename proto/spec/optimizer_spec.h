// Checks of verbena.v1.Optimizer that need no optimizer registry: rate, schedule, clipping.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_
#define VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults (name "sgd") and canonicalizes equal meanings: a constant schedule without warm-up
// is cleared. INVALID_ARGUMENT has the field, its value and the allowed values. A field that the
// kind of schedule does not use must not be set.
absl::Status NormalizeOptimizer(v1::Optimizer* optimizer);

// Lower limit of a clip setting: near the smallest f32, so less is a mistake rather than intended.
inline constexpr double kLeastClip = 1e-30;

// Whether a step needs the norms of a whole table's weights and update, for LAMB's trust ratio.
bool NeedsTrustRatio(const v1::Optimizer& optimizer);
// Whether a step commits in two phases because its norm covers several chunks (record.h: kNorms).
bool NeedsStepNorms(const v1::Optimizer& optimizer);

struct FieldDifference {
  std::string field;  // "optimizer.rate"
  std::string first;
  std::string second;
};

// The first difference of two normalized messages; empty: they are equal. If values of one were
// changed while its table lived (changed), values that can be changed are not compared.
std::optional<FieldDifference> FirstDifference(const v1::Optimizer& first,
                                               const v1::Optimizer& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTIMIZER_SPEC_H_
