#include "shard/checkpoint/row_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/failpoints.h"
#include "shard/table/row_reader.h"

namespace verbena::shard {
namespace {

constexpr size_t kKeyAndCount = sizeof(uint64_t) + sizeof(uint32_t);

uint32_t RowsIn(uint64_t bytes, size_t each) {
  return static_cast<uint32_t>(std::clamp<uint64_t>(bytes / each, 1, UINT32_MAX));
}

}  // namespace

RowCheckpoint::RowCheckpoint(EmbeddingTable* table, const TableToCheckpoint& what,
                             const CheckpointParts& parts)
    : TableCheckpoint(table->id(), parts),
      table_(table),
      sync_(table->spec().consistency() == v1::CONSISTENCY_SYNC),
      what_(what),
      row_bytes_(kKeyAndCount + table->row_bytes() +
                 table->state_arrays() * table->state_width() * sizeof(float)),
      kept_capacity_(RowsIn(std::min(kKeptBytes, parts.budget->limit() / 8), row_bytes_)) {}

RowCheckpoint::~RowCheckpoint() {
  Leave();
  for (LocalPartitionRows& s : rows_) FreePacked(&s.open);
  for (Packed& packed : kept_) FreePacked(&packed);
}

void RowCheckpoint::Leave() {
  if (table_ != nullptr) table_->Watch(nullptr);
  table_ = nullptr;
}

void RowCheckpoint::Start() {
  rows_.resize(slices().size());
  for (uint32_t slice = 0; slice < slices().size(); ++slice) {
    if (!has(slice, State::kWaiting)) continue;
    if (!sync_ || table_->slice(slice).version == what_.step) SetDue(slice);
  }
  table_->Watch(this);
}

void RowCheckpoint::SetDue(uint32_t slice) {
  LocalPartitionRows& s = rows_[slice];
  const EmbeddingTable::LocalPartition& from = table_->slice(slice);
  Open(slice, *table_, from.version);
  at(slice).version = from.version;
  at(slice).applies = from.applies;
  open_.push_back(slice);
  s.rows = table_->rows_in(slice);
  s.kept = std::make_unique<ChangedRows>(0, parts_.pool);
  std::unique_ptr<ChangedRows>& changed = table_->changed(slice);
  at(slice).incremental = what_.base != 0 && changed != nullptr && changed->base() == what_.base;
  if (at(slice).incremental) s.dropped = StillDropped(slice, *changed);
  if (!what_.track) return;
  s.tracks = true;
  s.base = std::exchange(changed, std::make_unique<ChangedRows>(parts_.save, parts_.pool));
}

// Keys that have no row now.
std::vector<uint64_t> RowCheckpoint::StillDropped(uint32_t slice,
                                                  const ChangedRows& changed) const {
  std::vector<uint64_t> keys = changed.dropped();
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  const RowStore& rows = table_->rows(slice);
  std::vector<uint32_t> found(keys.size());
  rows.Find(keys, found.data());
  size_t left = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool there = found[i] != RowStore::kNone && rows.applies(found[i]) > 0;
    if (!there) keys[left++] = keys[i];
  }
  keys.resize(left);
  return keys;
}

bool RowCheckpoint::ToCheckpoint(const LocalPartitionRows& s, uint32_t slice, uint32_t row) const {
  if (s.kept->marked(row) || table_->rows(slice).applies(row) == 0) return false;
  if (!slices()[slice].incremental) return true;
  // Without new tracking, this includes rows that change meanwhile: their old contents are kept
  // too.
  return (s.base != nullptr ? s.base : table_->changed(slice))->marked(row);
}

// ---- applies ------------------------------------------------------------------------------------

bool RowCheckpoint::BeforeChange(uint32_t slice, absl::Span<const uint32_t> rows) {
  if (!has(slice, State::kOpen) || VERBENA_FAILPOINT(shard, checkpoint_what_changes)) return true;
  const LocalPartitionRows& s = rows_[slice];
  to_keep_.clear();
  for (const uint32_t row : rows) {
    if (row >= s.rows || row < s.cursor || s.kept->marked(row)) continue;
    if (ToCheckpoint(s, slice, row)) {
      to_keep_.push_back(row);
    } else {
      s.kept->Mark(row);
    }
  }
  // They are in memory, except for those that are about to be dropped.
  RowReader reader(table_->rows(slice), to_keep_);
  for (const uint32_t row : to_keep_) {
    const std::byte* const content = reader.Next();
    if (s.kept->marked(row)) continue;  // named twice
    if (content == nullptr || !Keep(slice, row, content)) {
      ++parts_.counters->waits;
      return false;
    }
    s.kept->Mark(row);
  }
  return true;
}

bool RowCheckpoint::Keep(uint32_t slice, uint32_t row, const std::byte* content) {
  LocalPartitionRows& s = rows_[slice];
  if (s.open.rows == s.open.capacity) {
    Packed fresh;
    if (!NewPacked(slice, kept_capacity_, &fresh)) return false;
    if (s.open.rows > 0) {
      kept_.push_back(s.open);
      ++s.packed;
    } else {
      ++partly_kept_;
    }
    s.open = fresh;
  }
  Add(row, content, &s.open);
  ++parts_.counters->kept_rows;
  return true;
}

void RowCheckpoint::Changed(uint32_t slice) {
  if (has(slice, State::kWaiting) && table_->slice(slice).version == what_.step) SetDue(slice);
}

// ---- packing ------------------------------------------------------------------------------------

bool RowCheckpoint::NewPacked(uint32_t slice, uint32_t capacity, Packed* packed) {
  const size_t bytes = capacity * row_bytes_;
  if (!parts_.budget->Fits(bytes)) return false;
  packed->buffer = parts_.pool->TakeExact(bytes);
  if (packed->buffer.data == nullptr) return false;
  parts_.budget->Take(packed->buffer.bytes);
  packed->slice = slice;
  packed->rows = 0;
  packed->capacity = capacity;
  return true;
}

void RowCheckpoint::FreePacked(Packed* packed) {
  if (packed->buffer.data != nullptr) {
    parts_.budget->Give(packed->buffer.bytes);
    parts_.pool->FreeExact(packed->buffer);
  }
  *packed = {};
}

void RowCheckpoint::Add(uint32_t row, const std::byte* content, Packed* packed) const {
  const RowStore& from = table_->rows(packed->slice);
  const size_t capacity = packed->capacity;
  const size_t at = packed->rows++;
  std::byte* to = packed->buffer.data;
  const uint64_t key = from.key(row);
  std::memcpy(to + at * sizeof(key), &key, sizeof(key));
  to += capacity * sizeof(key);
  const uint32_t applies = from.applies(row);
  std::memcpy(to + at * sizeof(applies), &applies, sizeof(applies));
  to += capacity * sizeof(applies);
  float wide[kMaxRowElements];
  std::memcpy(to + at * table_->row_bytes(), from.WidenedContent(content, wide),
              table_->row_bytes());
  to += capacity * table_->row_bytes();
  const size_t state_bytes = table_->state_width() * sizeof(float);
  const float* state = from.StateOfContent(content);
  for (size_t i = 0; i < table_->state_arrays(); ++i, state += table_->state_width()) {
    std::memcpy(to + at * state_bytes, state, state_bytes);
    to += capacity * state_bytes;
  }
}

void RowCheckpoint::AddDropped(uint64_t key, Packed* packed) const {
  const size_t capacity = packed->capacity;
  const size_t at = packed->rows++;
  std::byte* to = packed->buffer.data;
  std::memcpy(to + at * sizeof(key), &key, sizeof(key));
  to += capacity * sizeof(key);
  const auto zero = [&](size_t each) {
    std::memset(to + at * each, 0, each);
    to += capacity * each;
  };
  zero(sizeof(uint32_t));
  zero(table_->row_bytes());
  for (size_t i = 0; i < table_->state_arrays(); ++i) zero(table_->state_width() * sizeof(float));
}

void RowCheckpoint::View(const Packed& packed, CheckpointPiece* piece) const {
  const std::byte* from = packed.buffer.data;
  const size_t capacity = packed.capacity;
  piece->keys = {reinterpret_cast<const uint64_t*>(from), packed.rows};
  from += capacity * sizeof(uint64_t);
  piece->row_applies = {reinterpret_cast<const uint32_t*>(from), packed.rows};
  from += capacity * sizeof(uint32_t);
  static_assert(kKeyAndCount % alignof(float) == 0);
  piece->parameters = {from, packed.rows * table_->row_bytes()};
  from += capacity * table_->row_bytes();
  const size_t width = table_->state_width();
  for (size_t i = 0; i < table_->state_arrays(); ++i) {
    piece->state.emplace_back(reinterpret_cast<const float*>(from), packed.rows * width);
    from += capacity * width * sizeof(float);
  }
}

// ---- pieces -------------------------------------------------------------------------------------

// Not for long: they are few, and go first.
bool RowCheckpoint::TakeDropped(uint32_t slice, Packed* packed) {
  std::vector<uint64_t>& dropped = rows_[slice].dropped;
  const uint64_t most =
      parts_.budget->Fitting(row_bytes_, std::max<uint64_t>(parts_.piece_bytes / row_bytes_, 1));
  const auto count = static_cast<uint32_t>(std::min<uint64_t>(dropped.size(), most));
  if (count == 0 || !NewPacked(slice, count, packed)) return false;
  while (packed->rows < count) {
    AddDropped(dropped.back(), packed);
    dropped.pop_back();
  }
  return true;
}

// Moves the cursor. False: it is at the end, or there is no memory.
bool RowCheckpoint::TakeCursor(uint32_t slice, Packed* packed) {
  LocalPartitionRows& s = rows_[slice];
  if (!s.dropped.empty()) return TakeDropped(slice, packed);
  const uint64_t most =
      parts_.budget->Fitting(row_bytes_, std::max<uint64_t>(parts_.piece_bytes / row_bytes_, 1));
  if (most == 0) return false;
  found_.clear();
  uint32_t at = s.cursor;
  for (; at < s.rows && found_.size() < most; ++at) {
    if (ToCheckpoint(s, slice, at)) found_.push_back(at);
  }
  if (!found_.empty() && !NewPacked(slice, static_cast<uint32_t>(found_.size()), packed)) {
    return false;
  }
  RowReader reader(table_->rows(slice), found_);
  for (const uint32_t row : found_) {
    const std::byte* const content = reader.Next();
    if (content == nullptr) {
      FreePacked(packed);  // the slice will be given up
      return false;
    }
    Add(row, content, packed);
  }
  s.cursor = at;
  return !found_.empty();
}

// Takes the memory of kept rows before that of more rows. If the cursor cannot advance, kept rows
// go before their piece is full.
bool RowCheckpoint::FindContent(Packed* packed) {
  while (!kept_.empty()) {
    *packed = std::exchange(kept_.front(), {});
    kept_.pop_front();
    if (packed->buffer.data == nullptr) continue;  // its slice was given up
    --rows_[packed->slice].packed;
    return true;
  }
  for (; !open_.empty(); open_.pop_front()) {
    const uint32_t slice = open_.front();
    if (!has(slice, State::kOpen)) continue;
    if (TakeCursor(slice, packed)) return true;
    if (!AtEnd(slice)) break;
    if (rows_[slice].open.rows == 0) EndContent(slice);
  }
  if (partly_kept_ == 0) return false;
  for (LocalPartitionRows& s : rows_) {
    if (s.open.rows == 0) continue;
    *packed = std::exchange(s.open, {});
    --partly_kept_;
    return true;
  }
  return false;
}

void RowCheckpoint::EndContent(uint32_t slice) {
  rows_[slice].kept = nullptr;
  ContentTaken(slice);
}

bool RowCheckpoint::TakeContent(CheckpointPiece* piece, HeldPiece* held) {
  Packed packed;
  if (table_ == nullptr || !FindContent(&packed)) return false;
  held->rows = packed.buffer;
  piece->kind = CheckpointPiece::Kind::kRows;
  Fill(packed.slice, packed.rows, piece);
  piece->count = packed.rows;
  piece->dtype = ElementType::kF32;
  View(packed, piece);
  parts_.counters->rows += packed.rows;
  const LocalPartitionRows& s = rows_[packed.slice];
  if (AtEnd(packed.slice) && s.packed == 0 && s.open.rows == 0) EndContent(packed.slice);
  return true;
}

void RowCheckpoint::Release(const HeldPiece& held) {
  Packed packed;
  packed.buffer = held.rows;
  FreePacked(&packed);
}

void RowCheckpoint::Drop(uint32_t slice) {
  LocalPartitionRows& s = rows_[slice];
  EndTracking(slice, /*committed=*/false);
  if (s.open.rows > 0) --partly_kept_;
  FreePacked(&s.open);
  for (Packed& packed : kept_) {
    if (packed.slice == slice) FreePacked(&packed);
  }
  s = {};
}

void RowCheckpoint::EndTracking(uint32_t slice, bool committed) {
  LocalPartitionRows& s = rows_[slice];
  const bool forget = VERBENA_FAILPOINT(shard, forget_changed_rows);
  if (!std::exchange(s.tracks, false) || (committed && !forget) || table_ == nullptr) return;
  // The slice may have been another one's meanwhile.
  if (!table_->ready(slice)) return;
  std::unique_ptr<ChangedRows>& changed = table_->changed(slice);
  if (changed == nullptr || changed->base() != parts_.save) return;
  if (committed) {
    changed = std::make_unique<ChangedRows>(parts_.save, parts_.pool);
    return;
  }
  if (s.base != nullptr) {
    changed->Join(*s.base);
  } else {
    changed = nullptr;
  }
}

void RowCheckpoint::End(bool committed) {
  for (uint32_t slice = 0; slice < rows_.size(); ++slice) EndTracking(slice, committed);
}

}  // namespace verbena::shard
