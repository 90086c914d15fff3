#include "client/staging/push_buffers.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace verbena::client {
namespace {

// What is kept for later: a step's pushes and those of the next.
constexpr size_t kMostFree = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> PushBuffers::Take(size_t bytes) {
  std::shared_ptr<rdma::MemoryBlock> whole;
  std::vector<Idle> idle;  // freed outside the lock
  {
    const std::lock_guard<std::mutex> lock(free_->mutex);
    auto& blocks = free_->blocks;
    const uint64_t now = ++free_->calls;
    // Not one that is much too large: that is another table's. The latest is still in caches.
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
  // The piece keeps `whole` until it is gone itself, so it is the closure that hands it back.
  return rdma::MemoryBlock::Piece(whole, 0, bytes, [free = free_, whole] {
    const std::lock_guard<std::mutex> lock(free->mutex);
    if (free->blocks.size() < kMostFree) free->blocks.push_back({whole, free->calls});
  });
}

}  // namespace verbena::client
