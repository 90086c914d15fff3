// Amount of memory mapped for the data plane in this process, by page kind and NUMA node.
//
// **Thread safety**: thread-safe.
#ifndef VERBENA_RDMA_MEMORY_STATISTICS_H_
#define VERBENA_RDMA_MEMORY_STATISTICS_H_

#include <cstdint>
#include <vector>

#include "rdma/memory/page_options.h"

namespace verbena::rdma {

struct MemoryStatistics {
  struct Entry {
    PageKind pages;
    int node;  // kAnyNode: not bound
    uint64_t bytes;
  };
  std::vector<Entry> entries;        // nonzero entries, and always one for huge pages
  uint64_t huge_page_fallbacks = 0;  // blocks that requested huge pages and got ordinary ones
};
MemoryStatistics GetMemoryStatistics();

// For pages.cc. `bytes` is negative when memory is freed.
void CountMemory(PageKind pages, int node, int64_t bytes);
void CountHugePageFallback();

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_STATISTICS_H_
