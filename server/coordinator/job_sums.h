// The memory of a job's tables, as running sums: a new table is checked without adding up the
// others.
//
// **Thread safety**: one owner thread.
//
// **Invariants**
//  1. The sums are those of the tables that were added and not removed since.
#ifndef VERBENA_SERVER_COORDINATOR_JOB_SUMS_H_
#define VERBENA_SERVER_COORDINATOR_JOB_SUMS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

// Bytes that a chunk of a dense table takes on its server.
using ChunkMemory = std::function<uint64_t(const v1::TableSpec&)>;

// The memory of a worker in a sync table: an entry for each chunk, and for each partition. 0: in
// other tables.
uint64_t ContributionsOf(const v1::TableSpec& spec, uint64_t partitions);

struct JobSums {
  int64_t tables = 0;  // without those that are to replace another
  int64_t sync_tables = 0;
  uint64_t contributions = 0;
  std::map<double, int64_t> norms;    // how many tables set clip_global_norm, by its value
  std::vector<uint64_t> dense_bytes;  // by partition; empty: no dense table was ever added

  // `chunk_memory` may be empty: parameters alone are counted then.
  void Add(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory);
  void Remove(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory);

 private:
  void Count(const v1::Table& table, uint32_t partitions, const ChunkMemory& chunk_memory,
             int64_t sign);
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_JOB_SUMS_H_
