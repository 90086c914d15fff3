#include "worker/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

constexpr size_t kPieceBytes = 256 * 1024;

absl::Status FileError(const std::string& path, const char* what, int error) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", std::strerror(error));
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

}  // namespace

absl::Status ReadPieces(const std::string& path,
                        const std::function<absl::Status(std::string_view)>& take) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(path, "open", errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  std::vector<char> buffer(kPieceBytes);
  for (;;) {
    const ssize_t n = read(fd, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(path, "read", errno);
    if (n == 0) return absl::OkStatus();
    const absl::Status status = take(std::string_view(buffer.data(), static_cast<size_t>(n)));
    if (!status.ok()) return status;
  }
}

absl::StatusOr<std::string> ReadBytes(const std::string& path) {
  std::string bytes;
  absl::Status status = ReadPieces(path, [&](std::string_view piece) {
    bytes.append(piece);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace verbena::worker
