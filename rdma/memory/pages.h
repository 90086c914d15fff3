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
// Closes the descriptor too.
void UnmapPages(const Mapping& mapping);

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_PAGES_H_
