#include "proto/malloc_settings.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace verbena {

void ReturnLargeBlocks() {
#ifdef __GLIBC__
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") != nullptr) return;
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kMappedBlockBytes));
#endif
}

}  // namespace verbena
