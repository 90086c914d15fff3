#include "rdma/memory/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "rdma/base/unique_fd.h"

namespace verbena::rdma {
namespace {

std::atomic<uint64_t> next_block_id{1};

// memfd_create(2): a name of more than 249 bytes is EINVAL.
constexpr size_t kMaxLabel = 200;
// Transparent huge pages matter, and can exist, only from this size on.
constexpr size_t kHugePage = size_t{2} << 20;

absl::Status NoMemory(size_t bytes, std::string_view step, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot allocate ", bytes, " bytes of shared memory: ", std::string(step), ": ",
      strerror(error), " (errno ", error, "); see memory limits (cgroup, ulimit -v) and free -h"));
}

absl::Status CheckKind(MemoryKind kind) {
  if (kind == MemoryKind::kHost) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("memory kind ", std::string(MemoryKindName(kind)), ": this build has no CUDA"));
}

// Pages are allocated when touched, so nothing else would refuse a size the machine cannot have:
// the process would be killed much later instead.
absl::Status CheckFitsMachine(size_t bytes) {
  struct sysinfo info = {};
  if (sysinfo(&info) != 0) return absl::OkStatus();
  const uint64_t total = (uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
  if (bytes <= total) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot allocate ", bytes,
                                                   " bytes of shared memory: the machine has ",
                                                   total, " bytes of RAM and swap"));
}

}  // namespace

std::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Allocate(size_t bytes, MemoryKind kind,
                                                                   std::string_view label) {
  if (absl::Status status = CheckKind(kind); !status.ok()) return status;
  if (bytes == 0) return absl::InvalidArgumentError("cannot allocate 0 bytes");
  if (absl::Status status = CheckFitsMachine(bytes); !status.ok()) return status;

  const std::string name = absl::StrCat("verbena-", std::string(label.substr(0, kMaxLabel)));
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory(bytes, "memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return NoMemory(bytes, "ftruncate", errno);
  }
  // A peer that maps this must not be made to fault by truncation: fcntl(2), "File Sealing".
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return NoMemory(bytes, "fcntl(F_ADD_SEALS)", errno);
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return NoMemory(bytes, "mmap", errno);
  // Only advice: takes effect where shmem_enabled is "advise" (kernel, transhuge.rst).
  if (bytes >= kHugePage) (void)madvise(data, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<MemoryBlock>(
      new MemoryBlock(static_cast<std::byte*>(data), bytes, kind, fd.release()));
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> MemoryBlock::Register(void* data, size_t bytes,
                                                                   MemoryKind kind) {
  if (absl::Status status = CheckKind(kind); !status.ok()) return status;
  if (data == nullptr) return absl::InvalidArgumentError("cannot register a null pointer");
  if (bytes == 0) return absl::InvalidArgumentError("cannot register 0 bytes");
  return std::shared_ptr<MemoryBlock>(
      new MemoryBlock(static_cast<std::byte*>(data), bytes, kind, -1));
}

MemoryBlock::MemoryBlock(std::byte* data, size_t size, MemoryKind kind, int fd)
    : data_(data),
      size_(size),
      kind_(kind),
      fd_(fd),
      // Relaxed: only uniqueness is wanted.
      id_(next_block_id.fetch_add(1, std::memory_order_relaxed)) {}

MemoryBlock::~MemoryBlock() {
  if (fd_ < 0) return;
  munmap(data_, size_);
  close(fd_);
}

}  // namespace verbena::rdma
