// The counters of a client since it connected (Client::statistics()).
//
// **Thread safety**: plain data.
#ifndef VERBENA_CLIENT_COUNTERS_H_
#define VERBENA_CLIENT_COUNTERS_H_

#include <array>
#include <cstdint>

namespace verbena {

// Counts since the client connected.
struct ClientCounters {
  uint64_t bytes_pushed = 0;    // of gradients, and of keys of rows; resent ones are not counted
  uint64_t bytes_pulled = 0;    // of received parameters and rows
  uint64_t pushes = 0;          // push requests: one for each chunk, or for each slot of rows
  uint64_t pulls = 0;           // pull requests: one for each chunk, or for each slot of rows
  uint64_t records_resent = 0;  // requests that were sent again after a lost lane or a refusal
  uint64_t lanes_opened = 0;    // to all servers and shards
  uint64_t lanes_lost = 0;      // lanes that ended before the client was closed
  uint64_t credit_stalls = 0;   // times a request waited for a slot or an operation
  uint64_t staged_bytes = 0;    // copied through staging: GPU memory, rows, memory without shm
  // Part of bytes_pushed that servers read in place (shm, allocated regions).
  uint64_t referenced_bytes = 0;
  // Pushed and pulled bytes of GPU memory that the RDMA device accessed itself (GPUDirect).
  uint64_t direct_bytes = 0;
  uint64_t follower_pulls = 0;      // part of pulls that followers answered
  uint64_t follower_redirects = 0;  // pulls that a follower did not answer, so the primary did
  uint64_t rail_moves = 0;          // times a partition of a table moved from one rail to another
  // Pull requests to ssp tables by staleness: the steps by which the slowest worker was behind this
  // one at the reply. Entries: 0, 1, ... 31, and 32 or more.
  std::array<uint64_t, 33> staleness = {};
};

}  // namespace verbena

#endif  // VERBENA_CLIENT_COUNTERS_H_
