// Which server and shard serve a partition, and what is lost when a server comes back empty.
//
// **Thread safety**: pure functions on a view.
#ifndef VERBENA_SERVER_COORDINATOR_PLACEMENT_H_
#define VERBENA_SERVER_COORDINATOR_PLACEMENT_H_

#include <cstdint>

#include "proto/verbena/v1/cluster.pb.h"

namespace verbena::server {

v1::Server* FindServer(uint64_t incarnation, v1::ClusterView* view);
uint32_t AliveServers(const v1::ClusterView& view);

// Spreads all partitions evenly over the shards of the servers that are alive. A partition that
// moves gets a new epoch. Only for a cluster without tables: nothing is copied.
void PlaceAllPartitions(v1::ClusterView* view);

// Whether any chunk of the table lies in the partition.
bool HasChunkIn(const v1::Table& table, uint32_t partition, uint32_t partitions);

// `now` has taken the name of `before`, whose partitions it gets, empty: each has a new epoch, and
// is lost for every table that has chunks in it.
void ReplaceServer(uint64_t before, const v1::Server& now, v1::ClusterView* view);

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_PLACEMENT_H_
