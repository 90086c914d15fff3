// How many blocks a kernel is launched with, and the table that a gather or a scatter works
// through: its tensors cut into tiles of equal work.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. Every element of every tensor is in one segment, and every segment in one tile.
//  2. No tile costs more than `tile_cost`, and all but the last cost more than tile_cost -
//     kSegmentCost - kCut: large tensors are split, small ones share a tile.
//  3. Each of the teams of kThreadsPerTile threads that run at once has the same number of tiles,
//     or one fewer; the size of tiles is chosen so that few have one fewer.
//  4. A tensor is split at multiples of kCut elements, so that its pieces keep its alignment.
#ifndef VERBENA_WORKER_CUDA_LAUNCH_PLAN_H_
#define VERBENA_WORKER_CUDA_LAUNCH_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/cuda/kernel_types.h"

namespace verbena::worker {

// The cost of the start of a segment, in elements moved meanwhile: its entry and its first elements
// are read one after the other. An estimate: half of the elements that 32 threads have in flight at
// once.
inline constexpr uint64_t kSegmentCost = 256;
// 128 bytes of 16-bit numbers: a line of the L2 cache.
inline constexpr uint64_t kCut = 64;
// Cost limits of a tile. Larger tiles save nothing more: the two reads of the table are less than a
// hundredth of a tile's bytes.
inline constexpr uint64_t kSmallestTile = 1024;
inline constexpr uint64_t kLargestTile = 4096;
// More than the memory of any device; a table of it would not fit either.
inline constexpr uint64_t kMostElements = uint64_t{1} << 40;

// The input of MoveTiles(); all of it is copied to the device before the launch.
struct MovePlan {
  std::vector<Segment> segments;
  std::vector<uint32_t> tiles;  // tile_count() + 1 indices into the segments
  uint64_t tile_cost = 0;       // limit of a tile: its elements and kSegmentCost a segment
  uint32_t blocks = 0;          // to launch; 0 when there is nothing to move

  uint32_t tile_count() const { return static_cast<uint32_t>(tiles.size() - 1); }
};

// Blocks for a conversion or a sum of `elements` on a device of so many multiprocessors; 0 when
// there is nothing to do (a launch of 0 blocks is an error).
uint32_t BlocksFor(uint64_t elements, uint32_t multiprocessors);

// The table of these tensors (`first` is a tensor's place in the bucket), whose elements have
// `element_size` bytes, 2 or 4, in device memory. INVALID_ARGUMENT: an address that is no multiple
// of that, or more than kMostElements. Tensors may overlap in the bucket of a scatter only.
absl::StatusOr<MovePlan> PlanMove(absl::Span<const Segment> tensors, uint32_t element_size,
                                  uint32_t multiprocessors);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_LAUNCH_PLAN_H_
