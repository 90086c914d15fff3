// The partitions that contain a part of a table.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_WIRE_TABLE_PARTITIONS_H_
#define VERBENA_PROTO_WIRE_TABLE_PARTITIONS_H_

#include <cstdint>

#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena {

// Whether any chunk of the table lies in the partition.
inline bool HasChunkIn(const v1::Table& table, uint32_t partition, uint32_t partitions) {
  if (table.spec().dim() > 0) return true;  // its keys are in all partitions
  const uint32_t chunks = LayoutOf(table.spec()).chunks();
  return ChunksInPartition(table.id(), chunks, partition, partitions) > 0;
}

}  // namespace verbena

#endif  // VERBENA_PROTO_WIRE_TABLE_PARTITIONS_H_
