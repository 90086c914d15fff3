#include "server/executor/slab_allocator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "rdma/memory/topology.h"

namespace verbena::server {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;

size_t AlignUp(size_t value, size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

// The class of a request: a multiple of an eighth of its power of two, and of the alignment.
size_t RoundToClass(size_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  const size_t step = std::max(std::bit_floor(bytes) / 8, kAlignment);
  return AlignUp(bytes, step);
}

}  // namespace

SlabAllocator::SlabAllocator(std::string label, size_t slab_bytes, rdma::HugePages huge_pages,
                             MemoryBudget* budget)
    : label_(std::move(label)),
      slab_bytes_(AlignUp(std::max(slab_bytes, kPage), kPage)),
      huge_pages_(huge_pages),
      budget_(budget) {}

SlabAllocator::~SlabAllocator() {
  if (budget_ != nullptr) budget_->Release(reserved_bytes_);
}

SlabAllocator::Slab* SlabAllocator::NewSlab(Arena* arena, size_t bytes) {
  if (budget_ != nullptr && !budget_->Reserve(bytes, arena->use)) return nullptr;
  // Tables are never shared with a peer, only written out from: private, so that huge pages are
  // safe. On the node of the thread that touches them: the shard's, which asks here.
  const rdma::PageOptions pages = {rdma::NodeOfThisThread(), huge_pages_};
  auto block = rdma::MemoryBlock::AllocatePrivate(bytes, pages, label_);
  if (!block.ok()) {
    if (budget_ != nullptr) budget_->Release(bytes);
    return nullptr;
  }
  auto slab = std::make_unique<Slab>();
  slab->arena = arena;
  slab->block = *std::move(block);
  reserved_bytes_ += slab->block->size();
  Slab* result = slab.get();
  slabs_[result->block.get()] = std::move(slab);
  return result;
}

shard::Buffer SlabAllocator::Take(Slab* slab, size_t bytes, size_t rounded) {
  // Chunks start on a page, so that no two share one and copies run on aligned lines.
  const size_t start = AlignUp(slab->used, rounded >= kPage ? kPage : kAlignment);
  if (start + rounded > slab->block->size()) return {};
  slab->used = start + rounded;
  ++slab->live;
  // Never handed out before: still the zeroes the system gave.
  return {slab->block->data() + start, bytes, slab->block.get()};
}

shard::Buffer SlabAllocator::Reuse(Arena* arena, size_t bytes, size_t rounded) {
  const auto it = arena->with_free.find(rounded);
  if (it == arena->with_free.end()) return {};
  while (!it->second.empty()) {
    const auto slab = slabs_.find(it->second.back());
    if (slab != slabs_.end()) {
      auto& free = slab->second->free[rounded];
      if (!free.empty()) {
        std::byte* data = slab->second->block->data() + free.back();
        free.pop_back();
        if (free.empty()) it->second.pop_back();
        ++slab->second->live;
        std::memset(data, 0, bytes);
        return {data, bytes, slab->first};
      }
    }
    it->second.pop_back();
  }
  return {};
}

shard::Buffer SlabAllocator::From(Arena* arena, size_t bytes) {
  if (bytes == 0 || bytes > (size_t{1} << 46)) return {};
  const size_t rounded = RoundToClass(bytes);
  if (rounded > slab_bytes_ / 2) {
    Slab* own = NewSlab(arena, AlignUp(rounded, kPage));
    return own == nullptr ? shard::Buffer{} : Take(own, bytes, rounded);
  }
  const shard::Buffer again = Reuse(arena, bytes, rounded);
  if (again.data != nullptr) return again;
  if (arena->current != nullptr) {
    const shard::Buffer buffer = Take(arena->current, bytes, rounded);
    if (buffer.data != nullptr) return buffer;
  }
  Slab* fresh = NewSlab(arena, slab_bytes_);
  if (fresh == nullptr) return {};
  arena->current = fresh;
  return Take(fresh, bytes, rounded);
}

void SlabAllocator::Free(const shard::Buffer& buffer) {
  if (buffer.data == nullptr) return;
  const auto it = slabs_.find(buffer.handle);
  if (it == slabs_.end()) return;
  Slab* slab = it->second.get();
  // The current slab stays although empty: the next request would only make another.
  if (--slab->live == 0 && slab != slab->arena->current) {
    reserved_bytes_ -= slab->block->size();
    if (budget_ != nullptr) budget_->Release(slab->block->size());
    slabs_.erase(it);
    return;
  }
  const size_t rounded = RoundToClass(buffer.bytes);
  auto& free = slab->free[rounded];
  if (free.empty()) slab->arena->with_free[rounded].push_back(buffer.handle);
  free.push_back(static_cast<size_t>(buffer.data - slab->block->data()));
}

}  // namespace verbena::server
