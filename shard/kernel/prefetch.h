// Prefetches a cache line that will be read or written soon. Any address is allowed.
//
// The functions must not look free of effects: GCC (12, at -O2) treats a function of prefetches
// alone as one without effect, and drops calls that it has not inlined by then.
//
// **Thread safety**: any thread.
#ifndef VERBENA_SHARD_KERNEL_PREFETCH_H_
#define VERBENA_SHARD_KERNEL_PREFETCH_H_

namespace verbena::shard {

inline void PrefetchToRead(const void* at) {
  __builtin_prefetch(at);
  asm volatile("");  // an effect
}

inline void PrefetchToWrite(const void* at) {
  __builtin_prefetch(at, 1);
  asm volatile("");
}

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_KERNEL_PREFETCH_H_
