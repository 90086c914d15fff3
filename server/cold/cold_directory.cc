#include "server/cold/cold_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/own_file.h"

namespace verbena::server {
namespace {

constexpr char kPrefix[] = "verbena-cold-";

// A database's name and nothing else's: it will be removed.
bool IsDatabase(absl::string_view name) {
  return absl::ConsumePrefix(&name, kPrefix) && !name.empty() &&
         std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

absl::Status CannotUse(const std::string& path, int error) {
  const std::string what = absl::StrCat("directory for cold rows ", path);
  if (error == ENOTDIR || error == EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, " is not a directory; name another one (--cold-dir)"));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write to ", what, ": ", std::strerror(error), "; free some space"));
  }
  return absl::PermissionDeniedError(
      absl::StrCat("cannot write to ", what, ": ", std::strerror(error), "; give user id ",
                   geteuid(), " the right to write there, or name another directory (--cold-dir)"));
}

}  // namespace

absl::StatusOr<ColdDirectory> ColdDirectory::Open(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the name of --cold-dir is empty");
  const ErrnoStatus failed_with = [&path](int error) { return CannotUse(path, error); };
  if (absl::Status made = MakeOwnDirectory(path, failed_with); !made.ok()) return made;
  const absl::StatusOr<int> opened = OpenOwnFile(absl::StrCat(path, "/LOCK"), failed_with);
  if (!opened.ok()) return opened.status();
  const int fd = *opened;
  ColdDirectory directory(path, -1);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int failed = errno;
    char text[32] = {};
    const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
    close(fd);
    if (failed != EWOULDBLOCK) return CannotUse(path, failed);
    const long pid = got > 0 ? std::strtol(text, nullptr, 10) : 0;
    return absl::FailedPreconditionError(absl::StrCat(
        "directory for cold rows ", path, " is in use by another verbenad (pid ",
        pid > 0 ? absl::StrCat(pid) : "unknown", "); stop it or use another --cold-dir"));
  }
  directory.lock_ = fd;
  // First: the remains may be the files that fill the disk.
  if (absl::Status removed = directory.RemoveDatabases(); !removed.ok()) return removed;
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return CannotUse(path, errno);
  }
  return directory;
}

ColdDirectory::~ColdDirectory() {
  if (lock_ < 0) return;
  (void)RemoveDatabases();  // remains go with the next start
  close(lock_);
}

std::string ColdDirectory::OfShard(uint32_t shard) const {
  return absl::StrCat(path_, "/", kPrefix, shard);
}

absl::Status ColdDirectory::RemoveDatabases() const {
  std::error_code error;
  for (auto it = std::filesystem::directory_iterator(path_, error);
       !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    if (!IsDatabase(it->path().filename().string())) continue;
    std::error_code failed;
    std::filesystem::remove_all(it->path(), failed);
    if (failed) return CannotUse(it->path().string(), failed.value());
  }
  return error ? CannotUse(path_, error.value()) : absl::OkStatus();
}

}  // namespace verbena::server
