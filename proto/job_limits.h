// What a job's memory limit leaves it on one server: coordinator and shards say the same.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_PROTO_JOB_LIMITS_H_
#define VERBENA_PROTO_JOB_LIMITS_H_

#include <cstdint>

namespace verbena {

// Of a server that has `owned` of all partitions: rounded down, without leaving 64 bits (there are
// few partitions).
constexpr uint64_t ShareOfServer(uint64_t limit, uint64_t owned, uint64_t all) {
  return all == 0 ? limit : limit / all * owned + limit % all * owned / all;
}

// Of a share, what tables may fill; the rest is for what passes through.
constexpr uint64_t RoomForTables(uint64_t share) { return share - share / 16; }

}  // namespace verbena

#endif  // VERBENA_PROTO_JOB_LIMITS_H_
