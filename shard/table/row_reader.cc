#include "shard/table/row_reader.h"

#include <algorithm>

namespace verbena::shard {
namespace {

// Enough for the disk to have several at once, little enough to stay in the cache.
constexpr size_t kRowsAtOnce = 256;

}  // namespace

bool RowReader::ReadAhead(size_t from) {
  ahead_ = std::min(from + kRowsAtOnce, which_.size());
  keys_.clear();
  for (size_t i = from; i < ahead_; ++i) {
    if (rows_.frame(which_[i]) == HotRows::kCold) {
      keys_.push_back(ColdKey(rows_.life(), which_[i]));
    }
  }
  const size_t bytes = rows_.hot()->content_bytes();
  read_.resize(keys_.size() * bytes);
  taken_ = 0;
  return rows_.hot()->io().ReadNow(keys_, bytes, read_.data()).ok();
}

const std::byte* RowReader::NextTiered(size_t at) {
  if (at >= ahead_ && !ReadAhead(at)) {
    ahead_ = at;  // a repeated call fails again
    return nullptr;
  }
  const uint32_t row = which_[at];
  const uint32_t frame = rows_.frame(row);
  if (frame == HotRows::kCold) {
    return read_.data() + rows_.hot()->content_bytes() * taken_++;
  }
  if (frame < HotRows::kFresh) return rows_.content(row);
  initial_.resize(rows_.hot()->content_bytes());
  rows_.InitialContent(rows_.key(row), initial_.data());
  return initial_.data();
}

}  // namespace verbena::shard
