// The input of a plan for balance, from the coordinator's view and the reports of servers.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_BALANCE_CLUSTER_LOAD_H_
#define VERBENA_SERVER_BALANCE_CLUSTER_LOAD_H_

#include <cstdint>
#include <map>
#include <set>

#include "absl/status/status.h"
#include "server/balance/balance_plan.h"
#include "verbena/v1/cluster.pb.h"
#include "verbena/v1/shard.pb.h"

namespace verbena::server {

// By incarnation, with GetStatisticsRequest::partitions.
using ServerReports = std::map<uint64_t, v1::GetStatisticsResponse>;

// `full`: servers that had no memory for a replica (GetViewResponse::full_servers). Partitions with
// a learner, too few replicas, a move or a surplus follower stay where they are; the last two count
// where the move will have brought them.
BalanceInput BalanceInputOf(const v1::ClusterView& view, const ServerReports& reports,
                            const std::set<uint64_t>& full);

// Partitions that are being moved, or whose move has left a follower that is not dropped yet.
uint32_t PartitionsInMove(const v1::ClusterView& view);
// Partitions with fewer replicas than wanted, or than there are servers that may have some.
uint32_t PartitionsIncomplete(const v1::ClusterView& view);

// FAILED_PRECONDITION with the fix: fewer than two servers count, or no partition is placed.
absl::Status MayPlanBalance(const v1::ClusterView& view);
// Also if moves are in progress.
absl::Status MayBalance(const v1::ClusterView& view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_BALANCE_CLUSTER_LOAD_H_
