// Problems of a cluster, and the placement of its partitions.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SERVER_CLI_VERBENA_HEALTH_H_
#define VERBENA_SERVER_CLI_VERBENA_HEALTH_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

struct PartitionCount {
  uint32_t partitions = 0;  // that it is primary of
  uint32_t alone = 0;       // of these, without a follower
  uint32_t heirless = 0;    // of these, with followers of which none lives
  uint32_t followers = 0, learners = 0;
  uint32_t lost = 0;  // those for which a table has lost its only replica
};

struct Placement {
  PartitionCount all;
  uint32_t unassigned = 0;
  // Assigned, with fewer than `replicas` living replicas; a learner does not count yet.
  uint32_t incomplete = 0;
  uint32_t dead = 0;  // of these, without a living replica
  std::map<std::pair<uint64_t, uint32_t>, PartitionCount> shards;  // by (incarnation, shard)

  PartitionCount Of(uint64_t incarnation, uint32_t shard) const;
  PartitionCount OfServer(uint64_t incarnation) const;  // of all its shards
};
Placement PlacementOf(const ClusterState& state);

// Incarnations of the servers that have a lease and have answered as that incarnation. The view
// still lists replicas on a killed server until its lease ends, and on one that another process has
// replaced. For servers that were not called, the lease alone counts.
std::set<uint64_t> LivingServers(const ClusterState& state);

// Totals over the replicas of partitions that a shard is primary of; zeros when it does not answer.
struct CopyLoad {
  uint64_t lag = 0;  // records made that a follower has not: the most of a partition
  uint64_t copied_bytes = 0, total_bytes = 0;  // of learners
};
CopyLoad CopiesOf(const ServerState& server, uint32_t shard);

uint32_t ReplicasOf(const v1::ClusterView& view);  // that are wanted; at least 1

// "2 replicas of a partition are wanted, pushes go on with 1; 3 partitions have fewer, ...": a
// line.
std::string CopiesText(const ClusterState& state);

// A line for each server that had no memory for replicas: its partitions, and when it is tried
// again.
std::string FullServersText(const ClusterState& state);

// "alive", "silent", "no answer" (it has a lease and did not answer), "replaced" (another process
// answers at its address).
std::string StateWord(const ServerState& server);
// Why its statistics are missing; empty if they are not.
std::string WhyUnanswered(const ServerState& server);

// A sentence for each problem that needs an operator, safe to print; none: healthy.
std::vector<std::string> Problems(const ClusterState& state);

// Healthy, and every partition has all of its replicas: the next server may be restarted.
bool Settled(const ClusterState& state);
// The first reason why it is not settled.
std::string Obstacle(const ClusterState& state);

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_HEALTH_H_
