// Memory limits of a shard's logs for replicas of its partitions.
//
// **Thread safety**: values.
#ifndef VERBENA_SHARD_REPLICA_LOG_LIMITS_H_
#define VERBENA_SHARD_REPLICA_LOG_LIMITS_H_

#include <cstdint>

namespace verbena::shard {

// Memory that a shard keeps for records without an answer; applies wait at the limit. So a replica
// that is slower than pushes, or that catches up, takes bounded memory and makes progress.
struct ReplicaLogLimits {
  // Bytes of one partition; while a learner catches up, a quarter each for applies and for
  // catch-up. Room for 64 chunks of the default size: more than a link has in flight. 64 KiB to 1
  // TiB.
  uint64_t partition_bytes = uint64_t{16} << 20;
  // Bytes of all partitions of the shard, likewise: 16 partitions at their limit. 64 KiB to 1 TiB.
  uint64_t shard_bytes = uint64_t{256} << 20;
  // Limit in bytes of in-flight catch-up records of learners while applies have less in flight. It
  // keeps a link busy, and is small enough that workers' pushes do not wait behind it.
  uint64_t catch_up_bytes = uint64_t{4} << 20;
  // Bytes of rows in one record for a learner, at least one row: about a chunk. 256 KiB; the
  // simulator sets less, so that a learner's cursor needs many records for few rows.
  uint64_t rows_bytes = uint64_t{256} << 10;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_LOG_LIMITS_H_
