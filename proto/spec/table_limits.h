// Limits of tables that the coordinator and the shards share, so that shards serve every table that
// the coordinator accepts.
//
// **Thread safety**: constants.
#ifndef VERBENA_PROTO_SPEC_TABLE_LIMITS_H_
#define VERBENA_PROTO_SPEC_TABLE_LIMITS_H_

#include <cstdint>

namespace verbena {

// Maximum number of chunks of a dense table. Every server keeps an index entry for each chunk,
// independent of its owner. This limits a table to 4 TiB with default chunks.
inline constexpr uint64_t kMostTableChunks = uint64_t{1} << 24;

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_TABLE_LIMITS_H_
