// Checks of verbena.v1.Eviction: which rows of an embedding table are dropped again.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_EVICTION_SPEC_H_
#define VERBENA_PROTO_EVICTION_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/optimizer_spec.h"
#include "proto/verbena/v1/table.pb.h"

namespace verbena {

// As the specification means it: none is NEVER.
inline v1::Eviction::Kind KindOf(const v1::Eviction& eviction) {
  return eviction.kind() == v1::Eviction::KIND_UNSPECIFIED ? v1::Eviction::NEVER : eviction.kind();
}

// Below where stamps of rows start again (shard/table/eviction.h).
inline constexpr uint64_t kMaxTtl = uint64_t{1} << 30;

// Fills the default (NEVER) and leaves the message out where rows stay. INVALID_ARGUMENT names the
// field, the value and what is allowed; a field that the kind does not use must not be set, nor any
// kind but NEVER of a dense table.
absl::Status NormalizeEviction(v1::TableSpec* spec);

// Of two normalised ones.
std::optional<FieldDifference> FirstDifference(const v1::Eviction& first,
                                               const v1::Eviction& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_EVICTION_SPEC_H_
