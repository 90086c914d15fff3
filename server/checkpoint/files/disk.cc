#include "server/checkpoint/files/disk.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "server/checkpoint/files/failpoints.h"

namespace verbena::checkpoint {

absl::StatusOr<std::string> ReadWhole(Disk* disk, const std::string& path, uint64_t most) {
  absl::StatusOr<std::unique_ptr<ReadableFile>> file = disk->Open(path);
  if (!file.ok()) return file.status();
  const uint64_t size = (*file)->size();
  if (size > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " has ", size, " bytes; allowed: at most ", most));
  }
  std::string content(size, '\0');
  const absl::Status read =
      (*file)->ReadAt(0, {reinterpret_cast<std::byte*>(content.data()), content.size()});
  if (!read.ok()) return read;
  return content;
}

absl::Status WriteWhole(Disk* disk, const std::string& path, const std::string& content) {
  absl::StatusOr<std::unique_ptr<WritableFile>> file = disk->Create(path);
  if (!file.ok()) return file.status();
  absl::Status status =
      (*file)->WriteAt(0, {reinterpret_cast<const std::byte*>(content.data()), content.size()});
  if (status.ok() && !VERBENA_FAILPOINT(checkpoint, commit_unsynced)) status = (*file)->Sync();
  if (status.ok()) status = (*file)->Close();
  return status;
}

absl::Status RemoveTree(Disk* disk, const std::string& path) {
  // Another process that has opened the directory's name already may make a file in it meanwhile.
  constexpr int kRounds = 3;
  absl::Status status;
  for (int round = 0; round < kRounds; ++round) {
    // This project makes two levels only; deeper ones belong to others, and stay.
    const absl::StatusOr<std::vector<Disk::Entry>> entries = disk->List(path);
    if (absl::IsNotFound(entries.status())) return absl::OkStatus();
    if (!entries.ok()) return entries.status();
    for (const Disk::Entry& entry : *entries) {
      const std::string inside = Join(path, entry.name);
      const absl::Status removed =
          entry.directory ? disk->RemoveDirectory(inside) : disk->Remove(inside);
      if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
    }
    status = disk->RemoveDirectory(path);
    if (!absl::IsFailedPrecondition(status)) return status;
  }
  return status;
}

std::string BaseName(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "" : "/";
  const size_t slash = path.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

std::string ParentOf(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.find_last_of('/', end);
  if (slash == std::string::npos) return ".";
  const size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

std::string Join(const std::string& directory, const std::string& name) {
  if (directory.empty()) return name;
  return directory.back() == '/' ? absl::StrCat(directory, name)
                                 : absl::StrCat(directory, "/", name);
}

}  // namespace verbena::checkpoint
