// The check of new values for a table's optimizer, against the values that may be changed.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTIMIZER_VALUES_H_
#define VERBENA_PROTO_SPEC_OPTIMIZER_VALUES_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/record.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

inline std::string_view NameOf(const NamedValue& value) {
  return {value.name, std::string_view(value.name, sizeof(value.name)).find_last_not_of('\0') + 1};
}
// Names longer than a NamedValue allows are cut, so no value has them.
NamedValue MakeNamedValue(std::string_view name, double value);

// INVALID_ARGUMENT: there is no value, a value is not in `allowed` or out of its range, or is named
// twice; the message has the allowed names or the range.
absl::Status CheckOptimizerValues(absl::Span<const v1::OptimizerValue* const> allowed,
                                  absl::Span<const NamedValue> values);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTIMIZER_VALUES_H_
