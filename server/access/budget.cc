#include "server/access/budget.h"

#include <atomic>

namespace verbena::server {
namespace {

std::array<std::atomic<uint64_t>, kBudgetNames.size()> exceeded = {};

}  // namespace

void CountExceeded(Budget budget) {
  exceeded[static_cast<size_t>(budget)].fetch_add(1, std::memory_order_relaxed);
}

std::array<uint64_t, kBudgetNames.size()> ExceededBudgets() {
  std::array<uint64_t, kBudgetNames.size()> counts = {};
  for (size_t i = 0; i < counts.size(); ++i)
    counts[i] = exceeded[i].load(std::memory_order_relaxed);
  return counts;
}

}  // namespace verbena::server
