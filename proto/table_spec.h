// Checks and helpers for verbena.v1.TableSpec, shared by clients, coordinator and shards.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_TABLE_SPEC_H_
#define VERBENA_PROTO_TABLE_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/record.h"
#include "proto/routing.h"
#include "proto/verbena/v1/table.pb.h"

namespace verbena {

// Fills defaults (dtype, gradient_dtype and row_dtype F32, both codecs NONE, consistency SYNC,
// chunk_bytes, reduction MEAN, non_finite REJECT, initializer ZEROS, optimizer "sgd") and validates
// everything that does not need the optimizer registry. Errors name the field, the value and what
// is allowed.
absl::StatusOr<v1::TableSpec> NormalizeTableSpec(v1::TableSpec spec);

// What a region has of a normalised spec's table: pulled parameters, gradients to be pushed.
ElementType ParameterType(const v1::TableSpec& spec);
ElementType GradientType(const v1::TableSpec& spec);
// How rows of an embedding table lie in memory.
ElementType RowType(const v1::TableSpec& spec);
// What a record carries of gradients: GradientType(), unless there is a codec.
ElementType PushType(const v1::TableSpec& spec);
bool HasPushCodec(const v1::TableSpec& spec);
// The same of parameters: ParameterType(), unless there is a codec.
ElementType PullType(const v1::TableSpec& spec);
bool HasPullCodec(const v1::TableSpec& spec);

// "none", "f16", "bf16", "int8", "fp8_e4m3", "fp8_e5m2", "sign", "top_k"; CODEC_UNSPECIFIED: none
// of these.
std::string CodecName(v1::Codec codec);
v1::Codec CodecNamed(std::string_view name);

// Of a normalised spec. An embedding table has no elements and no chunks.
DenseLayout LayoutOf(const v1::TableSpec& spec);

// OK when `existing` and `wanted` (normalised) say the same; otherwise ALREADY_EXISTS naming the
// first field that differs and both values.
absl::Status CheckSameSpec(const v1::TableSpec& existing, const v1::TableSpec& wanted);

std::string ShapeString(const v1::TableSpec& spec);  // "[128, 64]"

}  // namespace verbena

#endif  // VERBENA_PROTO_TABLE_SPEC_H_
