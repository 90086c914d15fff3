#include "server/checkpoint/open_tensor_files.h"

#include <utility>

#include "server/checkpoint/tensor_file.h"

namespace verbena::checkpoint {

absl::StatusOr<std::shared_ptr<const SafetensorsReader>> OpenTensorFiles::Open(
    const std::string& directory, const v1::CheckpointFile& entry) {
  const std::lock_guard lock(mutex_);
  if (const auto it = by_entry_.find(&entry); it != by_entry_.end()) {
    kept_.splice(kept_.begin(), kept_, it->second);
    return it->second->file;
  }
  absl::StatusOr<SafetensorsReader> opened = OpenTensorFile(disk_, directory, entry);
  if (!opened.ok()) return opened.status();
  auto file = std::make_shared<const SafetensorsReader>(*std::move(opened));
  header_bytes_ += file->head().size();
  kept_.push_front({&entry, file});
  by_entry_[&entry] = kept_.begin();
  while (kept_.size() > 1 && (kept_.size() > kMostFiles || header_bytes_ > kMostHeaderBytes)) {
    header_bytes_ -= kept_.back().file->head().size();
    by_entry_.erase(kept_.back().entry);
    kept_.pop_back();
  }
  return file;
}

}  // namespace verbena::checkpoint
