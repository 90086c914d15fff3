// Process setup that every program of this project runs first in main().
//
// **Thread safety**: call before any thread exists.
#ifndef VERBENA_PROTO_PROCESS_START_H_
#define VERBENA_PROTO_PROCESS_START_H_

#include <cstddef>

namespace verbena {

// Blocks of at least this many bytes are mapped one by one and returned to the system when freed.
inline constexpr size_t kMappedBlockBytes = size_t{4} << 20;

// Calls all of the functions below.
void PrepareProcess();

// Opens /dev/null for each of the descriptors 0 to 2 that is closed. Otherwise a file that is
// opened later gets such a number, and log lines are written into it.
void OpenStandardDescriptors();

// Ignores SIGPIPE and SIGXFSZ, so that a pipe without a reader and a file beyond RLIMIT_FSIZE are
// errors of write(2), which are reported.
void IgnoreWriteSignals();

// Raises the soft limit of open descriptors to the hard one. A lane needs up to 12.
void RaiseDescriptorLimit();

// By default glibc raises its threshold for mapped blocks to the size of each mapped block that is
// freed (up to 32 MiB). libfabric allocates a pool of 12 MiB for each connection: after the first
// connection has closed, all later pools come from the heap, where fragments keep their pages.
// Resident memory then grows with each reconnection, to twice of what is in use.
// A fixed threshold prevents it. The environment variable MALLOC_MMAP_THRESHOLD_ takes precedence.
// The library leaves its host program's malloc() alone; docs/ofi.md names the variable.
void ReturnLargeBlocks();

}  // namespace verbena

#endif  // VERBENA_PROTO_PROCESS_START_H_
