#include "shard/table/row_store.h"

#include <algorithm>

#include "shard/kernel/prefetch.h"
#include "shard/table/initializer.h"
#include "shard/table/row_lookahead.h"

namespace verbena::shard {
namespace {

// Half of a piece is idle in each slice, on average; a chunk costs an address.
constexpr uint32_t kFewBytes = 1280;
// A thirtieth of the largest block of the arena: the rest of the block goes to the index.
constexpr uint32_t kManyBytes = 36 * 1024;
constexpr uint32_t kMostFew = 16;
constexpr uint32_t kMostMany = 64;
// Keys, or rows' keys, that are on their way to the cache when many rows are made or a group of the
// index becomes two.
constexpr size_t kAhead = 32;
// The bytes behind the first lines of a row that the hardware does not prefetch by itself.
constexpr uint32_t kPrefetchBytes = 576;

// log2 of how many rows of `stride` bytes go into `bytes`, at least one, at most `most`.
uint32_t ShiftOf(uint32_t bytes, uint32_t stride, uint32_t most) {
  return static_cast<uint32_t>(std::bit_width(std::clamp(bytes / stride, 1u, most))) - 1;
}

}  // namespace

RowShape::RowShape(uint32_t numbers, uint32_t of_state, bool counts_applies, bool has_stamps,
                   ElementType type_of_parameters, bool in_frames)
    : dim(numbers),
      state(of_state),
      counts(counts_applies),
      stamps(has_stamps),
      tiered(in_frames),
      type(type_of_parameters),
      header(static_cast<uint32_t>(sizeof(uint64_t) + (counts ? sizeof(uint32_t) : 0) +
                                   (stamps ? sizeof(uint32_t) : 0))),
      parameters((dim * ElementBytes(type) + 3) / 4 * 4),
      content(parameters + static_cast<uint32_t>(state * sizeof(float))),
      stride(header + (tiered ? static_cast<uint32_t>(sizeof(uint32_t)) : content)),
      few_shift(ShiftOf(kFewBytes, stride, kMostFew)),
      many_shift(ShiftOf(kManyBytes, stride, kMostMany)) {}

RowStore::RowStore(const RowShape& shape, const v1::Initializer* initializer, RowArena* arena,
                   HotRows* hot)
    : shape_(shape),
      few_mask_((1u << shape.few_shift) - 1),
      many_mask_((1u << shape.many_shift) - 1),
      prefetch_bytes_(std::min(shape.stride, kPrefetchBytes)),
      initializer_(initializer),
      arena_(arena),
      hot_(hot),
      life_(shape.tiered ? hot->NewLife() : 0),
      index_(arena),
      bookkeeping_(arena->pool(), nullptr) {}

RowStore::~RowStore() {
  if (shape_.tiered) {
    hot_->Leave(this);
    hot_->Gone(live());
  }
  for (const Chunk& c : chunks_) {
    if (c.rows != nullptr) arena_->Give(RowArena::kMany, c.rows);
  }
  for (std::byte* few : tail_) arena_->Give(RowArena::kFew, few);
}

void RowStore::WriteApplies(uint32_t row, uint32_t applies) {
  if (shape_.counts) {
    std::memcpy(At(row) + sizeof(uint64_t), &applies, sizeof(applies));
    return;
  }
  uint64_t& applied = chunks_[row >> shape_.many_shift].applied;
  const uint64_t bit = uint64_t{1} << (row & many_mask_);
  applied = applies > 0 ? applied | bit : applied & ~bit;
}

void RowStore::SetApplies(uint32_t row, uint32_t applies_of_row) {
  applied_rows_ -= applies(row) > 0 ? 1 : 0;
  applied_rows_ += applies_of_row > 0 ? 1 : 0;
  WriteApplies(row, applies_of_row);
}

void RowStore::Find(absl::Span<const uint64_t> keys, uint32_t* rows) const {
  if (size_ == 0) {
    std::fill_n(rows, keys.size(), kNone);
    return;
  }
  RowLookahead ahead;
  ahead.Add(this, keys);
  for (size_t i = 0; i < keys.size(); ++i) rows[i] = Finish(ahead.Next());
}

void RowStore::HashesOf(absl::Span<const uint32_t> rows, uint64_t* hashes) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) PrefetchToRead(At(rows[i + kAhead]));
    hashes[i] = RowIndex::Hash(key(rows[i]));
  }
}

void RowStore::SetParameters(uint32_t row, const float* parameters_of_row) {
  if (shape_.narrow()) {
    Round(BestIsa(), shape_.type, parameters_of_row, half_data(row), shape_.dim);
  } else {
    std::copy_n(parameters_of_row, shape_.dim, parameters(row));
  }
}

void RowStore::SetInitialParameters(uint64_t key_of_row, std::byte* to) const {
  if (!shape_.narrow()) {
    return InitializeRow(*initializer_, key_of_row, reinterpret_cast<float*>(to), shape_.dim);
  }
  float wide[kMaxRowElements];
  InitializeRow(*initializer_, key_of_row, wide, shape_.dim);
  Round(BestIsa(), shape_.type, wide, reinterpret_cast<uint16_t*>(to), shape_.dim);
}

void RowStore::InitialContent(uint64_t key_of_row, std::byte* to) const {
  std::memset(to, 0, shape_.content);
  SetInitialParameters(key_of_row, to);
}

void RowStore::LeaveFrame(uint32_t row) {
  if (is_hot(row)) {
    hot_->Drop(RawFrame(row));
  } else {
    hot_->ForgetRead(this, row);
  }
}

void RowStore::MakeFresh(uint32_t row) {
  if (!shape_.tiered) return Fill(row);
  LeaveFrame(row);
  set_frame(row, HotRows::kFresh);
}

void RowStore::Initial(uint64_t key_of_row, float* wide) const {
  InitializeRow(*initializer_, key_of_row, wide, shape_.dim);
  if (!shape_.narrow()) return;
  uint16_t rounded[kMaxRowElements];
  Round(BestIsa(), shape_.type, wide, rounded, shape_.dim);
  Widen(BestIsa(), shape_.type, rounded, wide, shape_.dim);
}

void RowStore::Drop(uint32_t row) {
  index_.Remove(RowIndex::Hash(key(row)), row);
  if (shape_.tiered) {
    LeaveFrame(row);
    hot_->Gone(1);
  }
  SetApplies(row, 0);
  SetStamp(row, kFreeStamp);
  std::memcpy(At(row) + shape_.header, &free_, sizeof(free_));
  free_ = row;
  ++free_count_;
}

// Small pieces that rows of less than that number want, beside those there are.
uint64_t RowStore::FewFor(uint64_t number) const {
  if (number <= in_chunks_) return 0;
  const uint64_t behind = std::min<uint64_t>(number - in_chunks_, uint64_t{many_mask_} + 1);
  const uint64_t few = (behind + few_mask_) >> shape_.few_shift;
  return few - std::min<uint64_t>(few, tail_.size());
}

bool RowStore::Reserve(uint32_t more) {
  if (FullFor(more)) return false;
  const uint32_t made = more;
  RowArena::Counts pieces = {};
  pieces[RowArena::kPage] = index_.PagesFor(more);
  if (reuses_) more -= std::min(more, free_count_);
  const uint64_t numbers = uint64_t{size_} + more;
  if (FewFor(numbers) > arena_->idle(RowArena::kFew)) FillEarly();
  if (numbers > in_chunks_) {
    pieces[RowArena::kFew] = FewFor(numbers);
    pieces[RowArena::kMany] = (numbers - in_chunks_) >> shape_.many_shift;
  }
  // Frames last: they take the remaining memory, and there may be fewer.
  return arena_->Reserve(pieces) && (!shape_.tiered || hot_->Reserve(made));
}

// Small pieces are most wanted while slices grow together, and would idle ever after. Where there
// are too few, a last chunk that is a quarter full gets its memory, and gives others the pieces it
// had.
void RowStore::FillEarly() {
  if (tail_.size() <= many_mask_ >> shape_.few_shift >> 2) return;
  std::byte*& rows = chunks_.back().rows;
  if (rows == nullptr) rows = arena_->Take(RowArena::kMany);
  if (rows != nullptr) FillChunk();
}

// The last chunk's rows get one piece.
void RowStore::FillChunk() {
  Chunk& chunk = chunks_.back();
  for (size_t i = 0; i < tail_.size(); ++i) {
    std::memcpy(chunk.rows + i * shape_.few_bytes(), tail_[i], shape_.few_bytes());
    arena_->Give(RowArena::kFew, tail_[i]);
  }
  tail_.clear();
  in_chunks_ += many_mask_ + 1;
}

// Memory for one row more: of a chunk's own at once if it will be full soon.
bool RowStore::MakeRoom(uint64_t coming) {
  if (size_ < in_chunks_) return true;
  const uint32_t in_chunk = size_ & many_mask_;
  const bool at_once = in_chunk == 0 && coming >= many_mask_;
  if (!at_once && in_chunk >> shape_.few_shift >= tail_.size()) {
    std::byte* const few = arena_->Take(RowArena::kFew);
    if (few == nullptr) return false;
    tail_.push_back(few);
  }
  if (size_ >> shape_.many_shift >= chunks_.size()) {
    if (chunks_.size() == chunks_.capacity()) chunks_.reserve(chunks_.size() * 9 / 8 + 1);
    chunks_.emplace_back();
  }
  // Had before its last row is there.
  Chunk& chunk = chunks_.back();
  if ((at_once || in_chunk == many_mask_) && chunk.rows == nullptr) {
    chunk.rows = arena_->Take(RowArena::kMany);
    if (chunk.rows == nullptr) return false;
  }
  if (at_once) in_chunks_ += many_mask_ + 1;
  return true;
}

uint32_t RowStore::Insert(uint64_t key, Fresh fresh, uint64_t coming) {
  const bool again = reuses_ && free_count_ > 0;
  const uint32_t row = again ? free_ : size_;
  const auto hashes_of = [this](absl::Span<const uint32_t> rows, uint64_t* hashes) {
    HashesOf(rows, hashes);
  };
  if (!again && !MakeRoom(coming)) return kNone;
  if (!index_.Insert(RowIndex::Hash(key), row, hashes_of)) return kNone;
  if (again) {
    std::memcpy(&free_, At(row) + shape_.header, sizeof(free_));
    --free_count_;
  }
  std::byte* const at = At(row);
  std::memcpy(at, &key, sizeof(key));
  WriteApplies(row, 0);
  if (shape_.stamps) SetStamp(row, 0);
  if (shape_.tiered) {
    set_frame(row, HotRows::kFresh);
    hot_->Made();
  } else {
    std::fill_n(state(row), shape_.state, 0.0f);
    if (fresh == Fresh::kInitial) SetInitialParameters(key, content(row));
  }
  if (again) return row;
  ++size_;
  if (row >= in_chunks_ && (row & many_mask_) == many_mask_) FillChunk();
  return row;
}

void RowStore::Expect(uint64_t rows) {
  if (size_ > 0) return;
  index_.Expect(std::min(rows, shape_.most_rows));
  bookkeeping_.Set(bookkeeping_bytes());
}

// Since they were guessed rows may have gone, and their numbers be others'.
void RowStore::FindGuessed(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> guesses,
                           uint32_t* rows) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint32_t guess = guesses[i];
    const bool right = guess < size_ && key(guess) == keys[i] && !is_free(guess);
    rows[i] = right ? guess : size_ == 0 ? kNone : FindOne(keys[i], RowIndex::Hash(keys[i]));
  }
}

bool RowStore::FindOrCreate(absl::Span<const uint64_t> keys, uint32_t* rows,
                            absl::Span<const uint32_t> guesses, Fresh fresh, RowGrowth* growth) {
  const size_t guessed = std::min(guesses.size(), keys.size());
  FindGuessed(keys.first(guessed), guesses.first(guessed), rows);
  Find(keys.subspan(guessed), rows + guessed);
  auto missing = static_cast<uint64_t>(std::count(rows, rows + keys.size(), kNone));
  if (missing == 0) return true;
  if (growth != nullptr) {
    const uint64_t again = reuses_ ? std::min<uint64_t>(missing, free_count_) : 0;
    growth->bytes = BytesOf(missing - again);
    growth->refused = growth->bytes > growth->room;
    if (growth->refused) return false;
  }
  if (missing > UINT32_MAX || !Reserve(static_cast<uint32_t>(missing))) return false;
  const uint32_t before = size_;
  std::vector<uint32_t> again;  // numbers that were free
  bool enough = true;
  for (size_t i = 0; enough && i < keys.size(); ++i) {
    if (const size_t next = i + kAhead; size_ > 0 && next < keys.size() && rows[next] == kNone) {
      RowIndex::Place at(index_, RowIndex::Hash(keys[next]));
      index_.PrefetchLine(&at);
    }
    if (rows[i] != kNone) continue;
    --missing;
    // Looked for again: a key that came twice would get two rows.
    if (size_ > 0) rows[i] = FindOne(keys[i], RowIndex::Hash(keys[i]));
    if (rows[i] != kNone) continue;
    rows[i] = Insert(keys[i], fresh, missing);
    enough = rows[i] != kNone;
    if (enough && rows[i] < before) again.push_back(rows[i]);
  }
  // Pages were reserved for keys that chance spreads; others may have wanted more.
  while (!enough && size_ > before) {
    --size_;
    index_.Remove(RowIndex::Hash(key(size_)), size_);
    if (shape_.tiered) hot_->Gone(1);
  }
  for (size_t i = again.size(); !enough && i > 0; --i) Drop(again[i - 1]);
  bookkeeping_.Set(bookkeeping_bytes());
  return enough;
}

uint64_t RowStore::bookkeeping_bytes() const {
  return index_.bookkeeping_bytes() + chunks_.capacity() * sizeof(Chunk) +
         tail_.capacity() * sizeof(tail_[0]);
}

uint64_t RowStore::overhead_bytes() const {
  return index_.pages() * RowArena::kPageBytes + bookkeeping_bytes() +
         uint64_t{size_} * (shape_.header + (shape_.tiered ? sizeof(uint32_t) : 0));
}

}  // namespace verbena::shard
