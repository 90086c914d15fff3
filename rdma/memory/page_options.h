// Page kind and NUMA node of allocated memory.
//
// **Thread safety**: plain values.
#ifndef VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_
#define VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_

#include <cstdint>
#include <string_view>

namespace verbena::rdma {

inline constexpr int kAnyNode = -1;

enum class HugePages : uint8_t {
  kAuto,  // 2 MiB pages, if enough are free and at most an eighth would be wasted
  kOff,   // ordinary pages; transparent huge pages where the system gives them on advice
};

struct PageOptions {
  // Preferred node of the pages; other nodes are used if it is full. kAnyNode: the node of the
  // first touch.
  int numa_node = kAnyNode;
  HugePages huge = HugePages::kAuto;
};

// Default for memory with its own descriptor. A peer that has a memfd may punch holes in it (no
// seal prevents that in writable memory: fcntl(2)). An ordinary page is then replaced by zeros. A
// huge page is replaced only if the system has one left; otherwise its owner's next access ends in
// SIGBUS. So share huge pages only if every peer is trusted.
inline constexpr PageOptions kSharedPages = {kAnyNode, HugePages::kOff};

enum class PageKind : uint8_t {
  kHuge,     // of 2 MiB, from the system's pool (hugetlb)
  kAdvised,  // ordinary; the system may use transparent huge pages, as advised
  kSmall,
};
std::string_view PageKindName(PageKind kind);  // "huge", "advised", "small"

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_MEMORY_PAGE_OPTIONS_H_
