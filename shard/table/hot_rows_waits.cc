// Waits for rows that are not in memory, and prefetching of rows.
#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/table/hot_rows.h"
#include "shard/table/row_store.h"

namespace verbena::shard {
namespace {

// Rows that are intended and not being read yet: 2 MiB of numbers.
constexpr size_t kMaxPrefetched = size_t{1} << 17;
// While so many reads are in flight no more are prefetched: a waiting request would be behind them.
constexpr size_t kMostReadAhead = 1024;

}  // namespace

void HotRows::Pin(uint32_t frame, Wait* wait) {
  ++frames_[frame].pins;
  frames_[frame].referenced = true;
  wait->pins.push_back(frame);
}

void HotRows::Unpin(uint32_t frame) {
  Frame& f = frames_[frame];
  if (--f.pins > 0) return;
  stuck_ = false;
  if (f.rows == nullptr && !f.reading) Free(frame);
}

uint64_t HotRows::Want(std::vector<Need> needs, bool writes) {
  const uint64_t id = ++last_wait_;
  Wait& wait = waits_[id];
  wait.needs = std::move(needs);
  wait.writes = writes;
  ++waiting_;
  queue_.push_back(id);
  Admit();
  const bool waits = !wait.ready;
  if (waits) ++io_.counters.waits;
  return id;
}

bool HotRows::ready(uint64_t wait) const {
  const auto it = waits_.find(wait);
  return it != waits_.end() && it->second.ready;
}

void HotRows::Release(uint64_t id) {
  const auto it = waits_.find(id);
  if (it == waits_.end()) return;
  const Wait wait = std::move(it->second);
  waits_.erase(it);
  for (const uint32_t frame : wait.pins) Unpin(frame);
  if (!wait.ready) --waiting_;
  if (wait.admitted) admitted_rows_ -= wait.needs.size();
  if (waiting_ > 0) Advance();
}

void HotRows::Admit() {
  for (; !queue_.empty(); queue_.pop_front()) {
    const auto it = waits_.find(queue_.front());
    if (it == waits_.end()) continue;
    Wait& wait = it->second;
    if (admitted_rows_ > 0 && admitted_rows_ + wait.needs.size() > most()) return;
    wait.admitted = true;
    admitted_rows_ += wait.needs.size();
    // Rows in memory first: the others take frames.
    std::partition(wait.needs.begin(), wait.needs.end(), [](const Need& need) {
      return need.rows != nullptr && need.rows->is_hot(need.row);
    });
    Go(it->first, &wait);
  }
}

void HotRows::Go(uint64_t id, Wait* wait) {
  if (!wait->admitted || wait->ready) return;
  // More than there are frames for: it cannot be helped by waiting.
  const bool force = wait->needs.size() > most();
  for (; wait->next < wait->needs.size(); ++wait->next) {
    const Need& need = wait->needs[wait->next];
    if (need.rows == nullptr || GoOne(id, wait, need, force)) continue;
    if (std::find(stalled_.begin(), stalled_.end(), id) == stalled_.end()) stalled_.push_back(id);
    return;
  }
  if (wait->reads > 0) return;
  wait->ready = true;
  --waiting_;
  io_.Woken();
}

// False: there is no frame.
bool HotRows::GoOne(uint64_t id, Wait* wait, const Need& need, bool force) {
  const uint32_t frame = need.rows->frame(need.row);
  if (frame < kFresh) {
    Pin(frame, wait);
    return true;
  }
  if (frame == kFresh) {
    if (!wait->writes || need.rows->is_free(need.row)) return true;
    const uint32_t blank = Obtain(force);
    if (blank == kNone) return false;
    Frame& f = frames_[blank];
    f.rows = need.rows;
    f.row = need.row;
    f.dirty = true;
    need.rows->set_frame(need.row, blank);
    need.rows->Fill(need.row);
    Pin(blank, wait);
    return true;
  }
  Reading* reading = StartRead(need.rows, need.row, force);
  if (reading == nullptr) return false;
  Pin(reading->frame, wait);
  reading->waits.push_back(id);
  ++wait->reads;
  return true;
}

HotRows::Reading* HotRows::StartRead(RowStore* rows, uint32_t row, bool force) {
  const uint64_t key = ColdKey(rows->life(), row);
  if (const auto it = reading_.find(key); it != reading_.end()) return &it->second;
  const uint32_t frame = Obtain(force);
  if (frame == kNone) return nullptr;
  frames_[frame].reading = true;
  frames_[frame].rows = rows;
  frames_[frame].row = row;
  Reading& reading = reading_[key];
  reading = {frame, ++last_read_, {}};
  io_.Read(key, reading.cookie);
  return &reading;
}

void HotRows::Fetch(RowStore* rows, uint32_t row) {
  if (rows->frame(row) != kCold || waiting_ > 0 || reading_.size() >= most() / 2) return;
  StartRead(rows, row, /*force=*/false);
}

void HotRows::Prefetch(RowStore* rows, absl::Span<const uint32_t> which) {
  const size_t most_intended = std::min<size_t>(most(), kMaxPrefetched);
  for (const uint32_t row : which) {
    const uint32_t frame = rows->frame(row);
    if (frame < kFresh) Touch(frame);
    if (frame != kCold) continue;
    if (intended_.size() < most_intended) {
      intended_.push_back({rows, row});
    } else {
      ++io_.counters.dropped_prefetches;
    }
  }
  FetchPrefetched();
}

void HotRows::FetchPrefetched() {
  const size_t most_reads = std::min<size_t>(most(), kMostReadAhead);
  while (!intended_.empty() && queue_.empty() && stalled_.empty() && reading_.size() < most_reads) {
    const Need& need = intended_.front();
    if (need.rows->frame(need.row) == kCold) {
      if (StartRead(need.rows, need.row, /*force=*/false) == nullptr) return;
      ++io_.counters.intended;
    }
    intended_.pop_front();
  }
}

void HotRows::Advance() {
  Refill();
  const std::vector<uint64_t> again = std::exchange(stalled_, {});
  for (const uint64_t id : again) {
    const auto it = waits_.find(id);
    if (it != waits_.end()) Go(id, &it->second);
  }
  Admit();
  if (frame_count() > limit_) Shrink();
  FetchPrefetched();
}

// Hot rows stay hot while others take frames.
absl::Status HotRows::Hold(RowStore* rows, absl::Span<const uint32_t> which, uint64_t* id) {
  *id = ++last_wait_;
  Wait& wait = waits_[*id];
  wait.ready = true;
  std::vector<uint64_t> cold;
  std::vector<uint32_t> fresh;
  for (const uint32_t row : which) {
    const uint32_t frame = rows->frame(row);
    if (frame == kCold) cold.push_back(ColdKey(rows->life(), row));
    if (frame == kFresh) fresh.push_back(row);
    if (frame < kFresh) Pin(frame, &wait);
  }
  std::vector<std::byte> read(cold.size() * content_bytes_);
  absl::Status status = io_.ReadNow(cold, content_bytes_, read.data());
  const auto take = [&](uint32_t row) {
    const uint32_t frame = Take(rows, row);
    if (frame == kNone) {
      status = absl::ResourceExhaustedError("no memory for the rows of an apply");
    } else {
      Pin(frame, &wait);
    }
    return status.ok();
  };
  // One that is named twice is there the second time.
  for (size_t i = 0; i < cold.size() && status.ok(); ++i) {
    const uint32_t row = RowOfColdKey(cold[i]);
    if (rows->frame(row) != kCold || !take(row)) continue;
    std::memcpy(at(rows->frame(row)), read.data() + i * content_bytes_, content_bytes_);
  }
  for (size_t i = 0; i < fresh.size() && status.ok(); ++i) {
    if (rows->frame(fresh[i]) == kFresh && take(fresh[i])) rows->Fill(fresh[i]);
  }
  if (!status.ok()) Release(std::exchange(*id, 0));
  return status;
}

}  // namespace verbena::shard
