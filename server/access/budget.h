// Budgets of resources that peers use: the rows of "Budgets of peers" in docs/security.md that
// count how often they were exhausted.
//
// **Thread safety**: every function from any thread.
#ifndef VERBENA_SERVER_ACCESS_BUDGET_H_
#define VERBENA_SERVER_ACCESS_BUDGET_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace verbena::server {

enum class Budget : uint8_t {
  kControlConnections,
  kControlBytes,
  kIncompleteRequest,
  kCoordinatorQueue,
  kShardQueue,
  kStatisticsQueue,
  kWaitingPolls,
  kAuditedCalls,
  kHttpConnections,
  kHttpRequest,
  kHttpReply,
};

// Names in the metric and in the table, by Budget.
inline constexpr std::array<const char*, 11> kBudgetNames = {
    "control-connections", "control-bytes",    "incomplete-request", "coordinator-queue",
    "shard-queue",         "statistics-queue", "waiting-polls",      "audited-calls",
    "http-connections",    "http-request",     "http-reply"};

// A peer was refused or cut off, because the budget is exhausted.
void CountExceeded(Budget budget);
// Counts by Budget, since the process began.
std::array<uint64_t, kBudgetNames.size()> ExceededBudgets();

}  // namespace verbena::server

#endif  // VERBENA_SERVER_ACCESS_BUDGET_H_
