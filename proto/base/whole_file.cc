#include "proto/base/whole_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/base/own_file.h"

namespace verbena {
namespace {

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

// The descriptor of this process that `path` refers to, such as the target of /dev/stdout; -1:
// none. It is written in place, because its link is not a path and other writers share its offset.
int DescriptorOf(absl::string_view path) {
  int descriptor = -1;
  const bool named =
      (absl::ConsumePrefix(&path, "/dev/fd/") || absl::ConsumePrefix(&path, "/proc/self/fd/")) &&
      absl::SimpleAtoi(path, &descriptor) && descriptor >= 0;
  return named ? descriptor : -1;
}

// Follows `path` if it is a symbolic link, even to a missing file; returns other paths unchanged.
// Refuses links of other users, like CheckOwnLink().
absl::StatusOr<std::string> Follow(std::string path) {
  constexpr int kMostLinks = 40;  // path_resolution(7)
  for (int i = 0; i < kMostLinks && DescriptorOf(path) < 0; ++i) {
    if (absl::Status status = CheckOwnLink(path); !status.ok()) return status;
    char target[PATH_MAX];
    const ssize_t length = readlink(path.c_str(), target, sizeof(target));
    if (length <= 0 || static_cast<size_t>(length) == sizeof(target)) return path;
    const std::string to(target, static_cast<size_t>(length));
    std::string next = to[0] == '/' ? to : absl::StrCat(path.substr(0, path.rfind('/') + 1), to);
    struct stat info = {};
    // A link in /proc refers to an object, and its text may not be a path.
    if (stat(path.c_str(), &info) == 0 && lstat(next.c_str(), &info) != 0) return path;
    path = std::move(next);
  }
  return path;
}

// Opens without waiting for the reader of a pipe.
FILE* OpenInPlace(const std::string& place) {
  if (const int named = DescriptorOf(place); named >= 0) {
    const int same = fcntl(named, F_DUPFD_CLOEXEC, 0);
    return same < 0 ? nullptr : fdopen(same, "w");
  }
  const int descriptor = open(place.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) return nullptr;
  if (fcntl(descriptor, F_SETFL, 0) != 0) {
    close(descriptor);
    return nullptr;
  }
  return fdopen(descriptor, "w");
}

// Makes a file with a unique name. Other objects of this process may write the same path, and so
// may processes with the same id on other machines and in other containers.
FILE* OpenDraft(const std::string& place, std::string* draft) {
  // Others never get write permission, whatever the umask. Drafts of killed processes may exist.
  constexpr int kMostDrafts = 1000;
  int descriptor = -1;
  for (int i = 0; i < kMostDrafts && descriptor < 0; ++i) {
    *draft = absl::StrCat(place, ".", getpid(), i == 0 ? "" : absl::StrCat(".", i), ".partial");
    descriptor = open(draft->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0 && errno != EEXIST) return nullptr;
  }
  return descriptor < 0 ? nullptr : fdopen(descriptor, "w");
}

}  // namespace

WholeFile::WholeFile(std::string path, std::string place, std::string draft, FILE* stream)
    : path_(std::move(path)), place_(std::move(place)), draft_(std::move(draft)), stream_(stream) {}

absl::StatusOr<std::unique_ptr<WholeFile>> WholeFile::Open(const std::string& path) {
  absl::StatusOr<std::string> followed = Follow(path);
  if (!followed.ok()) return followed.status();
  std::string place = *std::move(followed);
  struct stat there = {};
  const bool exists = stat(place.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode)) return CannotWrite(path, EISDIR);
  std::string draft;
  FILE* stream = nullptr;
  if (exists && (!S_ISREG(there.st_mode) || DescriptorOf(place) >= 0)) {
    stream = OpenInPlace(place);
  } else {
    stream = OpenDraft(place, &draft);
  }
  if (stream == nullptr) return CannotWrite(path, errno);
  return std::unique_ptr<WholeFile>(
      new WholeFile(path, std::move(place), std::move(draft), stream));
}

absl::Status WholeFile::CanWrite(const std::string& path) {
  absl::StatusOr<std::string> followed = Follow(path);
  if (!followed.ok()) return followed.status();
  const std::string place = *std::move(followed);
  struct stat there = {};
  if (stat(place.c_str(), &there) == 0 && !S_ISDIR(there.st_mode) &&
      (!S_ISREG(there.st_mode) || DescriptorOf(place) >= 0)) {
    // Opening a pipe would look like a writer to its reader.
    return access(place.c_str(), W_OK) == 0 ? absl::OkStatus() : CannotWrite(path, errno);
  }
  return Open(path).status();
}

absl::Status WholeFile::Remove(const std::string& path) {
  absl::StatusOr<std::string> followed = Follow(path);
  if (!followed.ok()) return followed.status();
  const std::string place = *std::move(followed);
  struct stat there = {};
  const bool here = lstat(place.c_str(), &there) == 0;
  if (!here || !S_ISREG(there.st_mode) || DescriptorOf(place) >= 0) return absl::OkStatus();
  if (unlink(place.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("cannot remove ", path, ": ", std::strerror(errno)));
}

WholeFile::~WholeFile() {
  if (stream_ != nullptr) std::fclose(stream_);
  if (!draft_.empty() && !committed_) unlink(draft_.c_str());
}

absl::Status WholeFile::Commit() {
  const bool wrote = std::fflush(stream_) == 0 && std::ferror(stream_) == 0;
  const int error = errno;
  const bool closed = std::fclose(std::exchange(stream_, nullptr)) == 0;
  if (!wrote) return CannotWrite(path_, error);
  if (!closed) return CannotWrite(path_, errno);
  if (!draft_.empty() && rename(draft_.c_str(), place_.c_str()) != 0) {
    return CannotWrite(path_, errno);
  }
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace verbena
