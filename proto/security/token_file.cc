#include "proto/security/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/security/token.h"

namespace verbena {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(1);
// A token has 60 bytes; a larger file is not a token file.
constexpr size_t kMostTokenBytes = 4096;

absl::Status Wrong(const std::string& path, absl::string_view what,
                   absl::string_view kind = "token") {
  return absl::FailedPreconditionError(absl::StrCat(kind, " file ", path, ": ", what));
}

}  // namespace

absl::StatusOr<std::string> ReadSecret(const std::string& path, const std::string& kind) {
  // Nonblocking, because opening a named pipe without a writer would block the process.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Wrong(path, absl::StrCat("cannot be read: ", std::strerror(errno)), kind);
  char bytes[kMostTokenBytes];
  size_t size = 0;
  ssize_t got = 0;
  while (size < sizeof(bytes) && (got = read(fd, bytes + size, sizeof(bytes) - size)) > 0) {
    size += static_cast<size_t>(got);
  }
  const int error = got < 0 ? errno : 0;
  close(fd);
  if (error != 0) return Wrong(path, absl::StrCat("cannot be read: ", std::strerror(error)), kind);
  std::string text(absl::StripAsciiWhitespace(absl::string_view(bytes, size)));
  if (text.empty()) return Wrong(path, absl::StrCat("holds no ", kind), kind);
  return text;
}

absl::StatusOr<std::string> ReadToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSecret(path, "token");
  if (!text.ok()) return text;
  if (absl::StatusOr<std::string> id = TokenId(*text); !id.ok()) {
    return Wrong(path, absl::StrCat("holds ", id.status().message()));
  }
  return text;
}

absl::Status WriteToken(const std::string& path, const std::string& token) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    if (errno == EEXIST)
      return absl::AlreadyExistsError(
          absl::StrCat("token file ", path, " exists; remove it, or name another file"));
    return Wrong(path, absl::StrCat("cannot be made: ", std::strerror(errno)));
  }
  const std::string line = token + "\n";
  const ssize_t written = write(fd, line.data(), line.size());
  const int error = written < 0 ? errno : ENOSPC;
  const bool whole = written == static_cast<ssize_t>(line.size()) && fsync(fd) == 0;
  close(fd);
  if (whole) return absl::OkStatus();
  unlink(path.c_str());
  return Wrong(path, absl::StrCat("cannot be written: ", std::strerror(error)));
}

absl::StatusOr<std::shared_ptr<TokenFile>> TokenFile::Open(const std::string& path) {
  if (path.empty()) return std::shared_ptr<TokenFile>();
  absl::StatusOr<std::string> token = ReadToken(path);
  if (!token.ok()) return token.status();
  return std::shared_ptr<TokenFile>(new TokenFile(path, *std::move(token)));
}

std::string TokenFile::Current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const absl::Time now = absl::Now();
  // The second condition covers a clock that was set back.
  if (now - looked_ >= kLookAgain || now < looked_) {
    looked_ = now;
    if (absl::StatusOr<std::string> token = ReadToken(path_); token.ok()) {
      token_ = *std::move(token);
    }
  }
  return token_;
}

}  // namespace verbena
