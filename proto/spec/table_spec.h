// Checks and helpers for verbena.v1.TableSpec, shared by clients, coordinator and shards.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_TABLE_SPEC_H_
#define VERBENA_PROTO_SPEC_TABLE_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/record.h"
#include "proto/wire/routing.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults (dtype, gradient_dtype and row_dtype F32, both codecs NONE, consistency SYNC,
// chunk_bytes, reduction MEAN, non_finite REJECT, initializer ZEROS, optimizer "sgd"). Validates
// everything that does not need the optimizer registry. Errors have the field, its value and the
// allowed values.
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

// "none", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", "sign" or "top_k". CodecNamed() returns
// CODEC_UNSPECIFIED for any other name.
std::string CodecName(v1::Codec codec);
v1::Codec CodecNamed(std::string_view name);

// The layout of a normalized spec. An embedding table has no elements and no chunks.
DenseLayout LayoutOf(const v1::TableSpec& spec);

// OK if `existing` and `wanted` (normalized) are equal. Otherwise ALREADY_EXISTS with the first
// field that differs and both values.
absl::Status CheckSameSpec(const v1::TableSpec& existing, const v1::TableSpec& wanted);

std::string ShapeString(const v1::TableSpec& spec);  // "[128, 64]"

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_TABLE_SPEC_H_
