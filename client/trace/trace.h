// What a worker's calls are doing, as ranges on the timeline of NVIDIA's profilers (Nsight
// Systems): calls, their records from posted to answered, copies to and from a device, and codecs,
// in the domain "verbena". Ranges may overlap, and end in another thread than they began in.
//
// Through NVTX 3, whose headers come with the CUDA toolkit: a profiler puts itself in when it
// starts the program (https://nvidia.github.io/NVTX/). Without one a range costs a comparison. A
// build that had no such headers has no ranges.
//
// **Thread safety**: thread-safe; an id has one owner.
#ifndef VERBENA_CLIENT_TRACE_TRACE_H_
#define VERBENA_CLIENT_TRACE_TRACE_H_

#include <cstdint>

namespace verbena::client {

using RangeId = uint64_t;
inline constexpr RangeId kNoRange = 0;

// Whether a profiler listens.
bool Tracing();
// `name`: what it shows; a literal. `bytes`: what it moves, shown with it; 0: nothing is. kNoRange
// where nobody listens.
RangeId BeginRange(const char* name, uint64_t bytes);
// Ends it, and leaves kNoRange; of kNoRange: nothing.
void EndRange(RangeId* range);

// A range from here to the end of the block.
class TracedBlock {
 public:
  TracedBlock(const char* name, uint64_t bytes) : range_(BeginRange(name, bytes)) {}
  ~TracedBlock() { EndRange(&range_); }
  TracedBlock(const TracedBlock&) = delete;
  TracedBlock& operator=(const TracedBlock&) = delete;

 private:
  RangeId range_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_TRACE_TRACE_H_
