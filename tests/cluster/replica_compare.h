// Compares the contents of a primary and a replica of a partition, table by table: rows or chunks
// with the optimizer's state, and the known progress of workers.
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

// The views of both and their records of the partition, as text for a message.
std::string DescribeReplicas(const shard::Engine& primary, const shard::Engine& copy,
                             uint32_t partition);

// Names a log for replicas of this engine's partitions that exceeds its limit by more than one
// record; records with contents of applies and records of the catch-up have separate limits. Empty:
// there is none.
std::string ReplicaLogExcess(const shard::Engine& engine);

// A partition that the engine leads and whose reads wait until its replica has the applies of a new
// run.
std::optional<uint32_t> PartitionWithHeldReads(const shard::Engine& engine);

// The revision of the view that the engine has.
uint64_t RevisionOf(const shard::Engine& engine);

// Rows of an embedding table that a push has changed, by view `revision`; none where the engine has
// another view or the partition is not ready there.
std::optional<uint32_t> RowsPushed(const shard::Engine& primary, uint64_t revision, uint32_t table,
                                   uint32_t partition);

// The first number of a chunk. Nothing: the engine does not have the chunk.
std::optional<float> FirstOfChunk(const shard::Engine& engine, uint32_t table, uint32_t chunk);

// The contents of a row or a chunk in a checkpoint: its number of applies (8 bytes), its parameters
// (of rows as f32), the optimizer's arrays, and the f32 copies of a dense table's 16-bit
// parameters.
using UnitContent = std::string;
// By key of a row, or number of a chunk. Rows that no push has changed are not in it.
using TableContent = std::map<uint64_t, UnitContent>;
// The engine's contents of the table in partitions that it leads, by partition.
std::map<uint32_t, TableContent> ReadTable(const shard::Engine& primary, uint32_t table);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_CLUSTER_REPLICA_COMPARE_H_
