// Replaces trace.cc in builds without the headers of NVTX.
#include "client/trace/trace.h"

namespace verbena::client {

bool Tracing() { return false; }
RangeId BeginRange(const char*, uint64_t) { return kNoRange; }
void EndRange(RangeId*) {}

}  // namespace verbena::client
