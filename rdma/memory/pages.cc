#include "rdma/memory/pages.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/base/unique_fd.h"
#include "rdma/memory/statistics.h"
#include "rdma/memory/topology.h"

namespace verbena::rdma {
namespace {

// memfd_create(2): a name of more than 249 bytes is EINVAL.
constexpr size_t kMaxLabel = 200;
// prctl(2), PR_SET_VMA_ANON_NAME: 80 bytes with the terminating null.
constexpr size_t kMaxMappingName = 79;
// Of a block in huge pages at most an eighth is lost to rounding: the pool is for everybody.
constexpr size_t kWasteShare = 8;

constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

size_t PageBytes() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// Shared memory is a memfd, which a peer can map and nobody can truncate.
std::string Remedy(int error) {
  if (error != EMFILE) return "; see memory limits (cgroup, ulimit -v) and free -h";
  struct rlimit limit = {};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return absl::StrCat("; each allocated region takes a descriptor, and this process may have ",
                      known ? absl::StrCat(limit.rlim_cur) : "no more",
                      " (ulimit -n): raise the limit, or allocate fewer and larger regions");
}

absl::Status NoMemory(size_t bytes, const char* what, const char* step, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes of ", what,
                                                   " memory: ", step, ": ", strerror(error),
                                                   " (errno ", error, ")", Remedy(error)));
}

// Pages are allocated when touched, so nothing else would refuse a size the machine cannot have:
// the process would be killed much later instead.
absl::Status CheckFitsMachine(size_t bytes, const char* what) {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return absl::OkStatus();
  const uint64_t total = (uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
  if (bytes <= total) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes, " bytes of ", what,
                                                   " memory: the machine has ", total,
                                                   " bytes of RAM and swap"));
}

absl::Status Check(size_t bytes, const char* what) {
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate 0 bytes");
  return CheckFitsMachine(bytes, what);
}

bool WantsHugePages(size_t bytes, const PageOptions& options) {
  return options.huge == HugePages::kAuto && bytes >= kHugePageBytes &&
         RoundUp(bytes, kHugePageBytes) - bytes <= bytes / kWasteShare;
}

std::string Name(std::string_view label) {
  return absl::StrCat("verbena-", std::string(label.substr(0, kMaxLabel)));
}

// An empty memfd of `bytes`, sealed. errno says why there is none.
UniqueFd SealedMemfd(size_t bytes, const std::string& name, unsigned flags, const char** step) {
  *step = "memfd_create";
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd.valid()) return {};
  *step = "ftruncate";
  int failed = ftruncate(fd.get(), static_cast<off_t>(bytes));
  if (failed == 0) {
    // A peer that maps this must not be made to fault by truncation: fcntl(2), "File Sealing". On
    // hugetlbfs since Linux 4.16.
    *step = "fcntl(F_ADD_SEALS)";
    failed = fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  }
  if (failed == 0) return fd;
  const int error = errno;
  fd.reset();
  errno = error;
  return {};
}

// Node and page kind of a fresh mapping, and the books.
void Finish(Mapping* mapping, const PageOptions& options) {
  if (options.numa_node >= 0 && PreferNode(mapping->data, mapping->bytes, options.numa_node)) {
    mapping->node = options.numa_node;
  }
  if (mapping->pages != PageKind::kHuge && mapping->bytes >= kHugePageBytes) {
    // Only advice: takes effect where "enabled" (private) or "shmem_enabled" (shared) is "advise"
    // (kernel, transhuge.rst).
    const bool advised = madvise(mapping->data, mapping->bytes, MADV_HUGEPAGE) == 0;
    if (advised) mapping->pages = PageKind::kAdvised;
  }
  // A child of fork(2) has no use for it, and would get copies at once of every page a device has
  // pinned (since Linux 5.12): much time and memory, and with huge pages an ENOMEM.
  if (mapping->fd < 0) (void)madvise(mapping->data, mapping->bytes, MADV_DONTFORK);
  CountMemory(mapping->pages, mapping->node, static_cast<int64_t>(mapping->bytes));
}

// None: there are not enough huge pages, or not for us.
std::optional<Mapping> MapHuge(size_t bytes, const PageOptions& options, const std::string* memfd) {
  Mapping mapping;
  mapping.bytes = RoundUp(bytes, kHugePageBytes);
  mapping.pages = PageKind::kHuge;
  UniqueFd fd;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | static_cast<int>(MFD_HUGE_2MB);
  if (memfd != nullptr) {
    const char* step = nullptr;
    fd = SealedMemfd(mapping.bytes, *memfd, MFD_HUGETLB | MFD_HUGE_2MB, &step);
    if (!fd.valid()) return std::nullopt;
    flags = MAP_SHARED;
  }
  void* data = mmap(nullptr, mapping.bytes, PROT_READ | PROT_WRITE, flags, fd.get(), 0);
  if (data == MAP_FAILED) return std::nullopt;
  mapping.data = static_cast<std::byte*>(data);
  mapping.fd = fd.release();
  Finish(&mapping, options);
  // Huge pages are reserved by mmap(2) itself (no MAP_NORESERVE), which fails when the pool has not
  // enough; so an access cannot end in SIGBUS for want of a page, unless somebody punches a hole in
  // a shared one. A hugetlb cgroup, however, may charge at the fault and then SIGBUS is its answer
  // (kernel, cgroup-v2.rst, hugetlb.<size>.max): the pages are had now, where that is an error
  // code. It costs nothing but time, since nobody else can have them.
  if (PopulatePages(mapping.data, mapping.bytes)) return mapping;
  UnmapPages(mapping);
  return std::nullopt;
}

}  // namespace

absl::StatusOr<Mapping> MapSharedPages(size_t bytes, const PageOptions& options,
                                       std::string_view label) {
  if (absl::Status status = Check(bytes, "shared"); !status.ok()) return status;
  const std::string name = Name(label);
  if (WantsHugePages(bytes, options)) {
    if (auto huge = MapHuge(bytes, options, &name); huge.has_value()) return *huge;
    CountHugePageFallback();
  }
  const char* step = nullptr;
  UniqueFd fd = SealedMemfd(bytes, name, 0, &step);
  if (!fd.valid()) return NoMemory(bytes, "shared", step, errno);
  Mapping mapping;
  mapping.bytes = RoundUp(bytes, PageBytes());
  void* data = mmap(nullptr, mapping.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, "shared", "mmap", errno);
  mapping.data = static_cast<std::byte*>(data);
  mapping.fd = fd.release();
  Finish(&mapping, options);
  return mapping;
}

absl::StatusOr<Mapping> MapPrivatePages(size_t bytes, const PageOptions& options,
                                        std::string_view label) {
  if (absl::Status status = Check(bytes, "private"); !status.ok()) return status;
  std::optional<Mapping> mapping;
  if (WantsHugePages(bytes, options)) {
    mapping = MapHuge(bytes, options, nullptr);
    if (!mapping.has_value()) CountHugePageFallback();
  }
  if (!mapping.has_value()) {
    mapping.emplace();
    mapping->bytes = RoundUp(bytes, PageBytes());
    void* data =
        mmap(nullptr, mapping->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NoMemory(bytes, "private", "mmap", errno);
    mapping->data = static_cast<std::byte*>(data);
    Finish(&*mapping, options);
  }
  // For whoever reads /proc/PID/maps; kernels without names for anonymous memory say EINVAL.
  const std::string name = Name(label).substr(0, kMaxMappingName);
  (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, mapping->data, mapping->bytes, name.c_str());
  return *mapping;
}

bool KeepPagesSmall(std::byte* data, size_t bytes) {
  // Of no bytes it says only whether there is such advice.
  static const bool can_collapse = madvise(nullptr, 0, kCollapse) == 0;
  return can_collapse && madvise(data, bytes, MADV_NOHUGEPAGE) == 0;
}

void CollapsePages(std::byte* data, size_t bytes) {
  (void)madvise(data, bytes, MADV_HUGEPAGE);
  (void)madvise(data, bytes, kCollapse);  // or the system does it later
}

bool PopulatePages(std::byte* page, size_t bytes) {
  return madvise(page, bytes, MADV_POPULATE_WRITE) == 0 || errno == EINVAL;
}

void UnmapPages(const Mapping& mapping) {
  munmap(mapping.data, mapping.bytes);
  if (mapping.fd >= 0) close(mapping.fd);
  CountMemory(mapping.pages, mapping.node, -static_cast<int64_t>(mapping.bytes));
}

}  // namespace verbena::rdma
