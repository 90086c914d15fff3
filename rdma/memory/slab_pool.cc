#include "rdma/memory/slab_pool.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rdma/memory/pages.h"

namespace verbena::rdma {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kPage = 4096;

size_t Alignment(size_t bytes) { return bytes >= kPage ? kPage : kLine; }

// The space that a piece occupies. A size beyond all memory is kept and refused later.
size_t Footprint(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() - kPage) return bytes;
  return RoundUp(bytes, Alignment(bytes));
}

SlabPoolOptions Normalise(SlabPoolOptions options) {
  options.slab_bytes = std::max(options.slab_bytes, kPage);
  if (options.max_slab_bytes > 0) {
    options.max_slab_bytes = std::max(options.max_slab_bytes / kPage * kPage, kPage);
    options.slab_bytes = std::min(options.slab_bytes, options.max_slab_bytes);
  }
  options.slab_bytes = RoundUp(options.slab_bytes, kPage);
  return options;
}

}  // namespace

struct SlabPool::Slab {
  explicit Slab(std::shared_ptr<MemoryBlock> memory) : block(std::move(memory)) {
    free.emplace(0, block->size());
  }

  // False: there is no free range of `bytes`. Takes the smallest that fits, to keep large ones
  // whole.
  bool Take(size_t bytes, size_t* start);
  void Give(size_t start, size_t bytes);

  std::shared_ptr<MemoryBlock> block;
  std::map<size_t, size_t> free;  // offset -> bytes
  size_t pieces = 0;
  size_t used_up_to = 0;  // memory beyond it is unused and still zero
};

bool SlabPool::Slab::Take(size_t bytes, size_t* start) {
  auto best = free.end();
  for (auto it = free.begin(); it != free.end(); ++it) {
    const size_t lost = RoundUp(it->first, Alignment(bytes)) - it->first;
    if (it->second < lost || it->second - lost < bytes) continue;
    if (best == free.end() || it->second < best->second) best = it;
  }
  if (best == free.end()) return false;
  const auto [offset, length] = *best;
  free.erase(best);
  *start = RoundUp(offset, Alignment(bytes));
  if (*start > offset) free.emplace(offset, *start - offset);
  const size_t end = *start + bytes;
  if (end < offset + length) free.emplace(end, offset + length - end);
  ++pieces;
  return true;
}

void SlabPool::Slab::Give(size_t start, size_t bytes) {
  const auto next = free.lower_bound(start);
  if (next != free.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      bytes += previous->second;
      free.erase(previous);
    }
  }
  if (next != free.end() && start + bytes == next->first) {
    bytes += next->second;
    free.erase(next);
  }
  free.emplace(start, bytes);
  --pieces;
}

struct SlabPool::State {
  explicit State(SlabPoolOptions o) : options(Normalise(std::move(o))) {}

  // A range in use; `slab` is valid while the range is in use.
  struct Range {
    Slab* slab = nullptr;
    size_t start = 0;
    size_t bytes = 0;
    size_t to_zero = 0;  // the part at its front that was in use before
  };

  // Takes a range of an existing slab. Oldest slab first, so that the newest become empty. The
  // caller holds the lock.
  bool Take(size_t bytes, Range* range);
  bool TakeFrom(Slab* slab, size_t bytes, Range* range);
  void Add(std::unique_ptr<Slab> slab, size_t bytes, Range* range);
  void Release(const Range& range);
  absl::StatusOr<std::unique_ptr<Slab>> NewSlab(size_t bytes) const;

  SlabPoolOptions options;
  std::mutex mutex;  // guards the members below
  std::vector<std::unique_ptr<Slab>> slabs;
  Statistics statistics;
  bool closed = false;  // the pool is destroyed, but some pieces are not
};

bool SlabPool::State::Take(size_t bytes, Range* range) {
  return std::any_of(slabs.begin(), slabs.end(), [this, bytes, range](const auto& slab) {
    return TakeFrom(slab.get(), bytes, range);
  });
}

bool SlabPool::State::TakeFrom(Slab* slab, size_t bytes, Range* range) {
  if (!slab->Take(bytes, &range->start)) return false;
  range->slab = slab;
  range->bytes = bytes;
  const size_t used = std::max(slab->used_up_to, range->start) - range->start;
  range->to_zero = std::min(used, bytes);
  slab->used_up_to = std::max(slab->used_up_to, range->start + bytes);
  statistics.bytes_in_use += bytes;
  ++statistics.pieces;
  return true;
}

// Takes the range from the new slab even if another slab has room meanwhile: invariant 3.
void SlabPool::State::Add(std::unique_ptr<Slab> slab, size_t bytes, Range* range) {
  ++statistics.slabs;
  statistics.bytes_reserved += slab->block->size();
  (void)TakeFrom(slab.get(), bytes, range);  // cannot fail: the slab is large enough
  slabs.push_back(std::move(slab));
}

void SlabPool::State::Release(const Range& range) {
  std::unique_ptr<Slab> surplus;  // ends after the lock: unmapping is slow and runs attachments
  const std::lock_guard<std::mutex> lock(mutex);
  statistics.bytes_in_use -= range.bytes;
  --statistics.pieces;
  range.slab->Give(range.start, range.bytes);
  if (range.slab->pieces > 0) return;
  const bool keep = !closed && range.slab->block->size() == options.slab_bytes &&
                    std::none_of(slabs.begin(), slabs.end(), [&range](const auto& slab) {
                      return slab->pieces == 0 && slab.get() != range.slab;
                    });
  if (keep) return;
  const auto it = std::find_if(slabs.begin(), slabs.end(),
                               [&range](const auto& slab) { return slab.get() == range.slab; });
  surplus = std::move(*it);
  slabs.erase(it);
  --statistics.slabs;
  statistics.bytes_reserved -= surplus->block->size();
}

absl::StatusOr<std::unique_ptr<SlabPool::Slab>> SlabPool::State::NewSlab(size_t bytes) const {
  auto block = MemoryBlock::AllocatePrivate(bytes, options.pages, options.label);
  if (!block.ok()) return block.status();
  if (options.on_new_slab) {
    if (absl::Status status = options.on_new_slab(*block); !status.ok()) return status;
  }
  return std::make_unique<Slab>(*std::move(block));
}

SlabPool::SlabPool(SlabPoolOptions options) : state_(std::make_shared<State>(std::move(options))) {}

SlabPool::~SlabPool() {
  std::vector<std::unique_ptr<Slab>> empty;  // ends after the lock
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->closed = true;
  state_->options.on_new_slab = nullptr;  // its captures may be destroyed now
  for (auto it = state_->slabs.begin(); it != state_->slabs.end();) {
    if ((*it)->pieces > 0) {
      ++it;
      continue;
    }
    empty.push_back(std::move(*it));
    it = state_->slabs.erase(it);
  }
}

absl::StatusOr<std::shared_ptr<MemoryBlock>> SlabPool::Allocate(size_t bytes,
                                                                std::string_view label) {
  const std::string name(label);
  State& state = *state_;
  if (bytes == 0) return absl::InvalidArgumentError(absl::StrCat(name, ": 0 bytes asked for"));
  const size_t limit = state.options.max_slab_bytes;
  if (limit > 0 && bytes > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", bytes, " bytes in one piece; at most ", limit,
                     " (max_slab_bytes of ", state.options.label, "); use several pieces"));
  }
  const size_t footprint = Footprint(bytes);
  State::Range range;
  std::unique_lock<std::mutex> lock(state.mutex);
  if (!state.Take(footprint, &range)) {
    lock.unlock();
    const size_t size = std::max(state.options.slab_bytes, footprint);
    absl::StatusOr<std::unique_ptr<Slab>> slab = state.NewSlab(size);
    if (!slab.ok()) {
      return absl::Status(slab.status().code(),
                          absl::StrCat(name, " (", bytes, " bytes in a slab of ", size,
                                       "): ", std::string(slab.status().message())));
    }
    lock.lock();
    state.Add(*std::move(slab), footprint, &range);
  }
  const std::shared_ptr<MemoryBlock> whole = range.slab->block;
  lock.unlock();
  std::memset(whole->data() + range.start, 0, range.to_zero);
  return MemoryBlock::Piece(whole, range.start, bytes,
                            [shared = state_, range] { shared->Release(range); });
}

SlabPool::Statistics SlabPool::statistics() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->statistics;
}

}  // namespace verbena::rdma
