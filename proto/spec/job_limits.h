// The share of a job's memory limit on one server. Coordinator and shards compute the same.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_SPEC_JOB_LIMITS_H_
#define VERBENA_PROTO_SPEC_JOB_LIMITS_H_

#include <cstdint>

namespace verbena {

// The share of a server with `owned` of `all` partitions, rounded down. It does not overflow 64
// bits, because the number of partitions is small.
constexpr uint64_t ShareOfServer(uint64_t limit, uint64_t owned, uint64_t all) {
  return all == 0 ? limit : limit / all * owned + limit % all * owned / all;
}

// The part of a share that tables may use; the rest is for buffers of data in transit.
constexpr uint64_t RoomForTables(uint64_t share) { return share - share / 16; }

// The same of the limit of a server that has replicas of others' partitions: the rest is also for
// rows of replicas.
constexpr uint64_t RoomForTablesBesideCopies(uint64_t limit) { return limit - limit / 8; }

}  // namespace verbena

#endif  // VERBENA_PROTO_SPEC_JOB_LIMITS_H_
