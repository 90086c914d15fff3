// Checks the consistency of a manifest: invariant 1 of manifest.h.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_CHECK_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

// INVALID_ARGUMENT names the field, the value and the allowed values.
absl::Status CheckManifest(const v1::CheckpointManifest& manifest);

// Whether an incremental checkpoint may be based on `base`: FAILED_PRECONDITION names an embedding
// table that is a different table of the same name there.
absl::Status CheckBase(const v1::CheckpointManifest& manifest, const v1::CheckpointManifest& base);

// Whether a name is valid for our entries in a directory of checkpoints: no path, not hidden.
bool IsPlainName(const std::string& name);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_CHECK_H_
