// Keeps tensor files of checkpoints open, so that a header is parsed once for all of its tensors.
//
// **Thread safety**: Open() may be called by any threads at once.
//
// **Invariants**
//  1. At most kMostFiles files, and one for 32 descriptors of this process, with headers of at most
//     kMostHeaderBytes together, are kept: the ones that were used last. The file that was opened
//     last is always kept.
//  2. Where no descriptor is left to open another file, those that are kept give way.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_OPEN_TENSOR_FILES_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_OPEN_TENSOR_FILES_H_

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/safetensors.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

class OpenTensorFiles {
 public:
  // A shard of each server writes one file, with a part of each dense table.
  static constexpr size_t kMostFiles = 128;
  static constexpr size_t kMostHeaderBytes = size_t{32} << 20;

  explicit OpenTensorFiles(Disk* disk);

  // Like OpenTensorFile() of tensor_file.h. `entry` outlives this object.
  absl::StatusOr<std::shared_ptr<const SafetensorsReader>> Open(const std::string& directory,
                                                                const v1::CheckpointFile& entry);

 private:
  struct Kept {
    const v1::CheckpointFile* entry;
    std::shared_ptr<const SafetensorsReader> file;
  };

  Disk* const disk_;
  const size_t most_files_;
  std::mutex mutex_;
  std::list<Kept> kept_;  // the one that was used last is the first
  absl::flat_hash_map<const v1::CheckpointFile*, std::list<Kept>::iterator> by_entry_;
  size_t header_bytes_ = 0;  // of all that are kept
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_OPEN_TENSOR_FILES_H_
