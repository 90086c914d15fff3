// Swarm testing of a whole cluster in the simulator: each seed draws the cluster, a subset of
// features, and a random interleaving of training, reads, operator's calls and faults
// (swarm_plan.h). Nothing is scripted, so that a fault can be found that nobody thought of.
//
// Invariants that are checked for every seed:
//  1. A read shows every push that was acknowledged before it began, and none twice
//     (swarm_table.h); of a sync table the steps that it asks for, whole (swarm_steps.h).
//  2. A partition is lost only when the processes that had all of it are gone.
//  3. Primary and follower are equal at the same sequence (replica_compare.h), and no primary
//     counts a mismatch.
//  4. Calls end by their deadline, and do not fail before it without a reason.
//  5. No lease ends of a process that ran and was heard, whatever the coordinator's store does.
//  6. Buffers stay within their bounds.
//  7. From the end of the faults on, with clients at the same rate: full redundancy returns,
//     nothing is lost, and each worker pushes and pulls each table, within a bound of virtual time.
//  8. Evictions by number leave as many rows as they should.
//  9. Every answer wakes a client that sleeps, unless it has one operation and it is not the last.
//  10. A chunk that a follower has answered is as its primary had it within the allowed staleness,
//     or later, committed, and not older than what the observer has read (swarm_past.h).
//  11. A checkpoint equals the state of its shards, stays whole until it is removed, and restored
//      tables equal it (swarm_saved.h).
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_CLUSTER_SWARM_H_
#define VERBENA_TESTS_CLUSTER_SWARM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/model/trace_checker.h"

namespace verbena::test {

struct SwarmResult {
  std::vector<std::string> violations;
  std::string plan;
  uint64_t pushes = 0, pulls = 0;  // that succeeded
  uint64_t follower_pulls = 0;     // chunks that followers answered
  uint64_t steps = 0;              // of sync tables, ended by workers and committed
  uint64_t compared = 0;           // partitions of two servers at the same sequence
  int created = 0, dropped = 0, reset = 0;
  int servers_crashed = 0, servers_stalled = 0, workers_crashed = 0, coordinator_stalled = 0;
  int saved = 0, compacted = 0, pruned = 0, restored = 0;  // checkpoints, as reported
  int checkpoints = 0;          // whose content was compared with the state of shards
  int restored_partitions = 0;  // that were compared with their checkpoint
  int64_t recovered_ns = 0;     // from the end of the faults to full redundancy
};

SwarmResult RunSwarm(uint64_t seed);
// Records the events of each partition.
SwarmResult RunSwarm(uint64_t seed, std::map<uint32_t, std::vector<TraceEvent>>* traces);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_SWARM_H_
