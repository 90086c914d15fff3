#include "client/staging/push_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::client {
namespace {

// Maximum number of free buffers: for the pushes of one step and the next.
constexpr size_t kMostFree = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> PushBuffers::Take(size_t bytes) {
  std::shared_ptr<rdma::MemoryBlock> whole;
  std::vector<Idle> idle;  // freed outside the lock
  {
    const std::lock_guard<std::mutex> lock(free_->mutex);
    auto& blocks = free_->blocks;
    const uint64_t now = ++free_->calls;
    // Skips buffers that are much too large, because they belong to another table. The latest is
    // still in CPU caches.
    const auto fits = std::find_if(blocks.rbegin(), blocks.rend(), [bytes](const Idle& i) {
      return i.block->size() >= bytes && i.block->size() / 4 <= bytes;
    });
    if (fits != blocks.rend()) {
      whole = std::move(fits->block);
      blocks.erase(std::next(fits).base());
    }
    const auto used = std::find_if(blocks.begin(), blocks.end(),
                                   [now](const Idle& i) { return i.since + kMostIdle > now; });
    idle.assign(std::make_move_iterator(blocks.begin()), std::make_move_iterator(used));
    blocks.erase(blocks.begin(), used);
  }
  if (whole == nullptr) {
    auto made = rdma::MemoryBlock::AllocatePrivate(bytes, rdma::kSharedPages, "verbena-push");
    if (!made.ok()) return made.status();
    whole = *std::move(made);
  }
  // The piece keeps `whole` alive until its own end, so the closure returns it.
  return rdma::MemoryBlock::Piece(whole, 0, bytes, [free = free_, whole] {
    const std::lock_guard<std::mutex> lock(free->mutex);
    if (free->blocks.size() < kMostFree) free->blocks.push_back({whole, free->calls});
  });
}

}  // namespace verbena::client
