#include "shard/checkpoint/restore.h"

#include <algorithm>

namespace verbena::shard {

void Ranges::Add(uint32_t begin, uint32_t end) {
  if (begin >= end) return;
  auto it = ends_.upper_bound(begin);
  if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
  while (it != ends_.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    covered_ -= it->second - it->first;
    it = ends_.erase(it);
  }
  ends_[begin] = end;
  covered_ += end - begin;
}

}  // namespace verbena::shard
