// Table memory out of large blocks that the data plane can write from.
//
// Requests are rounded up to a size class (eight per doubling, so at most an eighth is lost) and
// come from a free list or from the end of the current slab. A request beyond half a slab gets a
// block of its own. A slab whose buffers have all come back is returned to the system. Slabs are on
// the NUMA node of the thread that asks, in huge pages when there are any. Scratch memory has slabs
// of its own: tables that grow cannot use it up.
//
// Rows have slabs of their own, without rounding: a piece that one table frees can serve another
// table with pieces of another size. To keep the memory of few rows small, the first of these slabs
// become huge pages only as far as they are in use.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SLAB_ALLOCATOR_H_
#define VERBENA_SERVER_EXECUTOR_SLAB_ALLOCATOR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "rdma/memory/memory.h"
#include "server/executor/free_extents.h"
#include "server/executor/memory_budget.h"
#include "shard/allocator.h"

namespace verbena::server {

class SlabAllocator final : public shard::Allocator {
 public:
  // `budget` outlives the allocator; null: no limit.
  explicit SlabAllocator(std::string label, size_t slab_bytes = size_t{64} << 20,
                         rdma::HugePages huge_pages = rdma::HugePages::kAuto,
                         MemoryBudget* budget = nullptr);
  ~SlabAllocator() override;

  // `handle` of the buffer is its rdma::MemoryBlock.
  shard::Buffer Allocate(size_t bytes) override;
  // So many as the current slab has room for, if it has for one.
  shard::Buffer AllocateRows(size_t bytes, size_t unit) override;
  shard::Buffer AllocateScratch(size_t bytes) override;
  uint64_t shortages() const override { return budget_ == nullptr ? 0 : budget_->shortages(); }
  void Count(int64_t bytes) override {
    if (budget_ != nullptr) budget_->Count(bytes);
  }
  uint64_t limit_bytes() const override { return budget_ == nullptr ? 0 : budget_->limit(); }
  bool MayFit(uint64_t bytes) const override;
  uint64_t RoomForRows() const override;
  void SetFor(shard::MemoryFor whom) override;
  // So little is left that new rows are refused, or will be soon.
  bool full() const { return RoomForRows() < 2 * slab_bytes_; }
  void Free(const shard::Buffer& buffer) override;

  // The block that `buffer` lies in.
  static const rdma::MemoryBlock* BlockOf(const shard::Buffer& buffer) {
    return static_cast<const rdma::MemoryBlock*>(buffer.handle);
  }
  size_t slabs() const { return slabs_.size(); }
  size_t reserved_bytes() const { return reserved_bytes_; }

 private:
  struct Arena;
  struct Slab {
    Arena* arena = nullptr;
    std::shared_ptr<rdma::MemoryBlock> block;
    size_t used = 0;         // bytes handed out from the front so far
    size_t huge = SIZE_MAX;  // pages behind are small: they become huge as they are handed out
    size_t live = 0;         // buffers out
    // Freed pieces by size class, as offsets.
    std::unordered_map<size_t, std::vector<size_t>> free;
  };
  // Slabs that serve one use.
  struct Arena {
    MemoryBudget::Use use;
    const bool packed = false;  // nothing is rounded; freed pieces go to free_rows_
    // Slabs that have a free piece of a class; an entry may be stale, and is then dropped when met.
    std::unordered_map<size_t, std::vector<const void*>> with_free = {};
    Slab* current = nullptr;

    size_t Rounded(size_t bytes) const;
  };
  shard::Buffer From(Arena* arena, size_t bytes);
  shard::Buffer Reuse(Arena* arena, size_t bytes, size_t rounded);
  Slab* NewSlab(Arena* arena, size_t bytes);
  shard::Buffer Take(Slab* slab, size_t bytes, size_t rounded);
  void LeaveRest(Slab* slab);
  static void StartSmall(Slab* slab);
  static void GrowHuge(Slab* slab, size_t start);

  std::string label_;
  size_t slab_bytes_;
  rdma::HugePages huge_pages_;
  MemoryBudget* const budget_;
  size_t reserved_bytes_ = 0;
  uint64_t tables_out_ = 0;  // bytes of tables_ that are in use
  std::unordered_map<const void*, std::unique_ptr<Slab>> slabs_;
  Arena tables_{MemoryBudget::Use::kTables};
  Arena rows_{MemoryBudget::Use::kTables, true};
  FreeExtents free_rows_;  // instead of lists by size
  Arena scratch_{MemoryBudget::Use::kScratch};
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SLAB_ALLOCATOR_H_
