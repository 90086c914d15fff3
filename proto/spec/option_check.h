// Checks and comparison of a specification's options by their descriptors. Rules that join several
// options are in table_spec.cc and optimizer_spec.cc.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_OPTION_CHECK_H_
#define VERBENA_PROTO_SPEC_OPTION_CHECK_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/spec/table_options.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// For each option whose name starts with `prefix`: fills the default, clears a value that has no
// effect, and checks the range. INVALID_ARGUMENT: "NAME is VALUE; allowed: ...". An option that
// does not apply must be unset or have its default value.
absl::Status NormalizeOptions(const std::string& prefix, v1::TableSpec* spec);

struct FieldDifference {
  std::string field;  // "optimizer.rate"
  std::string first;
  std::string second;
};

// The first difference of two specifications in the order of the options; empty: they are equal. An
// option that is not set counts as its default. If values of one were changed while its table lived
// (optimizer.changed), values that can be changed are not compared.
std::optional<FieldDifference> FirstDifference(const v1::TableSpec& first,
                                               const v1::TableSpec& second);

// Allowed values in a kind of table: "1 (f32), 2 (bf16)", "2..255", "a finite number >= 0".
std::string AllowedText(const TableOption& option, TableKind kind);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_OPTION_CHECK_H_
