#include "shard/table/row_arena.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>

namespace verbena::shard {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kLeastBlock = size_t{1} << 10;
constexpr size_t kMostBlock = size_t{1} << 20;
constexpr uint64_t kLeastRoomForReads = 4 << 10;
constexpr uint64_t kRoomForReads = 256 << 10;

constexpr size_t Lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

RowArena::RowArena(size_t few, size_t many, BufferPool* pool, JobAccount* account)
    : sizes_{kPageBytes, Lines(few), Lines(many)}, pool_(pool), account_(account) {}

RowArena::~RowArena() {
  for (const Block& b : blocks_) pool_->Free(b.buffer);
}

void RowArena::Push(Piece piece, std::byte* data) {
  List& list = kinds_[piece].free;
  std::memcpy(data, &list.first, sizeof(list.first));
  list.first = data;
  ++list.count;
}

void RowArena::Cut(Piece piece, uint64_t wanted) {
  const Kind& kind = kinds_[piece];
  if (kind.block == kNoBlock) return;
  Block& b = blocks_[kind.block];
  for (; kind.free.count < wanted && b.room() > 0; b.cut += sizes_[piece]) {
    Push(piece, b.buffer.data + b.cut);
  }
}

bool RowArena::Enough(const Counts& pieces) const {
  for (size_t p = 0; p < kPieces; ++p) {
    if (kinds_[p].free.count < pieces[p]) return false;
  }
  return true;
}

// When no more rows can be made, reading the existing ones still needs memory.
bool RowArena::NewBlock(Piece piece) {
  // A power of two, so that there are few sizes and returned memory can be reused.
  const size_t room = std::bit_floor(std::min(bytes_ / 16, kRoomForReads));
  if (room < kLeastRoomForReads) return TakeBlock(piece);
  const Buffer for_reads = pool_->TakeExact(room, account_);
  if (for_reads.data == nullptr) return false;
  const bool made = TakeBlock(piece);
  pool_->FreeExact(for_reads);
  return made;
}

// A quarter of the current size, so that small tables stay small; a 2048th for large ones, of which
// half a block is idle. Less, if that much is not available.
bool RowArena::TakeBlock(Piece piece) {
  Kind& kind = kinds_[piece];
  const size_t size = sizes_[piece];
  const uint64_t share =
      std::max(std::min<uint64_t>(kind.bytes / 4, kMostBlock / 8), kind.bytes / 2048);
  const size_t most = std::bit_floor(std::clamp<uint64_t>(share, kLeastBlock, kMostBlock));
  for (size_t pieces = std::max<size_t>(most / size, 1); pieces > 0; pieces /= 2) {
    const Buffer buffer = pool_->AllocateRows(pieces * size, size, account_);
    if (buffer.data == nullptr) continue;
    kind.block = blocks_.size();
    kind.bytes += buffer.bytes;
    bytes_ += buffer.bytes;
    blocks_.push_back({buffer, piece});
    return true;
  }
  return false;
}

bool RowArena::Reserve(const Counts& pieces) {
  if (Enough(pieces)) return true;
  for (const Piece piece : {kPage, kFew, kMany}) Cut(piece, pieces[piece]);
  const std::array<Kind, kPieces> before = kinds_;
  const size_t blocks = blocks_.size();
  for (const Piece piece : {kPage, kFew, kMany}) {
    for (; kinds_[piece].free.count < pieces[piece]; Cut(piece, pieces[piece])) {
      if (NewBlock(piece)) continue;
      // The lists' new heads lie in the released blocks; the rest of the lists is unchanged.
      kinds_ = before;
      for (; blocks_.size() > blocks; blocks_.pop_back()) {
        bytes_ -= blocks_.back().buffer.bytes;
        pool_->Free(blocks_.back().buffer);
      }
      return false;
    }
  }
  return true;
}

std::byte* RowArena::Take(Piece piece) {
  List& list = kinds_[piece].free;
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
    std::byte* at = kinds_[p].free.first;
    const uint64_t count = kinds_[p].free.count;
    for (uint64_t i = 0; i < count; ++i, at = next(at)) here[block_of(at)] += sizes_[p];
  }
  for (size_t p = 0; p < kPieces; ++p) {
    const List list = std::exchange(kinds_[p].free, {});
    std::byte* at = list.first;
    for (uint64_t i = 0; i < list.count; ++i) {
      std::byte* const following = next(at);
      const size_t b = block_of(at);
      if (here[b] != blocks_[b].cut) Push(static_cast<Piece>(p), at);
      at = following;
    }
  }
  size_t kept = 0;
  for (Kind& kind : kinds_) kind.block = kNoBlock;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const Block& block = blocks_[b];
    Kind& kind = kinds_[block.piece];
    if (here[b] != block.cut) {
      if (block.room() > 0) kind.block = kept;  // no other one of the kind has room
      blocks_[kept++] = block;
      continue;
    }
    kind.bytes -= block.buffer.bytes;
    bytes_ -= block.buffer.bytes;
    pool_->Free(block.buffer);
  }
  blocks_.resize(kept);
}

}  // namespace verbena::shard
