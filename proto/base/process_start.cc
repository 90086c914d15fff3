#include "proto/base/process_start.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace verbena {

void OpenStandardDescriptors() {
  // open() returns the lowest free number.
  for (int fd = open("/dev/null", O_RDWR); fd >= 0; fd = open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    return;
  }
}

void IgnoreWriteSignals() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

void RaiseDescriptorLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

void ReturnLargeBlocks() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMappedBlockBytes));
#endif
}

void BoundHeaps() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_ARENA_MAX") != nullptr) return;
  rlimit limit = {};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const rlim_t by_default = 8 * static_cast<rlim_t>(std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L));
  const rlim_t heaps = std::max<rlim_t>(limit.rlim_cur / kAddressSpaceOfHeap, 1);
  if (heaps < by_default) mallopt(M_ARENA_MAX, static_cast<int>(heaps));
#endif
}

void PrepareProcess() {
  OpenStandardDescriptors();
  IgnoreWriteSignals();
  RaiseDescriptorLimit();
  ReturnLargeBlocks();
  BoundHeaps();
}

}  // namespace verbena
