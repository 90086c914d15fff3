// Checks of verbena.v1.ColdTier: the amount of memory for an embedding table's rows.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_COLD_TIER_SPEC_H_
#define VERBENA_PROTO_SPEC_COLD_TIER_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/spec/optimizer_spec.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

inline constexpr uint64_t kMinHotBytes = uint64_t{64} << 10;

// 0: all rows are in memory.
inline uint64_t HotBytes(const v1::TableSpec& spec) { return spec.cold_tier().hot_bytes(); }

// Clears the message if all rows are in memory. INVALID_ARGUMENT has the field, its value and the
// allowed values; a dense table must not have the message.
absl::Status NormalizeColdTier(v1::TableSpec* spec);

// The first difference of two normalized messages; empty: they are equal.
std::optional<FieldDifference> FirstDifference(const v1::ColdTier& first,
                                               const v1::ColdTier& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_COLD_TIER_SPEC_H_
