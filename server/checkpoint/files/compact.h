// Makes a full checkpoint with whole tensors from an incremental one and its bases, or from one
// with slices.
//
// **Thread safety**: one thread a call.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_COMPACT_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_COMPACT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/checkpoint/files/checkpoint_directory.h"
#include "server/checkpoint/files/checkpoint_reader.h"

namespace verbena::checkpoint {

// Whether parts of dense tables lie in different tensors.
bool HasSlices(const CheckpointReader& reader);

// Writes into `directory` the state that restoring `from` gives, with the same steps and time, and
// commits it; returns its name. FAILED_PRECONDITION: `from` is not the newest. It verifies all that
// it reads. After an error nothing is committed, as described at Commit(), and the directory is
// unchanged. `read` is called with bytes as in Verify().
absl::StatusOr<std::string> Compact(Disk* disk, const CheckpointReader& from,
                                    CheckpointDirectory* directory, uint64_t file_bytes,
                                    const CheckpointReader::Progress& read);

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_COMPACT_H_
