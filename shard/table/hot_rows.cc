#include "shard/table/hot_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/failpoints.h"
#include "shard/table/row_store.h"

namespace verbena::shard {
namespace {

constexpr size_t kBlockBytes = size_t{256} << 10;
// One in so many frames is kept free, or is being written to become free.
constexpr uint32_t kReservePart = 16;
constexpr uint32_t kMostReserved = 4096;

}  // namespace

HotRows::HotRows(size_t content_bytes, uint32_t least, uint64_t hot_bytes, ColdIo* io,
                 BufferPool* pool, JobAccount* account)
    : content_bytes_(content_bytes),
      least_(std::max(least, 2u)),
      hot_bytes_(hot_bytes),
      io_(*io),
      pool_(*pool),
      account_(account),
      share_(least_),
      limit_(least_),
      bookkeeping_(pool, account) {
  const size_t most = std::max<size_t>(least_ / 4, 1);
  block_shift_ = static_cast<uint32_t>(
      std::bit_width(std::clamp<size_t>(kBlockBytes / content_bytes_, 1, most)) - 1);
  block_mask_ = (1u << block_shift_) - 1;
}

HotRows::~HotRows() {
  for (const Buffer& b : blocks_) pool_.Free(b);
}

void HotRows::SetShare(uint64_t partitions, uint64_t all) {
  const double part = all == 0 ? 0 : static_cast<double>(partitions) / static_cast<double>(all);
  const double frames =
      static_cast<double>(hot_bytes_) * part / static_cast<double>(content_bytes_);
  constexpr double kMost = 1u << 31;
  share_ = std::max(least_, static_cast<uint32_t>(std::min(frames, kMost)));
  // All existing rows may be requested together from now on.
  limit_ = Grow(rows_) ? share_ : std::max(frame_count(), least_);
  stuck_ = false;
  // Removed rows have left frames too, and operations in flight for them are not reported.
  Advance();
}

// ---- frames -------------------------------------------------------------------------------------

void HotRows::Count() {
  bookkeeping_.Set(frames_.capacity() * (sizeof(Frame) + sizeof(uint32_t)) +
                   blocks_.capacity() * sizeof(Buffer));
}

bool HotRows::NewBlock() {
  const Buffer block = pool_.Allocate((size_t{block_mask_} + 1) * content_bytes_, account_);
  if (block.data == nullptr) return false;
  blocks_.push_back(block);
  const uint32_t first = frame_count();
  frames_.resize(size_t{first} + block_mask_ + 1);
  for (uint32_t f = frame_count(); f > first; --f) free_.push_back(f - 1);
  stuck_ = false;
  Count();
  return true;
}

// More than that by less than a block: the last one has to be whole.
bool HotRows::Grow(uint64_t rows) {
  const uint64_t wanted = std::min<uint64_t>(rows, share_);
  while (frame_count() < wanted && NewBlock()) {
  }
  return frame_count() >= wanted;
}

bool HotRows::Reserve(uint64_t more) {
  if (Grow(rows_ + more)) {
    limit_ = share_;
    return true;
  }
  if (frame_count() < std::min<uint64_t>(rows_ + more, least_)) return false;
  // Less than its share, but all that there is gets on.
  limit_ = std::max(frame_count(), least_);
  return true;
}

void HotRows::Free(uint32_t frame) {
  Frame& f = frames_[frame];
  if (f.write != 0) --writing_;
  f = {};
  free_.push_back(frame);
  stuck_ = false;
}

uint32_t HotRows::Reserved() const {
  const uint32_t over = frame_count() - std::min(frame_count(), limit_);
  if (rows_ <= frame_count()) return over + (free_.empty() ? 1 : 0);
  return over + std::clamp(limit_ / kReservePart, 1u, kMostReserved);
}

void HotRows::Refill() {
  if (stuck_ || frames_.empty()) return;
  const uint32_t wanted = Reserved();
  if (free_.size() + writing_ >= wanted) return;
  // One round clears the reference bits, a second finds unreferenced frames.
  uint64_t steps = uint64_t{2} * frame_count();
  for (; free_.size() + writing_ < wanted && steps > 0; --steps) StepHand();
  stuck_ = steps == 0;
}

void HotRows::StepHand() {
  const uint32_t frame = hand_;
  Frame& f = frames_[frame];
  hand_ = hand_ + 1 == frame_count() ? 0 : hand_ + 1;
  if (!f.used || f.pins > 0 || f.reading || f.write != 0) return;
  if (std::exchange(f.referenced, false)) return;
  if (f.rows->applies(f.row) == 0) {
    // It is unchanged, so it still equals its initial content.
    f.rows->set_frame(f.row, kFresh);
    Free(frame);
  } else if (f.dirty) {
    if (all_unreported_ < frame_count()) Write(frame);
  } else {
    Evict(frame);
  }
}

void HotRows::Write(uint32_t frame) {
  Frame& f = frames_[frame];
  f.dirty = false;
  f.write = ++last_write_ == 0 ? ++last_write_ : last_write_;
  ++writing_;
  ++unreported_[f.rows->life()];
  ++all_unreported_;
  io_.Write(ColdKey(f.rows->life(), f.row), uint64_t{f.write} << 32 | frame,
            {at(frame), content_bytes_});
}

void HotRows::Evict(uint32_t frame) {
  frames_[frame].rows->set_frame(frames_[frame].row, kCold);
  Free(frame);
}

uint32_t HotRows::Obtain(bool force) {
  Refill();
  if (free_.empty() && force && !NewBlock()) io_.SetNoMemory();
  if (free_.empty()) return kNone;
  const uint32_t frame = free_.back();
  free_.pop_back();
  frames_[frame].used = true;
  return frame;
}

uint32_t HotRows::Take(RowStore* rows, uint32_t row) {
  ForgetRead(rows, row);
  const uint32_t frame = Obtain(/*force=*/true);
  if (frame == kNone) return kNone;
  Frame& f = frames_[frame];
  f.rows = rows;
  f.row = row;
  f.dirty = f.referenced = true;
  rows->set_frame(row, frame);
  return frame;
}

void HotRows::Move(uint32_t from) {
  const uint32_t to = free_.back();
  free_.pop_back();
  std::memcpy(at(to), at(from), content_bytes_);
  frames_[to] = frames_[from];
  frames_[to].rows->set_frame(frames_[to].row, to);
  frames_[from] = {};
}

void HotRows::Shrink() {
  while (frame_count() >= uint64_t{limit_} + block_mask_ + 1) {
    Refill();
    const uint32_t first = frame_count() - block_mask_ - 1;
    uint32_t used = 0;
    bool held = false;
    for (uint32_t f = first; f < frame_count(); ++f) {
      used += frames_[f].used ? 1 : 0;
      held |= frames_[f].pins > 0 || frames_[f].reading || frames_[f].write != 0;
    }
    const auto here = std::count_if(free_.begin(), free_.end(), [&](auto f) { return f >= first; });
    if (held || free_.size() - static_cast<size_t>(here) < used) return;
    // The last is the least: of earlier blocks there are as many as are wanted.
    std::sort(free_.begin(), free_.end(), std::greater<>());
    for (uint32_t f = first; f < frame_count(); ++f) {
      if (frames_[f].used) Move(f);
    }
    std::erase_if(free_, [&](uint32_t f) { return f >= first; });
    pool_.Free(blocks_.back());
    blocks_.pop_back();
    frames_.resize(first);
    hand_ = hand_ >= first ? 0 : hand_;
    Count();
  }
}

// ---- rows that go -------------------------------------------------------------------------------

void HotRows::Drop(uint32_t frame) {
  Frame& f = frames_[frame];
  if (f.pins == 0) return Free(frame);
  if (f.write != 0) --writing_;
  const uint32_t pins = f.pins;
  f = {};
  f.used = true;
  f.pins = pins;
}

void HotRows::ForgetRead(RowStore* rows, uint32_t row) {
  const auto it = reading_.find(ColdKey(rows->life(), row));
  if (it == reading_.end()) return;
  const Reading reading = std::move(it->second);
  reading_.erase(it);
  Drop(reading.frame);
  for (const uint64_t id : reading.waits) {
    const auto wait = waits_.find(id);
    if (wait == waits_.end()) continue;
    --wait->second.reads;
    Go(id, &wait->second);
  }
}

void HotRows::Leave(RowStore* rows) {
  for (auto& [id, wait] : waits_) {
    for (Need& need : wait.needs) {
      if (need.rows == rows) need.rows = nullptr;
    }
  }
  std::erase_if(intended_, [rows](const Need& need) { return need.rows == rows; });
  std::vector<uint32_t> left;
  for (const auto& [key, reading] : reading_) {
    if (LifeOfColdKey(key) == rows->life()) left.push_back(RowOfColdKey(key));
  }
  for (const uint32_t row : left) ForgetRead(rows, row);
  for (uint32_t row = 0; row < rows->size(); ++row) {
    if (const uint32_t frame = rows->frame(row); frame < kFresh) Drop(frame);
  }
  if (const auto of = unreported_.find(rows->life()); of != unreported_.end()) {
    all_unreported_ -= of->second;
    unreported_.erase(of);
  }
  io_.EndLife(rows->life());
  stuck_ = false;
}

// ---- the store ----------------------------------------------------------------------------------

void HotRows::OnWritten(uint64_t key, uint64_t cookie) {
  const auto frame = static_cast<uint32_t>(cookie);
  if (const auto of = unreported_.find(LifeOfColdKey(key)); of != unreported_.end()) {
    if (--of->second == 0) unreported_.erase(of);
    --all_unreported_;
  }
  stuck_ = false;
  if (frame >= frame_count() || frames_[frame].write != cookie >> 32) return;  // it has gone
  Frame& f = frames_[frame];
  f.write = 0;
  if (VERBENA_FAILPOINT(shard, forget_cold_changes)) f.dirty = false;
  --writing_;
  ++io_.counters.writes;
  io_.counters.written_bytes += content_bytes_;
  if (!f.dirty && f.pins == 0 && !f.referenced) Evict(frame);
}

void HotRows::OnRead(uint64_t key, uint64_t cookie, const absl::Status& status,
                     absl::Span<const std::byte> content) {
  const auto it = reading_.find(key);
  if (it == reading_.end() || it->second.cookie != cookie) return;
  const Reading reading = std::move(it->second);
  reading_.erase(it);
  Frame& f = frames_[reading.frame];
  f.reading = false;
  stuck_ = false;
  if (!status.ok() || content.size() != content_bytes_) {
    // Waiting requests will be answered that the partition is lost.
    io_.Failed(key, !status.ok()
                        ? status
                        : absl::DataLossError(absl::StrCat("it has ", content.size(),
                                                           " bytes; wanted: ", content_bytes_)));
    return Drop(reading.frame);
  }
  std::memcpy(at(reading.frame), content.data(), content_bytes_);
  f.referenced = true;
  f.rows->set_frame(f.row, reading.frame);
  ++io_.counters.reads;
  io_.counters.read_bytes += content_bytes_;
  for (const uint64_t id : reading.waits) {
    const auto wait = waits_.find(id);
    if (wait == waits_.end()) continue;
    --wait->second.reads;
    Go(id, &wait->second);
  }
}

}  // namespace verbena::shard
