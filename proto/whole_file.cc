#include "proto/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/own_file.h"

namespace verbena {
namespace {

absl::Status CannotWrite(const std::string& path, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("cannot write ", path, ": ", std::strerror(error)));
}

// Where `path` leads when it is a symbolic link to something; else itself.
std::string Follow(const std::string& path) {
  struct stat named = {};
  if (lstat(path.c_str(), &named) != 0 || !S_ISLNK(named.st_mode)) return path;
  const std::unique_ptr<char, decltype(&std::free)> target(realpath(path.c_str(), nullptr),
                                                           &std::free);
  return target == nullptr ? path : target.get();
}

// Without waiting for a pipe's reader to come.
FILE* OpenInPlace(const std::string& place) {
  const int descriptor = open(place.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  if (descriptor < 0) return nullptr;
  if (fcntl(descriptor, F_SETFL, 0) != 0) {
    close(descriptor);
    return nullptr;
  }
  return fdopen(descriptor, "w");
}

// A name that nobody else has: other objects of this process write the same path, and processes of
// other machines and containers with the same id.
FILE* OpenDraft(const std::string& place, std::string* draft) {
  // Drafts that a killed process has left may be in the way.
  constexpr int kMostDrafts = 1000;
  int descriptor = -1;
  for (int i = 0; i < kMostDrafts && descriptor < 0; ++i) {
    *draft = absl::StrCat(place, ".", getpid(), i == 0 ? "" : absl::StrCat(".", i), ".partial");
    descriptor = open(draft->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST) return nullptr;
  }
  return descriptor < 0 ? nullptr : fdopen(descriptor, "w");
}

}  // namespace

WholeFile::WholeFile(std::string path, std::string place, std::string draft, FILE* stream)
    : path_(std::move(path)), place_(std::move(place)), draft_(std::move(draft)), stream_(stream) {}

absl::StatusOr<std::unique_ptr<WholeFile>> WholeFile::Open(const std::string& path) {
  if (absl::Status status = CheckOwnLink(path); !status.ok()) return status;
  std::string place = Follow(path);
  struct stat there = {};
  const bool exists = stat(place.c_str(), &there) == 0;
  if (exists && S_ISDIR(there.st_mode)) return CannotWrite(path, EISDIR);
  std::string draft;
  FILE* stream = nullptr;
  if (exists && !S_ISREG(there.st_mode)) {
    stream = OpenInPlace(place);
  } else {
    stream = OpenDraft(place, &draft);
  }
  if (stream == nullptr) return CannotWrite(path, errno);
  return std::unique_ptr<WholeFile>(
      new WholeFile(path, std::move(place), std::move(draft), stream));
}

absl::Status WholeFile::CanWrite(const std::string& path) {
  if (absl::Status status = CheckOwnLink(path); !status.ok()) return status;
  const std::string place = Follow(path);
  struct stat there = {};
  if (stat(place.c_str(), &there) == 0 && !S_ISREG(there.st_mode) && !S_ISDIR(there.st_mode)) {
    // A pipe's reader would take an opening for the first writer.
    return access(place.c_str(), W_OK) == 0 ? absl::OkStatus() : CannotWrite(path, errno);
  }
  return Open(path).status();
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
