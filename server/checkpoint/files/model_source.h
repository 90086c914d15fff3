// The safetensors files of a foreign model: one file; those that an index names; or those of a
// directory.
//
// **Thread safety**: one thread.
//
// Invariants:
//  1. Every file exists and is complete, and every tensor is in one of them.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_MODEL_SOURCE_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_MODEL_SOURCE_H_

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/checkpoint/files/disk.h"
#include "server/checkpoint/files/safetensors.h"

namespace verbena::checkpoint {

// A tensor of one of the files.
struct SourceTensor {
  const SafetensorsReader* file = nullptr;
  const TensorInfo* info = nullptr;
};

// "/data/model.safetensors: tensor "w"", as messages begin.
std::string Which(const SourceTensor& tensor);

class ModelSource {
 public:
  // `path`: a safetensors file; an index (its name ends in .json); or a directory with one index,
  // or without any and with one safetensors file. With an index also the files that Export() writes
  // there for tensors in no index, other-N-of-M.safetensors. `skipped`: tensors that may also be
  // where no index names them. NOT_FOUND, DATA_LOSS, INVALID_ARGUMENT name file and tensor.
  static absl::StatusOr<ModelSource> Open(Disk* disk, const std::string& path,
                                          const std::set<std::string>& skipped);

  const std::string& path() const { return path_; }
  // By file, and there in the order of their bytes; without those skipped.
  const std::vector<SourceTensor>& tensors() const { return tensors_; }
  // Null: it has none of that name, or it was skipped.
  const SourceTensor* Find(const std::string& name) const;
  // Whether a file has this tensor, skipped or not.
  bool Has(const std::string& name) const { return all_.contains(name); }

 private:
  ModelSource() = default;
  absl::Status AddFile(Disk* disk, const std::string& path, const std::set<std::string>& skipped,
                       const std::map<std::string, std::string>* index);
  absl::Status AddIndexed(Disk* disk, const std::string& index,
                          const std::set<std::string>& skipped);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsReader>> files_;
  std::vector<SourceTensor> tensors_;
  std::map<std::string, size_t> by_name_;   // place in tensors_
  std::map<std::string, std::string> all_;  // tensor -> file
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_MODEL_SOURCE_H_
