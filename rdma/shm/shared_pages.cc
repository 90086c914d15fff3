#include "rdma/shm/shared_pages.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::rdma {
namespace {

constexpr int kRequiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t PageSize() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

absl::Status Errno(std::string_view what, const char* step) {
  const int error = errno;
  return absl::ResourceExhaustedError(absl::StrCat("shm: ", std::string(what), ": ", step, ": ",
                                                   strerror(error), " (errno ", error, ")"));
}

// Also returns the size of the pages for the mapping.
absl::Status CheckForeign(int fd, uint64_t offset, uint64_t bytes, std::string_view what,
                          size_t* page_bytes) {
  const std::string name(what);
  struct statfs fs = {};
  // The pages are ordinary or huge. A huge page that was punched out may be unavailable later; the
  // guard handles that fault.
  if (fstatfs(fd, &fs) != 0 || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC)) {
    return absl::FailedPreconditionError(absl::StrCat("shm: ", name, " of the peer is no memfd"));
  }
  *page_bytes = fs.f_type == HUGETLBFS_MAGIC ? static_cast<size_t>(fs.f_bsize) : PageSize();
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kRequiredSeals) != kRequiredSeals) {
    return absl::FailedPreconditionError(
        absl::StrCat("shm: ", name, " of the peer is not sealed against shrinking (seals ", seals,
                     ", wanted SHRINK|GROW|SEAL = ", kRequiredSeals, ")"));
  }
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Errno(what, "fstat");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (bytes == 0 || offset > size || bytes > size - offset) {
    return absl::FailedPreconditionError(absl::StrCat("shm: ", name, " of the peer has ", size,
                                                      " bytes; announced were ", bytes, " at ",
                                                      offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OwnedPages>> OwnedPages::Create(size_t bytes, PeerMay peer_may,
                                                               const char* name) {
  const size_t size = (bytes + PageSize() - 1) / PageSize() * PageSize();
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Errno(name, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return Errno(name, "ftruncate");
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return Errno(name, "mmap");
  std::unique_ptr<OwnedPages> pages(
      new OwnedPages(static_cast<std::byte*>(data), size, std::move(fd)));
  // Kernels before 5.1 refuse FUTURE_WRITE; a peer could then map the page writable.
  if (peer_may == PeerMay::kRead) (void)fcntl(pages->fd(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (fcntl(pages->fd(), F_ADD_SEALS, kRequiredSeals) != 0) return Errno(name, "F_ADD_SEALS");
  return pages;
}

OwnedPages::~OwnedPages() { munmap(data_, size_); }

absl::StatusOr<std::unique_ptr<ForeignPages>> ForeignPages::Map(int fd, uint64_t offset,
                                                                uint64_t bytes, bool writable,
                                                                std::string_view what) {
  size_t page = 0;
  absl::Status status = CheckForeign(fd, offset, bytes, what, &page);
  if (!status.ok()) return status;
  // mmap(2): with huge pages, offset and length must be multiples of the huge page size.
  const uint64_t skipped = offset % page;
  const size_t length = (skipped + bytes + page - 1) / page * page;
  void* mapped = mmap(nullptr, length, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd,
                      static_cast<off_t>(offset - skipped));
  if (mapped == MAP_FAILED) return Errno(what, "mmap");
  // A forked child must not continue to write to a peer that considers this side gone.
  (void)madvise(mapped, length, MADV_DONTFORK);
  std::unique_ptr<ForeignPages> pages(new ForeignPages);
  pages->mapped_ = mapped;
  pages->mapped_bytes_ = length;
  pages->data_ = static_cast<std::byte*>(mapped) + skipped;
  pages->size_ = bytes;
  pages->guard_ = SigbusGuard(mapped, length);
  return pages;
}

ForeignPages::~ForeignPages() {
  guard_ = SigbusGuard();  // before the address can be reused
  munmap(mapped_, mapped_bytes_);
}

}  // namespace verbena::rdma
