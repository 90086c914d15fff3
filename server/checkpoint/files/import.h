// Makes a checkpoint from foreign safetensors files, so that a cluster can restore it.
//
// Its contents equal those of a table that was created with these numbers as its initial values:
// parameters, for 16-bit types their f32 master copies, an optimizer's state of zeros, no steps and
// no applies; of a dense table whose state the source has, that state and its applies. Rows are
// marked as having no gradient in their state (proto/wire/row_applies.h).
//
// **Thread safety**: one thread a call.
//
// Invariants:
//  1. Numbers of the table's type keep their bits. Converted numbers are rounded to nearest; a
//     finite number never becomes an infinite one.
//  2. A checkpoint has everything planned, or is not made at all.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_reader.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/import_plan.h"

namespace verbena::checkpoint {

// `plan` is the result of PlanImport() for `options`. Returns the checkpoint's name in options.to.
// `written` is called with the bytes of the plan, and with 0 while keys are scanned; its error ends
// the import. ALREADY_EXISTS: there are checkpoints. INVALID_ARGUMENT: a duplicate key, or a number
// that the type cannot hold. Memory: 8 bytes for each row of one table.
absl::StatusOr<std::string> Import(Disk* disk, const ImportOptions& options, const ImportPlan& plan,
                                   const CheckpointReader::Progress& written);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_IMPORT_H_
