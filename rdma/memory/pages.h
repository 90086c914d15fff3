// Maps memory with the requested page kind and NUMA node, or the nearest available.
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
  size_t bytes = 0;  // the requested size, rounded up to pages
  int fd = -1;       // the memfd; -1: private
  PageKind pages = PageKind::kSmall;
  int node = kAnyNode;  // that the pages are bound to
};

// Zeroed; counted in GetMemoryStatistics() until UnmapPages(). RESOURCE_EXHAUSTED: no memory.
absl::StatusOr<Mapping> MapSharedPages(size_t bytes, const PageOptions& options,
                                       std::string_view label);
absl::StatusOr<Mapping> MapPrivatePages(size_t bytes, const PageOptions& options,
                                        std::string_view label);
// Keeps pages small. Private memory with huge-page advice costs a whole huge page when one byte is
// touched, so memory that is filled from front to back keeps its unfilled part in small pages. The
// range consists of whole huge pages, by address. False: the system cannot collapse pages (before
// Linux 6.1), and nothing changed.
bool KeepPagesSmall(std::byte* data, size_t bytes);
// Moves the contents into huge pages now, if available. madvise(2), MADV_COLLAPSE.
void CollapsePages(std::byte* data, size_t bytes);
// Allocates the pages now; before Linux 5.14 they are allocated on touch. False: not enough memory.
// madvise(2), MADV_POPULATE_WRITE.
bool PopulatePages(std::byte* page, size_t bytes);
// Also closes the descriptor.
void UnmapPages(const Mapping& mapping);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_PAGES_H_
