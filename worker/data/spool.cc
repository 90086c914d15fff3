#include "worker/data/spool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/data/decompressor.h"
#include "worker/data/file.h"

namespace verbena::worker {
namespace {

constexpr size_t kPieceBytes = 256 * 1024;
constexpr char kSpoolFix[] =
    "; set TMPDIR to a folder that can be written and has room, or give a plain file";

std::string Folder() {
  const char* named = std::getenv("TMPDIR");
  return named != nullptr && named[0] != '\0' ? named : "/tmp";
}

// `name` is the input's, for errors.
absl::StatusOr<rdma::UniqueFd> Nameless(const std::string& folder, const std::string& name) {
  rdma::UniqueFd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() >= 0) return fd;
  // Not every file system has files without a name.
  std::string path = folder + "/verbena-train-XXXXXX";
  fd = rdma::UniqueFd(mkostemp(path.data(), O_CLOEXEC));
  if (fd.get() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": cannot make its temporary copy in ",
                                                   folder, ": ", std::strerror(errno), kSpoolFix));
  }
  unlink(path.c_str());
  return fd;
}

// 0, or an errno.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return 0;
}

}  // namespace

absl::StatusOr<rdma::UniqueFd> Spool::Copy(int fd, const std::string& name,
                                           const std::function<absl::Status(uint64_t)>& copied) {
  const std::string folder = Folder();
  absl::StatusOr<rdma::UniqueFd> copy = Nameless(folder, name);
  if (!copy.ok()) return copy;
  uint64_t written = 0;
  const auto keep = [&](std::string_view bytes) -> absl::Status {
    used_ += bytes.size();
    if (used_ > limit_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name, ": temporary copies of pipes and compressed files take more than ",
                       limit_, " bytes; raise --spool-bytes, or give a plain file"));
    }
    const int error = WriteAll(copy->get(), bytes);
    if (error != 0) {
      const char* const limited = error == EFBIG ? " (see ulimit -f)" : "";
      return absl::ResourceExhaustedError(
          absl::StrCat(name, ": cannot write its temporary copy in ", folder, " after ", written,
                       " bytes: ", std::strerror(error), limited, kSpoolFix));
    }
    written += bytes.size();
    return absl::OkStatus();
  };
  std::vector<char> buffer(kPieceBytes);
  std::unique_ptr<Decompressor> decompressor;
  for (bool first = true;; first = false) {
    const absl::StatusOr<size_t> n =
        ReadSome(fd, name, buffer.data(), buffer.size(), [&] { return copied(written); });
    if (!n.ok()) return n.status();
    const std::string_view piece(buffer.data(), *n);
    if (first) {
      const absl::StatusOr<Encoding> encoding = EncodingOf(name, piece);
      if (!encoding.ok()) return encoding.status();
      if (*encoding != Encoding::kPlain) decompressor = Decompressor::Create(*encoding, name);
    }
    absl::Status status = decompressor ? decompressor->Decode(piece, keep) : keep(piece);
    if (status.ok()) status = copied(written);
    if (!status.ok()) return status;
    if (piece.size() == buffer.size()) continue;
    if (decompressor) status = decompressor->Finish();
    if (!status.ok()) return status;
    return copy;
  }
}

}  // namespace verbena::worker
