#include "client/core/key_plan.h"

#include <algorithm>

#include "proto/wire/routing.h"

namespace verbena::client {

// Counting sort by partition first, so that the remaining sorts fit a near cache.
void SortByPartition(absl::Span<const uint64_t> keys, uint32_t table, uint32_t partitions,
                     KeyScratch* scratch) {
  scratch->partitions.resize(keys.size());
  scratch->cursors.assign(partitions, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    scratch->partitions[i] = PartitionOfKey(table, keys[i], partitions);
    ++scratch->cursors[scratch->partitions[i]];
  }
  uint32_t first = 0;
  for (uint32_t& cursor : scratch->cursors) {
    const uint32_t count = cursor;
    cursor = first;
    first += count;
  }
  scratch->items.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    scratch->items[scratch->cursors[scratch->partitions[i]]++] = {keys[i],
                                                                  static_cast<uint32_t>(i)};
  }
  size_t begin = 0;
  for (const size_t end : scratch->cursors) {
    std::sort(scratch->items.begin() + static_cast<std::ptrdiff_t>(begin),
              scratch->items.begin() + static_cast<std::ptrdiff_t>(end),
              [](const KeyScratch::Item& a, const KeyScratch::Item& b) {
                return a.key != b.key ? a.key < b.key : a.position < b.position;
              });
    begin = end;
  }
}

void KeyPlan::Build(absl::Span<const uint64_t> keys, uint32_t table, uint32_t partitions,
                    KeyScratch* scratch) {
  SortByPartition(keys, table, partitions, scratch);
  keys_.clear();
  ranges_.clear();
  starts_.clear();
  positions_.clear();
  size_t begin = 0;
  for (uint32_t p = 0; p < partitions; ++p) {
    const size_t end = scratch->cursors[p];
    const absl::Span<KeyScratch::Item> items(scratch->items.data() + begin, end - begin);
    begin = end;
    if (!items.empty()) AddRange(p, items);
  }
  starts_.push_back(static_cast<uint32_t>(positions_.size()));
}

void KeyPlan::AddRange(uint32_t partition, absl::Span<const KeyScratch::Item> items) {
  const size_t first = keys_.size();
  for (const KeyScratch::Item& item : items) {
    if (keys_.size() == first || keys_.back() != item.key) {
      keys_.push_back(item.key);
      starts_.push_back(static_cast<uint32_t>(positions_.size()));
    }
    positions_.push_back(item.position);
  }
  ranges_.push_back(
      {partition, static_cast<uint32_t>(first), static_cast<uint32_t>(keys_.size() - first)});
}

}  // namespace verbena::client
