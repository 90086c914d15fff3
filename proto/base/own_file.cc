#include "proto/base/own_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace verbena {
namespace {

bool Trusted(uid_t owner) { return owner == geteuid() || owner == 0; }

absl::Status RefuseOwner(const std::string& path, uid_t owner) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " belongs to user id ", owner, ", and this process runs as user id ",
                   geteuid(), "; give it to user id ", geteuid(), " (chown) or name another path"));
}

}  // namespace

absl::Status RefuseLink(const std::string& path) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is a symbolic link, which is not followed; remove it or name the file"));
}

absl::Status CheckOwnLink(const std::string& path) {
  struct stat named = {};
  if (lstat(path.c_str(), &named) != 0 || !S_ISLNK(named.st_mode)) return absl::OkStatus();
  return Trusted(named.st_uid) ? absl::OkStatus() : RefuseOwner(path, named.st_uid);
}

absl::Status CheckOwnFile(const std::string& path, int fd, const ErrnoStatus& failed) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return failed(errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no regular file; remove it"));
  }
  if (!Trusted(info.st_uid)) return RefuseOwner(path, info.st_uid);
  if (info.st_nlink > 1) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a hard link: the file has ",
                                                      info.st_nlink, " names; remove this one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> OpenOwnFile(const std::string& path, const ErrnoStatus& failed) {
  // Nonblocking, because a pipe of this name would wait for its other end.
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0) return errno == ELOOP ? RefuseLink(path) : failed(errno);
  absl::Status status = CheckOwnFile(path, fd, failed);
  // Earlier versions made files that others could open, and so lock. A file of root stays
  // unchanged.
  struct stat info = {};
  if (status.ok() && fstat(fd, &info) == 0 && info.st_uid == geteuid() &&
      (info.st_mode & 0777) != 0600 && fchmod(fd, 0600) != 0) {
    status = failed(errno);
  }
  if (status.ok()) return fd;
  close(fd);
  return status;
}

absl::Status MakeOwnDirectory(const std::string& path, const ErrnoStatus& failed) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const std::filesystem::path parent = std::filesystem::path(name).parent_path();
  std::error_code error;
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) return failed(error.value());
  if (mkdir(name.c_str(), 0700) == 0) return absl::OkStatus();
  const int why = errno;
  struct stat named = {}, there = {};
  if (why != EEXIST || lstat(name.c_str(), &named) != 0 || stat(name.c_str(), &there) != 0) {
    return failed(why);
  }
  if (!S_ISDIR(there.st_mode)) return failed(ENOTDIR);
  for (const uid_t owner : {named.st_uid, there.st_uid}) {
    if (!Trusted(owner)) return RefuseOwner(path, owner);
  }
  return absl::OkStatus();
}

}  // namespace verbena
