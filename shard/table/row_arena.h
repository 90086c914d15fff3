// Memory for the rows of one embedding table and their indices: pieces of three sizes, cut out of
// blocks that all slices of the table share, so that a slice wastes next to nothing.
//
// Pages of indices are cut in runs, one behind the other: where they lay among the rows one by one,
// each would have an entry of the processor's page tables to itself, which a lookup then waits for.
//
// Pieces that come back are kept for the table. Blocks go back to the pool when all of their pieces
// are here and Trim() is called.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. What Reserve() granted, Take() has, until it is taken.
//  2. A Reserve() that fails keeps no block.
#ifndef VERBENA_SHARD_TABLE_ROW_ARENA_H_
#define VERBENA_SHARD_TABLE_ROW_ARENA_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class RowArena {
 public:
  enum Piece : uint8_t {
    kPage,  // of an index
    kFew,   // rows: a slice's last ones
    kMany,  // rows
  };
  static constexpr size_t kPieces = 3;
  using Counts = std::array<uint64_t, kPieces>;
  static constexpr size_t kPageBytes = 512;

  // `few` and `many`: bytes of such pieces, rounded up to lines of the cache. `account` may be
  // null: nobody's. Both outlive it.
  RowArena(size_t few, size_t many, BufferPool* pool, JobAccount* account);
  ~RowArena();
  RowArena(const RowArena&) = delete;
  RowArena& operator=(const RowArena&) = delete;

  // Makes sure that there are so many pieces. False: no memory for them.
  bool Reserve(const Counts& pieces);
  // Aligned to a line of the cache; anything may be in it. Null: there is none, and no memory.
  std::byte* Take(Piece piece);
  void Give(Piece piece, std::byte* data);
  // Blocks that have come back as a whole go to the pool, where that may be worth its time.
  void Trim();

  uint64_t bytes() const { return bytes_; }  // of the blocks
  BufferPool* pool() const { return pool_; }
  JobAccount* account() const { return account_; }

 private:
  struct Block {
    Buffer buffer;
    size_t cut = 0;  // bytes of the pieces that it became
  };
  // Free pieces, each of which begins with the address of the next.
  struct List {
    std::byte* first = nullptr;
    uint64_t count = 0;
  };

  void Push(Piece piece, std::byte* data);
  size_t room() const { return blocks_.empty() ? 0 : blocks_.back().buffer.bytes - cut_; }
  void Cut(Piece piece);
  void CutRun();
  // As many of the missing ones as the last block has room for.
  void CutMissing(const Counts& pieces);
  bool Enough(const Counts& pieces) const;
  void CutRest();
  bool NewBlock(size_t least);
  bool TakeBlock(size_t least);

  const std::array<size_t, kPieces> sizes_;
  BufferPool* const pool_;
  JobAccount* const account_;
  std::vector<Block> blocks_;
  size_t cut_ = 0;  // of the last block; what is behind was never given out
  std::array<List, kPieces> free_;
  uint64_t bytes_ = 0;
  uint64_t given_ = 0;  // bytes that came back since Trim() looked
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_ARENA_H_
