// Ranges of a worker's calls on the timeline of NVIDIA's profilers (Nsight Systems): calls, their
// records from posting to reply, copies to and from a device, and codecs, in the domain "verbena".
// Ranges may overlap, and may end in another thread than they began.
//
// Uses NVTX 3, whose headers are part of the CUDA toolkit: a profiler injects itself when it starts
// the program (https://nvidia.github.io/NVTX/). Without a profiler a range costs a comparison. A
// build without the headers has no ranges.
//
// **Thread safety**: thread-safe; an id has one owner.
#ifndef VERBENA_CLIENT_TRACE_TRACE_H_
#define VERBENA_CLIENT_TRACE_TRACE_H_

#include <cstdint>

namespace verbena::client {

using RangeId = uint64_t;
inline constexpr RangeId kNoRange = 0;

// Whether a profiler is attached.
bool Tracing();
// `name`: displayed name; a literal. `bytes`: displayed amount of data; 0: none. Returns kNoRange
// without a profiler.
RangeId BeginRange(const char* name, uint64_t bytes);
// Ends the range and sets it to kNoRange; does nothing for kNoRange.
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
