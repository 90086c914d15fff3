// Finds tables and tensors of a manifest by their names.
//
// **Thread safety**: const methods may be called by any threads at once.
//
// **Invariants**
//  1. Building it takes one pass over the manifest, and a look-up time that does not grow with it.
#ifndef VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_INDEX_H_
#define VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_INDEX_H_

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "verbena/v1/checkpoint.pb.h"

namespace verbena::checkpoint {

struct TensorPlace {
  const v1::CheckpointFile* file = nullptr;
  const v1::CheckpointTensor* tensor = nullptr;
};

class ManifestIndex {
 public:
  // The manifest outlives the index, and does not change.
  explicit ManifestIndex(const v1::CheckpointManifest& manifest);

  // Null: the manifest has no such table.
  const v1::CheckpointTable* FindTable(absl::string_view name) const;
  // The tensors of an array, in the order of the manifest.
  absl::Span<const TensorPlace> Find(absl::string_view table, absl::string_view array) const;

 private:
  absl::flat_hash_map<absl::string_view, const v1::CheckpointTable*> tables_;
  absl::flat_hash_map<std::pair<absl::string_view, absl::string_view>, std::vector<TensorPlace>>
      tensors_;
};

}  // namespace verbena::checkpoint

#endif  // VERBENA_SERVER_CHECKPOINT_FILES_MANIFEST_INDEX_H_
