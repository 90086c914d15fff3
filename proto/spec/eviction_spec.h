// Checks of verbena.v1.Eviction: the rule by which rows of an embedding table are dropped.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_EVICTION_SPEC_H_
#define VERBENA_PROTO_SPEC_EVICTION_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/spec/optimizer_spec.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// The effective kind: an unset kind is NEVER.
inline v1::Eviction::Kind KindOf(const v1::Eviction& eviction) {
  return eviction.kind() == v1::Eviction::KIND_UNSPECIFIED ? v1::Eviction::NEVER : eviction.kind();
}

// Less than the value at which stamps of rows restart (shard/table/eviction.h).
inline constexpr uint64_t kMaxTtl = uint64_t{1} << 30;

// Fills the default (NEVER), and clears the message if rows are never evicted. INVALID_ARGUMENT has
// the field, its value and the allowed values. A field that the kind does not use must not be set,
// and a dense table allows only NEVER.
absl::Status NormalizeEviction(v1::TableSpec* spec);

// The first difference of two normalized messages; empty: they are equal.
std::optional<FieldDifference> FirstDifference(const v1::Eviction& first,
                                               const v1::Eviction& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_EVICTION_SPEC_H_
