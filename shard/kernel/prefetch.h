// Sends for a line of the cache that will be read or written soon. The address may be any.
//
// The compiler may not take them for nothing: GCC (12, at -O2) finds a function of prefetches alone
// to be one without effect, and drops the calls of it that it has not inlined by then.
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
