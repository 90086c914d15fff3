#include "rdma/memory/statistics.h"

#include <array>
#include <atomic>
#include <cstddef>

namespace verbena::rdma {
namespace {

// Nodes from this number on are counted as "any": a gauge does not justify a map with a lock.
constexpr int kMaxNodes = 64;
constexpr size_t kPageKinds = 3;

// Relaxed throughout: no decision depends on these sums.
std::array<std::array<std::atomic<int64_t>, kMaxNodes + 1>, kPageKinds> mapped_bytes;
std::atomic<uint64_t> huge_page_fallbacks;

size_t Slot(int node) { return node < 0 || node >= kMaxNodes ? 0 : static_cast<size_t>(node) + 1; }

}  // namespace

std::string_view PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kHuge:
      return "huge";
    case PageKind::kAdvised:
      return "advised";
    case PageKind::kSmall:
      return "small";
  }
  return "unknown";
}

MemoryStatistics GetMemoryStatistics() {
  MemoryStatistics statistics;
  for (size_t kind = 0; kind < kPageKinds; ++kind) {
    for (size_t slot = 0; slot <= kMaxNodes; ++slot) {
      const int64_t bytes = mapped_bytes[kind][slot].load(std::memory_order_relaxed);
      const auto pages = static_cast<PageKind>(kind);
      // The entry with zero shows that there are no huge pages.
      if (bytes <= 0 && !(pages == PageKind::kHuge && slot == 0)) continue;
      statistics.entries.push_back(
          {pages, static_cast<int>(slot) - 1, static_cast<uint64_t>(bytes)});
    }
  }
  statistics.huge_page_fallbacks = huge_page_fallbacks.load(std::memory_order_relaxed);
  return statistics;
}

void CountMemory(PageKind pages, int node, int64_t bytes) {
  mapped_bytes[static_cast<size_t>(pages)][Slot(node)].fetch_add(bytes, std::memory_order_relaxed);
}

void CountHugePageFallback() { huge_page_fallbacks.fetch_add(1, std::memory_order_relaxed); }

}  // namespace verbena::rdma
