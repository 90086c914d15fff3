#include "shard/table/row_arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

namespace verbena::shard {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kLeastBlock = size_t{4} << 10;
constexpr size_t kMostBlock = size_t{1} << 20;
// Of pages behind each other, at most: 16 entries of the processor's page tables, two lines of the
// cache.
constexpr size_t kMostRun = size_t{64} << 10;
constexpr uint64_t kRoomForReads = 256 << 10;

constexpr size_t Lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

RowArena::RowArena(size_t few, size_t many, BufferPool* pool, JobAccount* account)
    : sizes_{kPageBytes, Lines(few), Lines(many)}, pool_(pool), account_(account) {}

RowArena::~RowArena() {
  for (const Block& b : blocks_) pool_->Free(b.buffer);
}

void RowArena::Push(Piece piece, std::byte* data) {
  List& list = free_[piece];
  std::memcpy(data, &list.first, sizeof(list.first));
  list.first = data;
  ++list.count;
}

void RowArena::Cut(Piece piece) {
  Block& b = blocks_.back();
  Push(piece, b.buffer.data + cut_);
  cut_ += sizes_[piece];
  b.cut += sizes_[piece];
}

// Pages, of which most may stay idle for a while: at most a 2048th of all memory does.
void RowArena::CutRun() {
  const uint64_t run = std::clamp<uint64_t>(bytes_ / 2048, kPageBytes, kMostRun);
  for (uint64_t cut = 0; cut < run && room() >= kPageBytes; cut += kPageBytes) Cut(kPage);
}

void RowArena::CutMissing(const Counts& pieces) {
  for (const Piece piece : {kMany, kFew}) {
    while (free_[piece].count < pieces[piece] && room() >= sizes_[piece]) Cut(piece);
  }
  while (free_[kPage].count < pieces[kPage] && room() >= kPageBytes) CutRun();
}

bool RowArena::Enough(const Counts& pieces) const {
  for (size_t p = 0; p < kPieces; ++p) {
    if (free_[p].count < pieces[p]) return false;
  }
  return true;
}

// What is too small for many rows becomes pages, of which there are always more to come: the next
// block begins.
void RowArena::CutRest() {
  for (const Piece piece : {kMany, kPage}) {
    while (room() >= sizes_[piece]) Cut(piece);
  }
  cut_ = blocks_.empty() ? 0 : blocks_.back().buffer.bytes;
}

// A quarter of what there is, so that small tables stay small, and a 256th of large ones, of which
// half a block is idle. Of powers of two, which no allocator has to round; less, where that much is
// not to be had. Where no more rows can be made, those there are can be read: that wants memory.
bool RowArena::NewBlock(size_t least) {
  const size_t room = std::min(bytes_ / 16, kRoomForReads);
  if (room < kLeastBlock) return TakeBlock(least);
  const Buffer for_reads = pool_->TakeExact(room, account_);
  if (for_reads.data == nullptr) return false;
  const bool made = TakeBlock(least);
  pool_->FreeExact(for_reads);
  return made;
}

bool RowArena::TakeBlock(size_t least) {
  least = std::bit_ceil(std::max(least, kLeastBlock));
  const uint64_t share = std::max(std::min<uint64_t>(bytes_ / 4, kMostBlock / 4), bytes_ / 256);
  size_t bytes = std::bit_floor(std::clamp<uint64_t>(share, kLeastBlock, kMostBlock));
  for (bytes = std::max(bytes, least); bytes >= least; bytes /= 2) {
    const Buffer buffer = pool_->Allocate(bytes, account_);
    if (buffer.data == nullptr) continue;
    blocks_.push_back({buffer});
    cut_ = 0;
    bytes_ += buffer.bytes;
    return true;
  }
  return false;
}

bool RowArena::Reserve(const Counts& pieces) {
  if (Enough(pieces)) return true;
  CutMissing(pieces);
  if (Enough(pieces)) return true;
  CutRest();
  const std::array<List, kPieces> before = free_;
  const size_t blocks = blocks_.size();
  while (!Enough(pieces)) {
    size_t least = 0;
    for (size_t p = 0; p < kPieces; ++p) {
      if (free_[p].count < pieces[p]) least = std::max(least, sizes_[p]);
    }
    if (blocks_.size() > blocks) CutRest();
    if (!NewBlock(least)) {
      // The lists' new heads lie in the blocks that go; behind them they are what they were.
      free_ = before;
      for (; blocks_.size() > blocks; blocks_.pop_back()) {
        bytes_ -= blocks_.back().buffer.bytes;
        pool_->Free(blocks_.back().buffer);
      }
      cut_ = blocks_.empty() ? 0 : blocks_.back().buffer.bytes;
      return false;
    }
    CutMissing(pieces);
  }
  return true;
}

std::byte* RowArena::Take(Piece piece) {
  List& list = free_[piece];
  if (list.count == 0) {
    Counts one = {};
    one[piece] = 1;
    if (!Reserve(one)) return nullptr;
  }
  std::byte* const data = list.first;
  std::memcpy(&list.first, data, sizeof(list.first));
  --list.count;
  return data;
}

void RowArena::Give(Piece piece, std::byte* data) {
  Push(piece, data);
  given_ += sizes_[piece];
}

void RowArena::Trim() {
  if (given_ < bytes_ / 4) return;  // so that it is not looked through for each slice that goes
  given_ = 0;
  CutRest();
  std::sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) {
    return std::less<>()(a.buffer.data, b.buffer.data);
  });
  const auto block_of = [this](const std::byte* data) {
    const auto after = std::upper_bound(
        blocks_.begin(), blocks_.end(), data,
        [](const std::byte* d, const Block& b) { return std::less<>()(d, b.buffer.data); });
    return static_cast<size_t>(after - blocks_.begin()) - 1;
  };
  const auto next = [](const std::byte* data) {
    std::byte* n = nullptr;
    std::memcpy(&n, data, sizeof(n));
    return n;
  };
  std::vector<size_t> here(blocks_.size());
  for (size_t p = 0; p < kPieces; ++p) {
    std::byte* at = free_[p].first;
    for (uint64_t i = 0; i < free_[p].count; ++i, at = next(at)) here[block_of(at)] += sizes_[p];
  }
  for (size_t p = 0; p < kPieces; ++p) {
    const List list = std::exchange(free_[p], {});
    std::byte* at = list.first;
    for (uint64_t i = 0; i < list.count; ++i) {
      std::byte* const following = next(at);
      const size_t b = block_of(at);
      if (here[b] != blocks_[b].cut) Push(static_cast<Piece>(p), at);
      at = following;
    }
  }
  size_t kept = 0;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    if (here[b] != blocks_[b].cut) {
      blocks_[kept++] = blocks_[b];
      continue;
    }
    bytes_ -= blocks_[b].buffer.bytes;
    pool_->Free(blocks_[b].buffer);
  }
  blocks_.resize(kept);
  cut_ = blocks_.empty() ? 0 : blocks_.back().buffer.bytes;
}

}  // namespace verbena::shard
