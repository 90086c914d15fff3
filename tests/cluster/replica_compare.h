// Compares what a primary and a copy of a partition hold, table by table: rows or chunks with the
// optimizer's state, and what is known of workers' progress.
//
// **Thread safety**: where neither engine runs.
#ifndef VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_
#define VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_

#include <cstdint>
#include <string>

#include "shard/engine.h"

namespace verbena::test {

struct ReplicaComparison {
  bool comparable = false;  // both are at the same sequence, by the same view, with nothing pending
  std::string difference;   // empty: none
};

ReplicaComparison CompareReplicas(const shard::Engine& primary, const shard::Engine& copy,
                                  uint32_t partition);

// Of records that the partition's copy has not answered.
uint64_t UnansweredReplicaBytes(const shard::Engine& primary, uint32_t partition);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_
