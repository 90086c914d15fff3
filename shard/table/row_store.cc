#include "shard/table/row_store.h"

#include <algorithm>
#include <cstring>

#include "shard/table/initializer.h"

namespace verbena::shard {
namespace {

constexpr uint32_t kFirstBlockBytes = 4 * 1024;
constexpr uint32_t kBlockBytes = 256 * 1024;
constexpr uint32_t kHeaderBytes = 12;
constexpr uint64_t kFirstEntries = 64;
// Numbers of rows and entries of the index fit 32 bits.
constexpr uint64_t kMaxRows = uint64_t{1} << 31;
// Lookups in flight: a core has 10 to 16 line fill buffers.
constexpr size_t kBatch = 16;
// What the hardware does not fetch by itself behind the first lines of a row.
constexpr uint32_t kPrefetchBytes = 512;

// log2 of how many rows of `stride` bytes go into `bytes`, at least one.
uint32_t ShiftOf(uint32_t bytes, uint32_t stride) {
  return static_cast<uint32_t>(std::bit_width(std::max(bytes / stride, 1u))) - 1;
}

uint32_t StrideOf(uint32_t dim, uint32_t state) {
  const size_t bytes = kHeaderBytes + (size_t{dim} + state) * sizeof(float);
  return static_cast<uint32_t>((bytes + 7) / 8 * 8);
}

// Three quarters full at most: linear probing then looks at 2.5 entries for a key that is there and
// at 8.5 for one that is not (Knuth, TAOCP vol. 3, 6.4), in one or two cache lines.
constexpr bool Fits(uint64_t rows, uint64_t entries) { return rows <= entries / 4 * 3; }

}  // namespace

RowStore::RowStore(uint32_t dim, uint32_t state, const v1::Initializer* initializer,
                   BufferPool* pool, JobAccount* account)
    : dim_(dim),
      stride_(StrideOf(dim, state)),
      prefetch_bytes_(std::min(stride_, kPrefetchBytes)),
      first_shift_(ShiftOf(kFirstBlockBytes, stride_)),
      block_shift_(ShiftOf(kBlockBytes, stride_)),
      block_rows_(1u << block_shift_),
      small_blocks_(block_shift_ - first_shift_ + 1),
      initializer_(initializer),
      pool_(pool),
      account_(account) {
  static_assert(offsetof(Header, parameters) == kHeaderBytes);
}

RowStore::~RowStore() {
  for (const Buffer& b : blocks_) pool_->Free(b);
  pool_->Free(index_);
}

// Another mixer than the one that chose the partition, of which all keys here share the high bits:
// multiplications by Fibonacci's and Pelle Evensen's constants with shifts between.
uint32_t RowStore::Hash(uint64_t key) {
  uint64_t x = (key ^ (key >> 32)) * 0xd6e8feb86659fd93u;
  x = (x ^ (x >> 32)) * 0x9e3779b97f4a7c15u;
  return static_cast<uint32_t>(x >> 32);
}

uint32_t RowStore::RowsOfBlock(size_t block) const {
  if (block >= small_blocks_) return block_rows_;
  return block == 0 ? 1u << first_shift_ : 1u << (first_shift_ + block - 1);
}

uint32_t RowStore::FindOne(uint64_t key, uint32_t hash) const {
  for (uint32_t i = hash & mask_;; i = (i + 1) & mask_) {
    const Entry& e = entries_[i];
    if (e.next_row == 0) return kNone;
    if (e.hash == hash && HeaderOf(e.next_row - 1)->key == key) return e.next_row - 1;
  }
}

void RowStore::Find(absl::Span<const uint64_t> keys, uint32_t* rows) const {
  if (size_ == 0) {
    std::fill_n(rows, keys.size(), kNone);
    return;
  }
  uint32_t hashes[kBatch];
  for (size_t first = 0; first < keys.size(); first += kBatch) {
    const size_t n = std::min(kBatch, keys.size() - first);
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = Hash(keys[first + i]);
      __builtin_prefetch(&entries_[hashes[i] & mask_]);
    }
    // The row that the hash says, so that its key is in the cache when it is compared.
    for (size_t i = 0; i < n; ++i) {
      uint32_t at = hashes[i] & mask_;
      while (entries_[at].next_row != 0 && entries_[at].hash != hashes[i]) at = (at + 1) & mask_;
      if (entries_[at].next_row != 0) Prefetch(entries_[at].next_row - 1);
    }
    for (size_t i = 0; i < n; ++i) rows[first + i] = FindOne(keys[first + i], hashes[i]);
  }
}

// The index for that many rows, if it has to be another one; empty when it has not.
bool RowStore::GrowIndex(uint64_t rows, Buffer* index, uint32_t* mask) const {
  uint64_t entries = index_.data == nullptr ? kFirstEntries : uint64_t{mask_} + 1;
  while (!Fits(rows, entries)) entries *= 2;
  if (index_.data != nullptr && entries == uint64_t{mask_} + 1) return true;
  *index = pool_->Allocate(entries * sizeof(Entry), account_);
  if (index->data == nullptr) return false;
  auto* to = reinterpret_cast<Entry*>(index->data);
  *mask = static_cast<uint32_t>(entries - 1);
  for (uint64_t i = 0; size_ > 0 && i <= mask_; ++i) {
    if (entries_[i].next_row == 0) continue;
    uint32_t at = entries_[i].hash & *mask;
    while (to[at].next_row != 0) at = (at + 1) & *mask;
    to[at] = entries_[i];
  }
  return true;
}

bool RowStore::Reserve(uint32_t more) {
  const uint64_t rows = uint64_t{size_} + more;
  if (rows > kMaxRows) return false;
  const size_t blocks = blocks_.size();
  const uint64_t capacity = capacity_;
  Buffer index;
  uint32_t mask = 0;
  bool enough = GrowIndex(rows, &index, &mask);
  while (enough && capacity_ < rows) {
    const uint32_t block_rows = RowsOfBlock(blocks_.size());
    blocks_.push_back(pool_->Allocate(size_t{block_rows} * stride_, account_));
    capacity_ += block_rows;
    enough = blocks_.back().data != nullptr;
  }
  if (!enough) {
    for (size_t i = blocks; i < blocks_.size(); ++i) pool_->Free(blocks_[i]);
    blocks_.resize(blocks);
    capacity_ = capacity;
    pool_->Free(index);
    return false;
  }
  if (index.data != nullptr) {
    pool_->Free(index_);
    index_ = index;
    entries_ = reinterpret_cast<Entry*>(index_.data);
    mask_ = mask;
  }
  return true;
}

uint32_t RowStore::Insert(uint64_t key, uint32_t hash, Fresh fresh) {
  uint32_t at = hash & mask_;
  while (entries_[at].next_row != 0) at = (at + 1) & mask_;
  const uint32_t row = size_++;
  entries_[at] = {row + 1, hash};
  Header* header = HeaderOf(row);
  header->key = key;
  header->applies = 0;
  if (fresh == Fresh::kInitial) InitializeRow(*initializer_, key, parameters(row), dim_);
  return row;
}

bool RowStore::FindOrCreate(absl::Span<const uint64_t> keys, uint32_t* rows, Fresh fresh) {
  Find(keys, rows);
  const auto missing = static_cast<uint64_t>(std::count(rows, rows + keys.size(), kNone));
  if (missing == 0) return true;
  if (missing > kMaxRows || !Reserve(static_cast<uint32_t>(missing))) return false;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != kNone) continue;
    const uint32_t hash = Hash(keys[i]);
    // Looked for again: a key that came twice would get two rows.
    rows[i] = FindOne(keys[i], hash);
    if (rows[i] == kNone) rows[i] = Insert(keys[i], hash, fresh);
  }
  return true;
}

}  // namespace verbena::shard
