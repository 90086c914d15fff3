// The speed of the machine without a protocol: two threads, pinned to two cores, that share memory.
//
// **Thread safety**: each function runs by itself, on the calling thread and one it starts.
#ifndef VERBENA_BENCH_PUSH_PULL_LIMITS_H_
#define VERBENA_BENCH_PUSH_PULL_LIMITS_H_

#include <cstddef>

namespace verbena::bench {

enum class SharedMemoryLimit {
  kCopy,           // copies in, the other side sums, copies to a reply; copies back
  kCopyStreaming,  // the same with streaming stores where a copy's target is not read soon
  kReference,      // the other side sums from the gradient and writes the result, in one pass
  kReferencePrefetch,
};
// GB/s pushed + pulled (10^9 bytes), kDepth rounds in flight.
double SharedMemoryGigabytes(SharedMemoryLimit limit, size_t bytes);

// Nanoseconds of a round trip: 64 B stored, seen by the other core, answered in another cache line.
double PingPongNanos(int rounds);

// Microseconds of a round trip between two threads that sleep: eventfd one way into an epoll_wait,
// eventfd back into another. `gap_us` of sleep before each round, so that both are idle.
double WakeMicros(int rounds, int gap_us);

}  // namespace verbena::bench

#endif  // VERBENA_BENCH_PUSH_PULL_LIMITS_H_
