// Memory for the rows of one embedding table and their indices: pieces of three sizes, cut out of
// blocks that all slices of the table share, so that a slice wastes very little. All pieces of a
// block have one size.
//
// Returned pieces are kept for the table. Blocks go back to the pool when all of their pieces are
// returned and Trim() is called.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. Take() succeeds for memory that Reserve() granted, until it is taken.
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

  // Reserves so many pieces. False: no memory for them.
  bool Reserve(const Counts& pieces);
  // Aligned to a cache line; the contents are undefined. Null: there is none, and no memory.
  std::byte* Take(Piece piece);
  void Give(Piece piece, std::byte* data);
  // Returns complete free blocks to the pool, if that is worth the time.
  void Trim();

  uint64_t bytes() const { return bytes_; }                              // of the blocks
  uint64_t idle(Piece piece) const { return kinds_[piece].free.count; }  // such pieces
  BufferPool* pool() const { return pool_; }
  JobAccount* account() const { return account_; }

 private:
  static constexpr size_t kNoBlock = SIZE_MAX;
  struct Block {
    Buffer buffer;
    Piece piece;
    size_t cut = 0;  // bytes that became pieces; those behind were never given out

    size_t room() const { return buffer.bytes - cut; }
  };
  // Free pieces, each of which begins with the address of the next.
  struct List {
    std::byte* first = nullptr;
    uint64_t count = 0;
  };
  struct Kind {
    List free;
    size_t block = kNoBlock;  // the one that pieces are cut from
    uint64_t bytes = 0;       // of all its blocks
  };

  void Push(Piece piece, std::byte* data);
  // Cuts as many of the missing pieces as the block has room for.
  void Cut(Piece piece, uint64_t wanted);
  bool Enough(const Counts& pieces) const;
  bool NewBlock(Piece piece);
  bool TakeBlock(Piece piece);

  const std::array<size_t, kPieces> sizes_;
  BufferPool* const pool_;
  JobAccount* const account_;
  std::vector<Block> blocks_;
  std::array<Kind, kPieces> kinds_;
  uint64_t bytes_ = 0;
  uint64_t given_ = 0;  // bytes that came back since Trim() looked
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_ARENA_H_
