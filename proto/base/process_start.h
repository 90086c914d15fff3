// Process setup that every program of this project runs first in main().
//
// **Thread safety**: call before any thread exists.
#ifndef VERBENA_PROTO_BASE_PROCESS_START_H_
#define VERBENA_PROTO_BASE_PROCESS_START_H_

#include <cstddef>

namespace verbena {

// Blocks of at least this size are mapped individually and returned to the system when freed.
inline constexpr size_t kMappedBlockBytes = size_t{4} << 20;

// Bytes of RLIMIT_AS for each heap of malloc(). A heap reserves a sixteenth of that: 64 MiB.
inline constexpr size_t kAddressSpaceOfHeap = size_t{1} << 30;

// Calls all of the functions below.
void PrepareProcess();

// Opens /dev/null for each closed descriptor of 0 to 2. Otherwise a file that is opened later gets
// this number, and log lines are written into the file.
void OpenStandardDescriptors();

// Ignores SIGPIPE and SIGXFSZ. A pipe without a reader and a file beyond RLIMIT_FSIZE then become
// errors of write(2), which are reported.
void IgnoreWriteSignals();

// Raises the soft limit of open descriptors to the hard limit. A lane needs up to 12.
void RaiseDescriptorLimit();

// Sets a fixed threshold for mapped blocks. By default glibc raises the threshold to the size of
// each mapped block that is freed (up to 32 MiB). libfabric allocates a pool of 12 MiB per
// connection: after the first connection closes, later pools come from the heap, where fragments
// keep their pages. Resident memory then grows with each reconnection, to twice the memory in use.
// The environment variable MALLOC_MMAP_THRESHOLD_ takes precedence. The client library does not
// change its host program's malloc(); docs/ofi.md describes the variable.
void ReturnLargeBlocks();

// Where RLIMIT_AS (ulimit -v) is set, bounds the heaps of malloc(): one for each
// kAddressSpaceOfHeap of it. glibc gives each thread a heap of its own, up to eight for each
// processor. Sixteen heaps take a limit of 1 GiB: threads can then not be started, for which
// gRPC 1.51 waits for ever, and allocations fail.
// The environment variable MALLOC_ARENA_MAX takes precedence.
void BoundHeaps();

}  // namespace verbena

#endif  // VERBENA_PROTO_BASE_PROCESS_START_H_
