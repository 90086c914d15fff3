// Checks of verbena.v1.Admission: which keys of an embedding table get a row.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_ADMISSION_SPEC_H_
#define VERBENA_PROTO_SPEC_ADMISSION_SPEC_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "proto/spec/optimizer_spec.h"
#include "verbena/v1/table.pb.h"

namespace verbena {

inline constexpr uint32_t kMaxMinCount = 255;
inline constexpr uint64_t kDefaultSketchBytes = uint64_t{16} << 20;

// Fills defaults (ALWAYS, sketch_bytes), and clears the message if every key is admitted.
// INVALID_ARGUMENT has the field, its value and the allowed values. A field that the kind does not
// use must not be set, and a dense table allows only ALWAYS.
absl::Status NormalizeAdmission(v1::TableSpec* spec);

// The first difference of two normalized messages; empty: they are equal.
std::optional<FieldDifference> FirstDifference(const v1::Admission& first,
                                               const v1::Admission& second);

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_ADMISSION_SPEC_H_
