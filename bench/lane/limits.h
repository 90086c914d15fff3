// The limit for shm: one thread that copies payloads, without a protocol.
//
// **Thread safety**: runs on the calling thread.
#ifndef VERBENA_BENCH_LANE_LIMITS_H_
#define VERBENA_BENCH_LANE_LIMITS_H_

#include <cstdint>

namespace verbena::bench {

// Bytes a second / 10^6 copied from `depth` payloads to as many slots, in turn: the better of
// memcpy and streaming stores, each for half of `seconds`, in huge pages where there are any.
double CopyMegabytes(uint32_t bytes, uint32_t depth, double seconds);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_LANE_LIMITS_H_
