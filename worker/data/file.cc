#include "worker/data/file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

// `read_more` gets the number of bytes that were read already, and returns as read() does.
template <typename ReadMore>
absl::StatusOr<size_t> ReadAll(const std::string& name, size_t size, const ReadMore& read_more,
                               const std::function<absl::Status()>& interrupted) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = read_more(done);
    if (n < 0 && errno == EINTR) {
      if (absl::Status status = interrupted(); !status.ok()) return status;
      continue;
    }
    if (n < 0) return FileError(name, "read", errno);
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

}  // namespace

absl::Status FileError(const std::string& name, const char* action, int error) {
  const std::string text = absl::StrCat("cannot ", action, " ", name, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::InvalidArgumentError(text);
  }
}

absl::StatusOr<size_t> ReadSome(int fd, const std::string& name, char* to, size_t size,
                                const std::function<absl::Status()>& interrupted) {
  return ReadAll(
      name, size, [&](size_t done) { return read(fd, to + done, size - done); }, interrupted);
}

absl::StatusOr<size_t> ReadAt(int fd, const std::string& name, uint64_t offset, char* to,
                              size_t size) {
  const auto read_more = [&](size_t done) {
    return pread(fd, to + done, size - done, static_cast<off_t>(offset + done));
  };
  return ReadAll(name, size, read_more, [] { return absl::OkStatus(); });
}

}  // namespace verbena::worker
