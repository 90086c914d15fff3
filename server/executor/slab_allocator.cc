#include "server/executor/slab_allocator.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "rdma/memory/pages.h"
#include "rdma/memory/topology.h"

namespace verbena::server {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kPage = 4096;
// Rows' slabs up to so many bytes of a shard are made huge pages one by one: a huge page of which
// nothing is used is much beside a million rows, and nothing beside ten. It takes a twentieth
// longer to make them.
constexpr size_t kExactBytes = size_t{1} << 30;
// So much of a huge page is handed out before it becomes one.
constexpr size_t kCollapseAt = rdma::kHugePageBytes / 4 * 3;

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

size_t SlabAllocator::Arena::Rounded(size_t bytes) const {
  return packed ? AlignUp(bytes, kAlignment) : RoundToClass(bytes);
}

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
  if (arena->packed && reserved_bytes_ < kExactBytes) StartSmall(slab.get());
  reserved_bytes_ += slab->block->size();
  Slab* result = slab.get();
  slabs_[result->block.get()] = std::move(slab);
  return result;
}

// For smaller pieces, of other tables.
void SlabAllocator::LeaveRest(Slab* slab) {
  const size_t rest = slab->block->size() - slab->used;
  if (rest > 0) free_rows_.Add({slab->block->data() + slab->used, rest, slab});
  slab->used = slab->block->size();
}

void SlabAllocator::StartSmall(Slab* slab) {
  if (slab->block->pages() != rdma::PageKind::kAdvised) return;
  const auto address = reinterpret_cast<uintptr_t>(slab->block->data());
  const size_t first = AlignUp(address, rdma::kHugePageBytes) - address;
  if (first >= slab->block->size()) return;
  if (rdma::KeepPagesSmall(slab->block->data() + first, slab->block->size() - first)) {
    slab->huge = first;
  }
}

void SlabAllocator::GrowHuge(Slab* slab, size_t start) {
  if (slab->huge == SIZE_MAX) return;
  while (slab->huge + rdma::kHugePageBytes <= slab->block->size() &&
         slab->used >= slab->huge + kCollapseAt) {
    rdma::CollapsePages(slab->block->data() + slab->huge, rdma::kHugePageBytes);
    slab->huge += rdma::kHugePageBytes;
  }
  // Small pages are had faster all at once; those that are not had now are when they are touched.
  start = std::max(start, slab->huge) / kPage * kPage;
  if (start < slab->used)
    (void)rdma::PopulatePages(slab->block->data() + start, slab->used - start);
}

shard::Buffer SlabAllocator::Take(Slab* slab, size_t bytes, size_t rounded) {
  // Chunks start on a page, so that no two share one and copies run on aligned lines.
  const bool on_page = !slab->arena->packed && rounded >= kPage;
  const size_t start = AlignUp(slab->used, on_page ? kPage : kAlignment);
  if (start + rounded > slab->block->size()) return {};
  slab->used = start + rounded;
  ++slab->live;
  GrowHuge(slab, start);
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
        if (arena == &tables_) std::memset(data, 0, bytes);
        return {data, bytes, slab->first};
      }
    }
    it->second.pop_back();
  }
  return {};
}

shard::Buffer SlabAllocator::From(Arena* arena, size_t bytes) {
  if (bytes == 0 || bytes > (size_t{1} << 46)) return {};
  const size_t rounded = arena->Rounded(bytes);
  if (rounded > slab_bytes_ / 2) {
    Slab* own = NewSlab(arena, AlignUp(rounded, kPage));
    return own == nullptr ? shard::Buffer{} : Take(own, bytes, rounded);
  }
  const shard::Buffer again = Reuse(arena, bytes, rounded);  // of rows there is nothing
  if (again.data != nullptr) return again;
  if (arena->current != nullptr) {
    const shard::Buffer buffer = Take(arena->current, bytes, rounded);
    if (buffer.data != nullptr) return buffer;
  }
  Slab* fresh = NewSlab(arena, slab_bytes_);
  if (fresh == nullptr) return {};
  if (arena->packed && arena->current != nullptr) LeaveRest(arena->current);
  arena->current = fresh;
  return Take(fresh, bytes, rounded);
}

shard::Buffer SlabAllocator::Allocate(size_t bytes) {
  const shard::Buffer buffer = From(&tables_, bytes);
  if (buffer.data != nullptr) tables_out_ += bytes;
  return buffer;
}

shard::Buffer SlabAllocator::AllocateScratch(size_t bytes) {
  const shard::Buffer buffer = From(&scratch_, bytes);
  if (buffer.data == nullptr && budget_ != nullptr) budget_->CountShortage();
  return buffer;
}

// An upper estimate: the unused part of all slabs, and the part of the budget that is not reserved.
bool SlabAllocator::MayFit(uint64_t bytes) const {
  if (budget_ == nullptr) return true;
  const uint64_t room = budget_->MostOf(tables_.use);
  const uint64_t unreserved = room - std::min(room, budget_->reserved());
  return bytes <= unreserved + (reserved_bytes_ - std::min(reserved_bytes_, tables_out_));
}

void SlabAllocator::SetFor(shard::MemoryFor whom) {
  MemoryBudget::Use use = MemoryBudget::Use::kTables;
  if (whom == shard::MemoryFor::kFollower) use = MemoryBudget::Use::kFollowers;
  if (whom == shard::MemoryFor::kPrimaryBesideCopies) {
    use = MemoryBudget::Use::kTablesBesideCopies;
  }
  tables_.use = rows_.use = use;
}

// Reservations beyond that part of the budget were made for other uses: as much must stay free in
// the slabs.
uint64_t SlabAllocator::RoomForRows() const {
  if (budget_ == nullptr) return UINT64_MAX;
  const Slab* const slab = rows_.current;
  const uint64_t here =
      free_rows_.bytes() + (slab == nullptr ? 0 : slab->block->size() - slab->used);
  const uint64_t all = here + budget_->MostOf(rows_.use);
  return all - std::min(all, budget_->reserved());
}

shard::Buffer SlabAllocator::AllocateRows(size_t bytes, size_t unit) {
  if (rows_.use == MemoryBudget::Use::kTablesBesideCopies && RoomForRows() < bytes) return {};
  const FreeExtents::Extent again = free_rows_.Take(bytes, unit);
  if (again.data != nullptr) {
    auto* const slab = static_cast<Slab*>(again.owner);
    ++slab->live;
    return {again.data, again.bytes, slab->block.get()};
  }
  const Slab* const slab = rows_.current;
  const size_t room = slab == nullptr ? 0 : slab->block->size() - slab->used;
  return From(&rows_, room < unit ? bytes : std::min(bytes, room / unit * unit));
}

void SlabAllocator::Free(const shard::Buffer& buffer) {
  if (buffer.data == nullptr) return;
  const auto it = slabs_.find(buffer.handle);
  if (it == slabs_.end()) return;
  Slab* slab = it->second.get();
  if (slab->arena == &tables_) tables_out_ -= buffer.bytes;
  // The current slab stays although empty: the next request would only make another.
  if (--slab->live == 0 && slab != slab->arena->current) {
    if (slab->arena->packed) free_rows_.Forget(slab);
    reserved_bytes_ -= slab->block->size();
    if (budget_ != nullptr) budget_->Release(slab->block->size());
    slabs_.erase(it);
    return;
  }
  if (slab->live == 0 && slab->arena == &scratch_) {
    // For any size again: there may be no memory for another slab.
    slab->used = 0;
    slab->free.clear();
    return;
  }
  const size_t rounded = slab->arena->Rounded(buffer.bytes);
  if (slab->arena->packed) return free_rows_.Add({buffer.data, rounded, slab});
  auto& free = slab->free[rounded];
  if (free.empty()) slab->arena->with_free[rounded].push_back(buffer.handle);
  free.push_back(static_cast<size_t>(buffer.data - slab->block->data()));
}

}  // namespace verbena::server
