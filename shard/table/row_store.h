// The rows of an embedding table in one partition: key -> parameters and optimizer state.
//
// A row is [key, applies | dim parameters | state] in one piece, so that after the index a row
// costs one cache miss. Rows lie in blocks that double from 4 KiB to 256 KiB, so that many small
// tables stay small; they never move and are never taken out. The index is open addressing with
// linear probing; an entry has the row and 32 bits of the key's hash, so that a probe meets another
// key's row once in 2^32 and growth does not touch the rows.
//
// **Thread safety**: one owner thread.
//
// Invariants:
//  1. A row's number never changes; numbers count up in the order rows are made.
//  2. What cannot be allocated leaves the store as it was.
#ifndef VERBENA_SHARD_TABLE_ROW_STORE_H_
#define VERBENA_SHARD_TABLE_ROW_STORE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "proto/verbena/v1/cluster.pb.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class RowStore {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // The parameters of a new row; kBlank: any, as the caller writes them.
  enum class Fresh : uint8_t { kInitial, kBlank };

  // `state` numbers behind each row's parameters, zero at first. The others outlive the store.
  // `account` may be null: its memory is nobody's.
  RowStore(uint32_t dim, uint32_t state, const v1::Initializer* initializer, BufferPool* pool,
           JobAccount* account = nullptr);
  ~RowStore();
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

  uint32_t size() const { return size_; }

  // The row of each key, or kNone. Their memory is on its way to the cache.
  void Find(absl::Span<const uint64_t> keys, uint32_t* rows) const;
  // The same; keys without a row get one. False: no memory for them all.
  bool FindOrCreate(absl::Span<const uint64_t> keys, uint32_t* rows, Fresh fresh = Fresh::kInitial);

  uint64_t key(uint32_t row) const { return HeaderOf(row)->key; }
  // How often the optimizer has changed the row; 0: nothing of it is committed.
  uint32_t applies(uint32_t row) const { return HeaderOf(row)->applies; }
  void CountApply(uint32_t row) {
    uint32_t& applies = HeaderOf(row)->applies;
    if (applies < UINT32_MAX) ++applies;
  }
  void SetApplies(uint32_t row, uint32_t applies) { HeaderOf(row)->applies = applies; }
  float* parameters(uint32_t row) {
    return reinterpret_cast<float*>(At(row) + offsetof(Header, parameters));
  }
  const float* parameters(uint32_t row) const {
    return reinterpret_cast<const float*>(At(row) + offsetof(Header, parameters));
  }
  float* state(uint32_t row) { return parameters(row) + dim_; }
  const float* state(uint32_t row) const { return parameters(row) + dim_; }
  void Prefetch(uint32_t row) const {
    const std::byte* at = At(row);
    for (uint32_t i = 0; i < prefetch_bytes_; i += 64) __builtin_prefetch(at + i, 1);
    __builtin_prefetch(at + prefetch_bytes_ - 1, 1);  // rows do not begin on a line
  }

 private:
  struct Header {
    uint64_t key;
    uint32_t applies;
    float parameters[1];  // the first
  };
  struct Entry {
    uint32_t next_row;  // the row's number plus one; 0: empty
    uint32_t hash;
  };
  static_assert(sizeof(Entry) == 8);

  // Which of the blocks: the first ones double, so that k of them have first_rows_ << (k - 1) rows,
  // up to block_rows_; all later ones have that many.
  std::byte* At(uint32_t row) const {
    if (row >= block_rows_) {
      const size_t block = small_blocks_ - 1 + (row >> block_shift_);
      return blocks_[block].data + size_t{row & (block_rows_ - 1)} * stride_;
    }
    const uint32_t block = static_cast<uint32_t>(std::bit_width(row >> first_shift_));
    const uint32_t first = block == 0 ? 0 : 1u << (first_shift_ + block - 1);
    return blocks_[block].data + size_t{row - first} * stride_;
  }
  Header* HeaderOf(uint32_t row) const { return reinterpret_cast<Header*>(At(row)); }
  uint32_t RowsOfBlock(size_t block) const;

  static uint32_t Hash(uint64_t key);
  uint32_t FindOne(uint64_t key, uint32_t hash) const;
  bool Reserve(uint32_t more);
  bool GrowIndex(uint64_t rows, Buffer* index, uint32_t* mask) const;
  uint32_t Insert(uint64_t key, uint32_t hash, Fresh fresh);

  const uint32_t dim_;
  const uint32_t stride_;  // bytes from row to row
  const uint32_t prefetch_bytes_;
  const uint32_t first_shift_;   // log2 of the rows of the first block
  const uint32_t block_shift_;   // log2 of block_rows_
  const uint32_t block_rows_;    // of a block of the largest size
  const uint32_t small_blocks_;  // blocks that have the first block_rows_ rows
  const v1::Initializer* const initializer_;
  BufferPool* const pool_;
  JobAccount* const account_;
  uint32_t size_ = 0;
  uint64_t capacity_ = 0;  // of blocks_, in rows
  std::vector<Buffer> blocks_;
  Buffer index_;
  Entry* entries_ = nullptr;
  uint32_t mask_ = 0;  // entries of the index minus one
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_ROW_STORE_H_
