// Checks and helpers for verbena.v1.TableSpec, shared by clients, coordinator and shards.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_TABLE_SPEC_H_
#define VERBENA_PROTO_SPEC_TABLE_SPEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/record.h"
#include "proto/wire/routing.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults and clears options without an effect, by the descriptors in table_options.h;
// checks everything that does not need the optimizer registry. INVALID_ARGUMENT: the text has the
// option, its value and the allowed values.
absl::StatusOr<v1::TableSpec> NormalizeTableSpec(v1::TableSpec spec);

// Types in a region of a table with a normalized spec: pulled parameters, pushed gradients.
ElementType ParameterType(const v1::TableSpec& spec);
ElementType GradientType(const v1::TableSpec& spec);
// Type of an embedding table's rows in memory.
ElementType RowType(const v1::TableSpec& spec);
// Type of gradients in a record: GradientType(), unless the table has a push codec.
ElementType PushType(const v1::TableSpec& spec);
bool HasPushCodec(const v1::TableSpec& spec);
// Type of parameters in a record: ParameterType(), unless the table has a pull codec.
ElementType PullType(const v1::TableSpec& spec);
bool HasPullCodec(const v1::TableSpec& spec);

// "none", "f16", "int8", "top_k".
std::string CodecName(v1::Codec codec);

// Memory for rows of a table with a cold tier, bytes; 0: all rows are in memory.
inline uint64_t HotBytes(const v1::TableSpec& spec) { return spec.cold_tier().hot_bytes(); }
// The effective kind: normalization clears the message of a table that never evicts.
inline v1::Eviction::Kind KindOf(const v1::Eviction& eviction) {
  return eviction.kind() == v1::Eviction::KIND_UNSPECIFIED ? v1::Eviction::NEVER : eviction.kind();
}

// The layout of a normalized spec. An embedding table has no elements and no chunks.
DenseLayout LayoutOf(const v1::TableSpec& spec);

// OK if `existing` and `wanted` (normalized) are equal. Otherwise ALREADY_EXISTS with the first
// option that differs and both values.
absl::Status CheckSameSpec(const v1::TableSpec& existing, const v1::TableSpec& wanted);

std::string ShapeString(const v1::TableSpec& spec);  // "[128, 64]"

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_TABLE_SPEC_H_
