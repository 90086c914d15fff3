#include "worker/cuda/launch_plan.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace verbena::worker {
namespace {

constexpr uint64_t kTilesPerBlock = kThreadsPerBlock / kThreadsPerTile;
// The most by which a tile may be below its limit, because the next piece did not fit, plus the
// cost of the cut that filled it.
constexpr uint64_t kSlack = 2 * kSegmentCost + kCut;
static_assert(kSmallestTile > kSlack && kSmallestTile % kCut == 0 && kLargestTile % kCut == 0);
static_assert(kThreadsPerBlock % kThreadsPerTile == 0);

constexpr uint64_t DivideUp(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

// Blocks that run at once.
uint64_t Resident(uint32_t multiprocessors) {
  return uint64_t{std::clamp<uint32_t>(multiprocessors, 1, 1 << 20)} * kBlocksPerMultiprocessor;
}

// The tensors in tiles of up to `tile_cost`.
MovePlan Cut(absl::Span<const Segment> tensors, uint32_t element_size, uint64_t tile_cost) {
  MovePlan plan;
  plan.tile_cost = tile_cost;
  plan.tiles.push_back(0);
  uint64_t room = tile_cost;
  const auto close = [&] {
    plan.tiles.push_back(static_cast<uint32_t>(plan.segments.size()));
    room = tile_cost;
  };
  for (const Segment& tensor : tensors) {
    Segment rest = tensor;
    while (rest.count != 0) {
      Segment piece = rest;
      if (rest.count + kSegmentCost > room) {
        piece.count = room < kSegmentCost ? 0 : (room - kSegmentCost) / kCut * kCut;
        if (piece.count == 0) {
          close();
          continue;
        }
      }
      plan.segments.push_back(piece);
      room -= piece.count + kSegmentCost;
      rest.address += piece.count * element_size;
      rest.first += piece.count;
      rest.count -= piece.count;
    }
  }
  if (plan.segments.size() != plan.tiles.back()) close();
  return plan;
}

}  // namespace

uint32_t BlocksFor(uint64_t elements, uint32_t multiprocessors) {
  // A group of four per thread. With fewer blocks, threads would have several groups in flight and
  // some multiprocessors none.
  const uint64_t wanted = DivideUp(elements, uint64_t{4} * kThreadsPerBlock);
  return static_cast<uint32_t>(std::min(wanted, Resident(multiprocessors)));
}

absl::StatusOr<MovePlan> PlanMove(absl::Span<const Segment> tensors, uint32_t element_size,
                                  uint32_t multiprocessors) {
  if (element_size != 2 && element_size != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("elements of ", element_size, " bytes; 2 or 4 are moved"));
  }
  uint64_t cost = 0;
  for (const Segment& tensor : tensors) {
    if (tensor.address % element_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("a tensor at 0x", absl::Hex(tensor.address),
                                                     ", which is no multiple of its element's ",
                                                     element_size, " bytes"));
    }
    if (tensor.count > kMostElements || tensor.first > kMostElements || cost > kMostElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMostElements, " elements in one bucket"));
    }
    if (tensor.count != 0) cost += tensor.count + kSegmentCost;
  }
  if (cost > kMostElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMostElements, " elements in one bucket"));
  }

  // As few rounds of all teams as tiles of kLargestTile allow; then the smallest tiles that need no
  // more rounds, so that the last round is as full as the others. A share plus kSlack is large
  // enough for that.
  const uint64_t teams = Resident(multiprocessors) * kTilesPerBlock;
  const uint64_t rounds = std::max<uint64_t>(1, DivideUp(cost, teams * (kLargestTile - kSlack)));
  const uint64_t share = DivideUp(DivideUp(cost, rounds * teams), kCut) * kCut;
  uint64_t tile_cost = std::max(kSmallestTile, share);
  MovePlan plan = Cut(tensors, element_size, tile_cost);
  while (plan.tile_count() > rounds * teams && tile_cost < kLargestTile) {
    tile_cost += kCut;
    plan = Cut(tensors, element_size, tile_cost);
  }
  plan.blocks = static_cast<uint32_t>(
      std::min(DivideUp(plan.tile_count(), kTilesPerBlock), Resident(multiprocessors)));
  return plan;
}

}  // namespace verbena::worker
