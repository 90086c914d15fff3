// The rows of a slice that were changed since a checkpoint, one bit per row number; and the keys of
// rows that were dropped since.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_CHANGED_ROWS_H_
#define VERBENA_SHARD_TABLE_CHANGED_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class ChangedRows {
 public:
  // `base`: the checkpoint. The pool outlives it.
  ChangedRows(uint64_t base, BufferPool* pool) : base_(base), pool_(*pool) {}
  ~ChangedRows() { pool_.Count(-static_cast<int64_t>(bytes())); }
  ChangedRows(const ChangedRows&) = delete;
  ChangedRows& operator=(const ChangedRows&) = delete;

  uint64_t base() const { return base_; }
  void Mark(uint32_t row) {
    if (row / 64 >= words_.size()) Resize(size_t{row} / 64 + 1);
    words_[row / 64] |= uint64_t{1} << row % 64;
  }
  bool marked(uint32_t row) const {
    return row / 64 < words_.size() && (words_[row / 64] >> row % 64 & 1) != 0;
  }
  // A row with that key was dropped.
  void Drop(uint64_t key) {
    const uint64_t before = bytes();
    dropped_.push_back(key);
    pool_.Count(static_cast<int64_t>(bytes()) - static_cast<int64_t>(before));
  }
  // Some keys may have a row again, and some are listed twice.
  const std::vector<uint64_t>& dropped() const { return dropped_; }
  // Adds the changes since `older` began; this object continues in place of `older`.
  void Join(const ChangedRows& older) {
    base_ = older.base_;
    if (words_.size() < older.words_.size()) Resize(older.words_.size());
    for (size_t i = 0; i < older.words_.size(); ++i) words_[i] |= older.words_[i];
    for (const uint64_t key : older.dropped_) Drop(key);
  }

 private:
  uint64_t bytes() const { return (words_.capacity() + dropped_.capacity()) * sizeof(uint64_t); }
  // Grows by half at least: rows are created one by one.
  void Resize(size_t words) {
    const uint64_t before = bytes();
    if (words > words_.capacity()) words_.reserve(std::max(words, words_.capacity() * 3 / 2));
    words_.resize(words);
    pool_.Count(static_cast<int64_t>(bytes()) - static_cast<int64_t>(before));
  }

  uint64_t base_;
  BufferPool& pool_;
  std::vector<uint64_t> words_;
  std::vector<uint64_t> dropped_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_CHANGED_ROWS_H_
