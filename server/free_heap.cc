#include "server/free_heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::server {

void FreeHeap::Return() {
#ifdef __GLIBC__
  const int64_t begin = clock_.NowNanos();
  if (begin < next_nanos_) return;
  // Free bytes of all arenas; they include pages that were returned.
  if (mallinfo2().fordblks >= kTrimBytes) malloc_trim(0);
  const int64_t end = clock_.NowNanos();
  next_nanos_ = end + std::max(absl::ToInt64Nanoseconds(kPeriod), 99 * (end - begin));
#endif
}

}  // namespace verbena::server
