#include "client/staging/push_buffers.h"

#include <utility>

namespace verbena::client {
namespace {

// What is kept for later: a step's pushes and those of the next.
constexpr size_t kMostFree = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<rdma::MemoryBlock>> PushBuffers::Take(size_t bytes) {
  std::shared_ptr<rdma::MemoryBlock> whole;
  {
    const std::lock_guard<std::mutex> lock(free_->mutex);
    for (auto& block : free_->blocks) {
      // Not one that is much too large: that is another table's.
      if (block->size() < bytes || block->size() / 4 > bytes) continue;
      whole = std::move(block);
      block = std::move(free_->blocks.back());
      free_->blocks.pop_back();
      break;
    }
  }
  if (whole == nullptr) {
    auto made = rdma::MemoryBlock::AllocatePrivate(bytes, rdma::kSharedPages, "verbena-push");
    if (!made.ok()) return made.status();
    whole = *std::move(made);
  }
  // The piece keeps `whole` until it is gone itself, so it is the closure that hands it back.
  return rdma::MemoryBlock::Piece(whole, 0, bytes, [free = free_, whole] {
    const std::lock_guard<std::mutex> lock(free->mutex);
    if (free->blocks.size() < kMostFree) free->blocks.push_back(whole);
  });
}

}  // namespace verbena::client
