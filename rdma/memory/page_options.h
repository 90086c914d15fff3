// Which pages memory of ours is made of, and on which NUMA node.
//
// **Thread safety**: plain values.
#ifndef VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_
#define VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_

#include <cstdint>
#include <string_view>

namespace verbena::rdma {

inline constexpr int kAnyNode = -1;

enum class HugePages : uint8_t {
  kAuto,  // pages of 2 MiB when the system has enough of them and at most an eighth would be waste
  kOff,   // ordinary pages; transparent huge ones where the system gives those on advice
};

struct PageOptions {
  // Where the pages should be; another node gives what this one has not. kAnyNode: where touched.
  int numa_node = kAnyNode;
  HugePages huge = HugePages::kAuto;
};

// What memory with its own descriptor is made of unless said otherwise. A peer that was given a
// memfd may punch holes in it (no seal that leaves it writable stops that: fcntl(2)). An ordinary
// page then comes back as zeros; a huge one only if the system still has one, else its owner's next
// access ends in SIGBUS. So huge pages are shared only by who trusts every peer not to do that.
inline constexpr PageOptions kSharedPages = {kAnyNode, HugePages::kOff};

enum class PageKind : uint8_t {
  kHuge,     // of 2 MiB, from the system's pool (hugetlb)
  kAdvised,  // ordinary; the system was advised to use transparent huge pages and may have
  kSmall,
};
std::string_view PageKindName(PageKind kind);  // "huge", "advised", "small"

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_
