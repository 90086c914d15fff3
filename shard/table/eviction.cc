#include "shard/table/eviction.h"

#include <algorithm>

#include "proto/eviction_spec.h"

namespace verbena::shard {
namespace {

constexpr uint32_t kMostStamp = RowStore::kFreeStamp - 1;
constexpr uint64_t kHalf = uint64_t{1} << 31;
// Sweeps by age come so often in a row's time, sweeps by number with so much of the rows.
constexpr uint64_t kSweeps = 8;
constexpr uint32_t kPart = 16;
// LFU: of the count's 16 bits, a push.
constexpr uint32_t kPush = 256;
constexpr uint32_t kMostCount = 0xfffe;

// Stamps of applies: in the upper half of the 32 bits, once they are there.
// Never 0, which a row has that was made and not named yet.
uint32_t StampOf(uint64_t apply) {
  const uint64_t base = apply < 2 * kHalf ? 0 : (apply / kHalf - 1) * kHalf;
  return static_cast<uint32_t>(std::min<uint64_t>(apply - base, kMostStamp));
}

uint64_t MostRows(const v1::Eviction& spec, uint32_t partitions, size_t row_bytes) {
  if (spec.max_rows() == 0 && spec.max_bytes() == 0) return UINT64_MAX;
  const uint64_t rows = spec.max_rows() > 0 ? spec.max_rows() : spec.max_bytes() / row_bytes;
  return std::max<uint64_t>(rows / std::max(partitions, 1u), 1);
}

}  // namespace

Eviction::Eviction(const v1::Eviction& spec, uint32_t partitions, size_t row_bytes)
    : kind_(KindOf(spec)), ttl_(spec.ttl()), most_rows_(MostRows(spec, partitions, row_bytes)) {}

uint32_t Eviction::Stamp(uint32_t before, uint64_t key, uint64_t apply, uint32_t seconds) const {
  if (kind_ == v1::Eviction::TTL_SECONDS) return std::max(before, std::min(seconds, kMostStamp));
  if (kind_ != v1::Eviction::LFU) return StampOf(apply);
  const uint32_t count = std::min((before >> 16) + kPush, kMostCount);
  return count << 16 | static_cast<uint32_t>(RowIndex::Hash(key) >> 48);
}

uint32_t Eviction::Aged(uint32_t stamp) const {
  if (kind_ != v1::Eviction::LFU) return stamp;
  const auto count = stamp >> 16;
  return std::max((count - (count + kPart - 1) / kPart) << 16 | (stamp & 0xffff), 1u);
}

uint32_t Eviction::Rebase(uint64_t apply) const {
  const bool counts = kind_ == v1::Eviction::TTL_STEPS || kind_ == v1::Eviction::LRU;
  return counts && apply >= 2 * kHalf && apply % kHalf == 0 ? kHalf : 0;
}

uint32_t Eviction::Decide(const RowStore& rows, uint64_t apply, uint32_t seconds,
                          uint32_t* last_sweep) {
  switch (kind_) {
    case v1::Eviction::TTL_STEPS: {
      if (apply % std::max<uint64_t>(ttl_ / kSweeps, 1) != 0 || Rebase(apply) != 0) return 0;
      const uint32_t stamp = StampOf(apply);
      return stamp > ttl_ ? stamp - static_cast<uint32_t>(ttl_) : 0;
    }
    case v1::Eviction::TTL_SECONDS:
      if (seconds == 0 || seconds < *last_sweep + std::max<uint64_t>(ttl_ / kSweeps, 1)) return 0;
      *last_sweep = seconds;
      return seconds > ttl_ ? seconds - static_cast<uint32_t>(ttl_) : 0;
    case v1::Eviction::LRU:
    case v1::Eviction::LFU:
      // Not while all stamps change.
      return rows.live() > most_rows_ && Rebase(apply) == 0 ? Threshold(rows, apply) : 0;
    default:
      return 0;
  }
}

// A sixteenth below the limit. Of rows that are alike all go or none, whichever is nearer to that.
// Rows that were made and not named yet are most likely those of this apply: they stay, and so do
// all that have been named by it.
uint32_t Eviction::Threshold(const RowStore& rows, uint64_t apply) {
  stamps_.clear();
  for (uint32_t row = 0; row < rows.size(); ++row) {
    rows.PrefetchStamp(row);
    if (const uint32_t stamp = rows.stamp(row); stamp != RowStore::kFreeStamp) {
      stamps_.push_back(stamp == 0 ? kMostStamp : stamp);
    }
  }
  const uint64_t target = most_rows_ - most_rows_ / kPart;
  const auto need = static_cast<ptrdiff_t>(stamps_.size() - target);
  const auto last = stamps_.begin() + need - 1;
  std::nth_element(stamps_.begin(), last, stamps_.end());
  const uint32_t stamp = *last;
  if (stamp == kMostStamp) return kind_ == v1::Eviction::LRU ? StampOf(apply) : kPush << 16;
  const auto lesser = std::count_if(stamps_.begin(), last, [&](uint32_t s) { return s < stamp; });
  const auto with = lesser + std::count(stamps_.begin(), stamps_.end(), stamp);
  return need - lesser < with - need && lesser > 0 ? stamp : stamp + 1;
}

}  // namespace verbena::shard
