// Checks of verbena.v1.ColdTier: how much of an embedding table's rows is in memory.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_COLD_TIER_SPEC_H_
#define VERBENA_PROTO_COLD_TIER_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/optimizer_spec.h"
#include "proto/verbena/v1/table.pb.h"

namespace verbena {

inline constexpr uint64_t kMinHotBytes = uint64_t{64} << 10;

// 0: all rows are in memory.
inline uint64_t HotBytes(const v1::TableSpec& spec) { return spec.cold_tier().hot_bytes(); }

// Leaves the message out where all rows are in memory. INVALID_ARGUMENT names the field, the value
// and what is allowed; a dense table must not have it.
absl::Status NormalizeColdTier(v1::TableSpec* spec);

// Of two normalised ones.
std::optional<FieldDifference> FirstDifference(const v1::ColdTier& first,
                                               const v1::ColdTier& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_COLD_TIER_SPEC_H_
