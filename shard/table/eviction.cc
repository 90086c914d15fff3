#include "shard/table/eviction.h"

#include <algorithm>

#include "proto/spec/table_spec.h"
#include "shard/failpoints.h"

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

// Decides among rows with the same stamp: of the key alone, so that every replica agrees.
uint32_t HashOf(uint64_t key) { return static_cast<uint32_t>(RowIndex::Hash(key)); }

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

uint32_t Eviction::Aged(const ApplyStamp& apply, uint32_t stamp) const {
  const bool unnamed = apply.keep_from <= 1 && apply.keep_hash == 0;
  if (kind_ != v1::Eviction::LFU || unnamed) return stamp;
  const auto count = stamp >> 16;
  return std::max((count - (count + kPart - 1) / kPart) << 16 | (stamp & 0xffff), 1u);
}

uint32_t Eviction::Rebase(uint64_t apply) const {
  const bool counts = kind_ == v1::Eviction::TTL_STEPS || kind_ == v1::Eviction::LRU;
  return counts && apply >= 2 * kHalf && apply % kHalf == 0 ? kHalf : 0;
}

bool Eviction::Goes(const ApplyStamp& apply, uint32_t stamp, uint64_t key) {
  if (stamp != apply.keep_from) return stamp < apply.keep_from;
  return HashOf(key) < apply.keep_hash;
}

ApplyStamp Eviction::Decide(const RowStore& rows, absl::Span<const uint32_t> named, Waiting waiting,
                            uint64_t apply, uint32_t seconds, uint32_t* last_sweep) {
  ApplyStamp keep;
  switch (kind_) {
    case v1::Eviction::TTL_STEPS: {
      if (apply % std::max<uint64_t>(ttl_ / kSweeps, 1) != 0 || Rebase(apply) != 0) return keep;
      const uint32_t stamp = StampOf(apply);
      if (stamp > ttl_) keep.keep_from = stamp - static_cast<uint32_t>(ttl_);
      return keep;
    }
    case v1::Eviction::TTL_SECONDS:
      if (seconds == 0 || seconds < *last_sweep + std::max<uint64_t>(ttl_ / kSweeps, 1)) {
        return keep;
      }
      *last_sweep = seconds;
      if (seconds > ttl_) keep.keep_from = seconds - static_cast<uint32_t>(ttl_);
      return keep;
    case v1::Eviction::LRU:
    case v1::Eviction::LFU:
      // Not while all stamps change.
      return rows.live() > most_rows_ && Rebase(apply) == 0 ? Threshold(rows, named, waiting)
                                                            : keep;
    default:
      return keep;
  }
}

// A sixteenth below the limit, without the rows that the apply names. Waiting applies are made
// before this one, so their rows count with the stamps that they get. Other rows that no apply has
// named go with every sweep, so they do not count.
ApplyStamp Eviction::Threshold(const RowStore& rows, absl::Span<const uint32_t> named,
                               Waiting waiting) {
  named_.assign(rows.size(), false);
  for (const uint32_t row : named) named_[row] = true;
  stamps_.resize(rows.size());
  for (uint32_t row = 0; row < rows.size(); ++row) {
    rows.PrefetchStamp(row);
    stamps_[row] = rows.stamp(row);
  }
  waiting_.clear();
  waiting(&waiting_);
  const bool latest =
      kind_ == v1::Eviction::LRU && VERBENA_FAILPOINT(shard, waiting_rows_are_latest);
  for (const auto& [row, apply] : waiting_) {
    if (Rebase(apply) != 0) return {};  // not before all stamps have changed
    if (row >= rows.size() || rows.is_free(row)) continue;
    stamps_[row] = latest ? kMostStamp : Stamp(stamps_[row], rows.key(row), apply, 0);
  }
  order_.clear();
  uint64_t live = rows.live();
  for (uint32_t row = 0; row < rows.size(); ++row) {
    const uint32_t stamp = stamps_[row];
    if (stamp == RowStore::kFreeStamp || named_[row]) continue;
    if (stamp == 0) {
      --live;
      continue;
    }
    order_.push_back(uint64_t{stamp} << 32 | HashOf(rows.key(row)));
  }
  if (live < rows.live() && rows.live() > most_rows_ && VERBENA_FAILPOINT(shard, count_unnamed)) {
    live = rows.live();
  }
  const uint64_t target = most_rows_ - most_rows_ / kPart;
  const uint64_t need = live > most_rows_ ? std::min<uint64_t>(live - target, order_.size()) : 0;
  // None but those without a stamp.
  if (need == 0) return {0, live < rows.live() ? 1u : 0u, 0};
  // The first that stays; all go where there are no more.
  const bool all = need == order_.size();
  const auto first = order_.begin() + static_cast<ptrdiff_t>(all ? need - 1 : need);
  std::nth_element(order_.begin(), first, order_.end());
  const uint64_t keep = *first + (all ? 1 : 0);
  ApplyStamp stamp{0, static_cast<uint32_t>(keep >> 32), static_cast<uint32_t>(keep)};
  if (VERBENA_FAILPOINT(shard, evict_alike)) stamp = {0, stamp.keep_from + 1, 0};
  return stamp;
}

}  // namespace verbena::shard
