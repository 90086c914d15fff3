// How much memory this process has mapped for the data plane, by kind of page and NUMA node.
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
    int node;  // kAnyNode: bound to none
    uint64_t bytes;
  };
  std::vector<Entry> entries;        // that are not zero, and huge pages of any node
  uint64_t huge_page_fallbacks = 0;  // blocks that asked for huge pages and got ordinary ones
};
MemoryStatistics GetMemoryStatistics();

// For pages.cc. `bytes` is negative when memory is given back.
void CountMemory(PageKind pages, int node, int64_t bytes);
void CountHugePageFallback();

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_STATISTICS_H_
