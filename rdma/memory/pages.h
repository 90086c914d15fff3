// Maps memory of the page kind and NUMA node that was asked for, or the nearest there is.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_RDMA_MEMORY_PAGES_H_
#define VERBENA_RDMA_MEMORY_PAGES_H_

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "rdma/memory/page_options.h"

namespace verbena::rdma {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

inline constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Mapping {
  std::byte* data = nullptr;
  size_t bytes = 0;  // mapped: what was asked for, rounded up to pages
  int fd = -1;       // the memfd; -1: private
  PageKind pages = PageKind::kSmall;
  int node = kAnyNode;  // that the pages were bound to
};

// Zeroed; counted in GetMemoryStatistics() until UnmapPages(). RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<Mapping> MapSharedPages(size_t bytes, const PageOptions& options,
                                       std::string_view label);
absl::StatusOr<Mapping> MapPrivatePages(size_t bytes, const PageOptions& options,
                                        std::string_view label);
// Private memory that is advised to be in huge pages costs a whole one as soon as a byte is
// touched. Who fills it from front to back keeps what is not full in small pages first. Whole huge
// pages, by their addresses. False: the system cannot collapse pages (before Linux 6.1), and
// nothing changed.
bool KeepPagesSmall(std::byte* data, size_t bytes);
// What is there moves into huge pages, now if there are some. madvise(2), MADV_COLLAPSE.
void CollapsePages(std::byte* data, size_t bytes);
// The system gives the pages now; before Linux 5.14 when they are touched. False: it has not
// enough. madvise(2), MADV_POPULATE_WRITE.
bool PopulatePages(std::byte* page, size_t bytes);
// Closes the descriptor too.
void UnmapPages(const Mapping& mapping);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_PAGES_H_
