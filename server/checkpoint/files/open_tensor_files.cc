#include "server/checkpoint/files/open_tensor_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "server/checkpoint/files/tensor_file.h"

namespace verbena::checkpoint {
namespace {

// One file may be open per so many descriptors of this process, whose shards may restore at once.
constexpr rlim_t kDescriptorsPerFile = 32;
constexpr size_t kLeastFiles = 8;

size_t MostFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeastFiles;
  const rlim_t part = limit.rlim_cur / kDescriptorsPerFile;
  return std::max(kLeastFiles,
                  static_cast<size_t>(std::min<rlim_t>(part, OpenTensorFiles::kMostFiles)));
}

}  // namespace

OpenTensorFiles::OpenTensorFiles(Disk* disk) : disk_(disk), most_files_(MostFiles()) {}

absl::StatusOr<std::shared_ptr<const SafetensorsReader>> OpenTensorFiles::Open(
    const std::string& directory, const v1::CheckpointFile& entry) {
  const std::lock_guard lock(mutex_);
  if (const auto it = by_entry_.find(&entry); it != by_entry_.end()) {
    kept_.splice(kept_.begin(), kept_, it->second);
    return it->second->file;
  }
  absl::StatusOr<SafetensorsReader> opened = OpenTensorFile(disk_, directory, entry);
  if (absl::IsResourceExhausted(opened.status()) && !kept_.empty()) {
    by_entry_.clear();
    kept_.clear();
    header_bytes_ = 0;
    opened = OpenTensorFile(disk_, directory, entry);
  }
  if (!opened.ok()) return opened.status();
  auto file = std::make_shared<const SafetensorsReader>(*std::move(opened));
  header_bytes_ += file->head().size();
  kept_.push_front({&entry, file});
  by_entry_[&entry] = kept_.begin();
  while (kept_.size() > 1 && (kept_.size() > most_files_ || header_bytes_ > kMostHeaderBytes)) {
    header_bytes_ -= kept_.back().file->head().size();
    by_entry_.erase(kept_.back().entry);
    kept_.pop_back();
  }
  return file;
}

}  // namespace verbena::checkpoint
