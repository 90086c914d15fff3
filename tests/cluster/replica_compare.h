// Compares what a primary and a copy of a partition hold, table by table: rows or chunks with the
// optimizer's state, and what is known of workers' progress.
//
// **Thread safety**: where neither engine runs.
#ifndef VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_
#define VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "shard/engine.h"

namespace verbena::test {

struct ReplicaComparison {
  bool comparable = false;  // both are at the same sequence, by the same view, with nothing pending
  std::string difference;   // empty: none
};

ReplicaComparison CompareReplicas(const shard::Engine& primary, const shard::Engine& copy,
                                  uint32_t partition);

// Where the two are, for a message: views, and records of the partition.
std::string DescribeReplicas(const shard::Engine& primary, const shard::Engine& copy,
                             uint32_t partition);

// Where the logs for replicas of this engine's partitions have more than their limits and one
// record, of those with contents that applies made and of those that catch learners up. Empty:
// nowhere.
std::string ReplicaLogExcess(const shard::Engine& engine);

// One that the engine leads, and whose reads wait until its copy has what a new run has applied.
std::optional<uint32_t> PartitionWithHeldReads(const shard::Engine& engine);

// Of the view that the engine has.
uint64_t RevisionOf(const shard::Engine& engine);

// Rows of an embedding table that a push has changed, by view `revision`; none where the engine has
// another view or the partition is not ready there.
std::optional<uint32_t> RowsPushed(const shard::Engine& primary, uint64_t revision, uint32_t table,
                                   uint32_t partition);

// What a checkpoint has of a row or a chunk: how often it was applied to (8 bytes), its parameters,
// of rows as f32, the optimizer's arrays, and the f32 copies of a dense table's 16-bit parameters.
using UnitContent = std::string;
// By key of a row, or number of a chunk. Rows that no push has changed are not in it.
using TableContent = std::map<uint64_t, UnitContent>;
// What the engine has of the table in partitions that it leads, by partition.
std::map<uint32_t, TableContent> ReadTable(const shard::Engine& primary, uint32_t table);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_
