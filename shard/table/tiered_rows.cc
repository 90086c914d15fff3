// The cold tier of an embedding table: brings rows to memory for the operations that need them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/table/embedding_table.h"

namespace verbena::shard {

void EmbeddingTable::SetShare() {
  if (hot_ == nullptr) return;
  uint64_t here = 0;
  for (uint32_t slice = 0; slice < slices(); ++slice) here += ready(slice) ? 1 : 0;
  hot_->SetShare(here, partitions());
}

uint32_t EmbeddingTable::LocalPartitionOfLife(uint32_t life) const {
  for (uint32_t slice = 0; slice < slices_.size(); ++slice) {
    if (ready(slice) && slices_[slice].rows->life() == life) return slice;
  }
  return kNone;
}

void EmbeddingTable::Unprepare(uint32_t slice) {
  if (hot_ == nullptr || slices_[slice].wait == 0) return;
  hot_->Release(std::exchange(slices_[slice].wait, 0));
}

// The numbers may belong to other rows since the last call.
bool EmbeddingTable::MakeHot(uint32_t slice, absl::Span<const uint32_t> rows) {
  LocalPartition& s = slices_[slice];
  RowStore& store = *s.rows;
  if (s.wait != 0) {
    if (!hot_->ready(s.wait)) return false;
    const auto hot = [&](uint32_t row) { return store.is_hot(row); };
    if (std::all_of(rows.begin(), rows.end(), hot)) return true;
    Unprepare(slice);
  }
  std::vector<HotRows::Need> needs;
  needs.reserve(rows.size());
  for (const uint32_t row : rows) needs.push_back({&store, row});
  s.wait = hot_->Want(std::move(needs), /*writes=*/true);
  return hot_->ready(s.wait);
}

absl::Status EmbeddingTable::PrepareNow(uint32_t slice, absl::Span<const uint32_t> rows) {
  if (hot_ == nullptr) return absl::OkStatus();
  Unprepare(slice);
  return hot_->Hold(slices_[slice].rows.get(), rows, &slices_[slice].wait);
}

void EmbeddingTable::Fetch(uint32_t slice, absl::Span<const uint32_t> rows) {
  if (hot_ == nullptr) return;
  for (const uint32_t row : rows) hot_->Fetch(slices_[slice].rows.get(), row);
}

void EmbeddingTable::Prefetch(uint32_t slice, absl::Span<const uint64_t> keys) {
  if (hot_ == nullptr) return;
  RowStore& store = *slices_[slice].rows;
  found_.resize(keys.size());
  store.Find(keys, found_.data());
  std::erase(found_, RowStore::kNone);
  hot_->Prefetch(&store, found_);
}

uint64_t EmbeddingTable::WantRows(absl::Span<const Group> groups, absl::Span<const uint64_t> keys) {
  std::vector<HotRows::Need> needs;
  bool cold = false;
  for (const Group& group : groups) {
    RowStore& store = *slices_[slice_of(group.partition)].rows;
    found_.resize(group.count);
    store.Find(keys.first(group.count), found_.data());
    keys.remove_prefix(group.count);
    // Keys ascend, and those of a lookup of bags may repeat.
    for (size_t i = 0; i < found_.size(); ++i) {
      const uint32_t row = found_[i];
      if (row == RowStore::kNone || (i > 0 && row == found_[i - 1])) continue;
      const uint32_t frame = store.frame(row);
      if (frame == HotRows::kFresh) continue;
      cold |= frame == HotRows::kCold;
      needs.push_back({&store, row});
    }
  }
  // All are there; or they are so many that they are read in passing.
  if (!cold || needs.size() > hot_->most()) {
    for (const HotRows::Need& need : needs) hot_->Touch(need.rows->frame(need.row));
    return 0;
  }
  return hot_->Want(std::move(needs), /*writes=*/false);
}

}  // namespace verbena::shard
