#include "server/coordinator/state_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/base/own_file.h"

namespace verbena::server {

absl::Status CannotUse(const std::string& path, int error) {
  if (error == ENOTDIR || error == EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", path, " is not a directory; name another one (--state)"));
  }
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot write to state directory ", path, ": ",
                                                     std::strerror(error), "; free some space"));
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "cannot write to state directory ", path, ": ", std::strerror(error), "; give user id ",
      geteuid(), " the right to write there, or name another directory (--state)"));
}

absl::StatusOr<StateDirectory> StateDirectory::Open(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("the state directory's name is empty");
  const ErrnoStatus failed = [&path](int error) { return CannotUse(path, error); };
  if (absl::Status made = MakeOwnDirectory(path, failed); !made.ok()) return made;
  const absl::StatusOr<int> opened = OpenOwnFile(path + "/LOCK", failed);
  if (!opened.ok()) return opened.status();
  const int fd = *opened;
  StateDirectory directory(path, fd);
  char text[32] = {};
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return CannotUse(path, errno);
    const ssize_t got = pread(fd, text, sizeof(text) - 1, 0);
    const long pid = got > 0 ? std::strtol(text, nullptr, 10) : 0;
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", path, " is in use by another verbenad (pid ",
                     pid > 0 ? absl::StrCat(pid) : "unknown", "); stop it or use another --state"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return CannotUse(path, errno);
  }
  return directory;
}

StateDirectory::StateDirectory(StateDirectory&& other) noexcept
    : path_(std::move(other.path_)), lock_(std::exchange(other.lock_, -1)) {}

StateDirectory::~StateDirectory() {
  // The file stays: removing it would let two processes lock two files of one name.
  if (lock_ >= 0) close(lock_);
}

absl::Status StateDirectory::Sync() const {
  const int fd = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return CannotUse(path_, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  return result == 0 ? absl::OkStatus() : CannotUse(path_, error);
}

}  // namespace verbena::server
