#include "shard/table/hot_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "shard/planted_bugs.h"
#include "shard/table/row_store.h"

namespace verbena::shard {
namespace {

constexpr size_t kBlockBytes = size_t{256} << 10;
// Of the frames, so many are kept free, or are being written to be.
constexpr uint32_t kReservePart = 16;
constexpr uint32_t kMostReserved = 4096;
// Rows that are intended and not being read yet: 2 MiB of numbers.
constexpr size_t kMostIntended = size_t{1} << 17;
// While so many are read, no more of these are asked for: whoever waits is behind them.
constexpr size_t kMostReadAhead = 1024;

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
  // Rows that there are may be asked for together from now on.
  limit_ = Grow(rows_) ? share_ : std::max(frame_count(), least_);
  stuck_ = false;
  // Rows that have left have left frames, too, and what was on its way for them is not reported.
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
  // Once around to take away who was asked for, once to find the others.
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
    // Nothing has changed it: it is what it was when it was made.
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

// ---- waits --------------------------------------------------------------------------------------

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
    // First what is there: others will take frames.
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

void HotRows::Intend(RowStore* rows, absl::Span<const uint32_t> which) {
  const size_t most_intended = std::min<size_t>(most(), kMostIntended);
  for (const uint32_t row : which) {
    const uint32_t frame = rows->frame(row);
    if (frame < kFresh) Touch(frame);
    if (frame != kCold) continue;
    if (intended_.size() < most_intended) {
      intended_.push_back({rows, row});
    } else {
      ++io_.counters.dropped_intents;
    }
  }
  FetchIntended();
}

void HotRows::FetchIntended() {
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
  FetchIntended();
}

// Those that are hot stay so while others take frames.
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
  if (planted_bugs().forget_cold_changes) f.dirty = false;
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
    // Who waits for it will be told that its partition is lost.
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
