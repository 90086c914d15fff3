// Limits of tables that the coordinator and the shards must agree on: what one accepts the other
// serves.
//
// **Thread safety**: constants.
#ifndef VERBENA_PROTO_TABLE_LIMITS_H_
#define VERBENA_PROTO_TABLE_LIMITS_H_

#include <cstdint>

namespace verbena {

// Of a dense table. Every server keeps an index entry for each chunk, whoever has the chunk: 4 TiB
// of default chunks is the limit.
inline constexpr uint64_t kMostTableChunks = uint64_t{1} << 24;

}  // namespace verbena

#endif  // VERBENA_PROTO_TABLE_LIMITS_H_
