#include "server/executor/free_extents.h"

#include <algorithm>
#include <iterator>

namespace verbena::server {

void FreeExtents::Insert(const Extent& extent) {
  by_address_[extent.data] = extent;
  by_size_.emplace(extent.bytes, extent.data);
  bytes_ += extent.bytes;
}

FreeExtents::ByAddress::iterator FreeExtents::Erase(ByAddress::iterator it) {
  by_size_.erase({it->second.bytes, it->first});
  bytes_ -= it->second.bytes;
  return by_address_.erase(it);
}

void FreeExtents::Add(const Extent& extent) {
  Extent all = extent;
  auto next = by_address_.lower_bound(extent.data);
  if (next != by_address_.begin()) {
    const auto before = std::prev(next);
    const Extent& b = before->second;
    if (b.owner == all.owner && b.data + b.bytes == all.data) {
      all.data = b.data;
      all.bytes += b.bytes;
      next = Erase(before);
    }
  }
  if (next != by_address_.end() && next->second.owner == all.owner &&
      all.data + all.bytes == next->first) {
    all.bytes += next->second.bytes;
    Erase(next);
  }
  Insert(all);
}

FreeExtents::Extent FreeExtents::Take(size_t bytes, size_t unit) {
  auto fits = by_size_.lower_bound({bytes, nullptr});
  if (fits == by_size_.end()) {
    if (by_size_.empty() || std::prev(fits)->first < unit) return {};
    --fits;
  }
  const auto it = by_address_.find(fits->second);
  const Extent whole = it->second;
  Erase(it);
  const size_t taken = std::min(whole.bytes, bytes) / unit * unit;
  if (taken < whole.bytes) Insert({whole.data + taken, whole.bytes - taken, whole.owner});
  return {whole.data, taken, whole.owner};
}

void FreeExtents::Forget(const void* owner) {
  for (auto it = by_address_.begin(); it != by_address_.end();) {
    it = it->second.owner == owner ? Erase(it) : std::next(it);
  }
}

}  // namespace verbena::server
