#include "server/free_heap.h"

#include <malloc.h>

#include <algorithm>

namespace verbena::server {

void FreeHeap::Return() {
#ifdef __GLIBC__
  // Also counts what was given back.
  const size_t free = mallinfo2().fordblks;
  returned_ = std::min(returned_, free);
  if (free - returned_ < kTrimBytes) return;
  malloc_trim(0);
  returned_ = free;
#endif
}

}  // namespace verbena::server
