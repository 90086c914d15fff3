#include "worker/data/data_identity.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>

namespace verbena::worker {
namespace {

// Read of each end of a file.
constexpr size_t kEndBytes = size_t{64} << 10;

using HashState = std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)>;

bool AddRange(int fd, uint64_t first, uint64_t last, XXH64_state_t* state) {
  std::array<std::byte, kEndBytes> bytes;
  while (first < last) {
    const ssize_t n = pread(fd, bytes.data(), std::min<uint64_t>(bytes.size(), last - first),
                            static_cast<off_t>(first));
    if (n <= 0) return false;
    XXH64_update(state, bytes.data(), static_cast<size_t>(n));
    first += static_cast<uint64_t>(n);
  }
  return true;
}

// Its size; 0 where it cannot be added.
uint64_t AddFile(int fd, XXH64_state_t* state) {
  struct stat about;
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size <= 0) return 0;
  const auto size = static_cast<uint64_t>(about.st_size);
  XXH64_update(state, &size, sizeof size);
  const uint64_t begin = std::min<uint64_t>(size, kEndBytes);
  const uint64_t end = std::max(begin, size - std::min<uint64_t>(size, kEndBytes));
  return AddRange(fd, 0, begin, state) && AddRange(fd, end, size, state) ? size : 0;
}

}  // namespace

DataIdentity IdentityOf(const std::vector<std::string>& paths) {
  const HashState state(XXH64_createState(), &XXH64_freeState);
  XXH64_reset(state.get(), 0);
  DataIdentity identity;
  for (const std::string& path : paths) {
    // To open a pipe and close it again would end its writer.
    struct stat about;
    if (stat(path.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return {};
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    const uint64_t size = AddFile(fd, state.get());
    close(fd);
    if (size == 0) return {};
    identity.bytes += size;
  }
  identity.hash = XXH64_digest(state.get()) >> 1;
  return identity;
}

}  // namespace verbena::worker
