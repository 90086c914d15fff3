#include "server/checkpoint/files/manifest_index.h"

namespace verbena::checkpoint {

ManifestIndex::ManifestIndex(const v1::CheckpointManifest& manifest) {
  for (const v1::CheckpointTable& table : manifest.tables()) {
    tables_.emplace(table.spec().name(), &table);
  }
  for (const v1::CheckpointFile& file : manifest.files()) {
    for (const v1::CheckpointTensor& tensor : file.tensors()) {
      tensors_[{tensor.table(), tensor.array()}].push_back({&file, &tensor});
    }
  }
}

const v1::CheckpointTable* ManifestIndex::FindTable(absl::string_view name) const {
  const auto it = tables_.find(name);
  return it == tables_.end() ? nullptr : it->second;
}

absl::Span<const TensorPlace> ManifestIndex::Find(absl::string_view table,
                                                  absl::string_view array) const {
  const auto it = tensors_.find({table, array});
  if (it == tensors_.end()) return {};
  return it->second;
}

}  // namespace verbena::checkpoint
