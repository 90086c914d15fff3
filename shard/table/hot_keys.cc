#include "shard/table/hot_keys.h"

#include <algorithm>

namespace verbena::shard {

void HotKeys::Add(uint64_t key) {
  if (++sampled_ == kHalvedAfter) Halve();
  size_t at =
      static_cast<size_t>(std::find(keys_.begin(), keys_.begin() + used_, key) - keys_.begin());
  if (at < used_) {
    ++counts_[at];
    return;
  }
  if (used_ < kCounters) {
    at = used_++;
    errors_[at] = counts_[at] = 0;
  } else {
    // It inherits the least count, which may include its own earlier count from before its
    // eviction.
    at = static_cast<size_t>(std::min_element(counts_.begin(), counts_.end()) - counts_.begin());
    errors_[at] = counts_[at];
  }
  keys_[at] = key;
  ++counts_[at];
}

void HotKeys::Halve() {
  sampled_ /= 2;
  for (size_t i = 0; i < used_; ++i) {
    counts_[i] = (counts_[i] + 1) / 2;
    errors_[i] = (errors_[i] + 1) / 2;
  }
}

std::vector<HotKey> HotKeys::Top(size_t most) const {
  std::vector<HotKey> top;
  for (size_t i = 0; i < used_; ++i) top.push_back({keys_[i], counts_[i], errors_[i]});
  std::sort(top.begin(), top.end(), [](const HotKey& a, const HotKey& b) {
    return a.count != b.count ? a.count > b.count : a.key < b.key;
  });
  if (top.size() > most) top.resize(most);
  return top;
}

}  // namespace verbena::shard
