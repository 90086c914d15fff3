// Accounts memory outside the pool that grows with a job's workers. It is never refused itself:
// refusable allocations leave room for it.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_TABLE_BOOKKEEPING_H_
#define VERBENA_SHARD_TABLE_BOOKKEEPING_H_

#include <cstdint>

#include "shard/job_memory.h"
#include "shard/table/buffer_pool.h"

namespace verbena::shard {

class Bookkeeping {
 public:
  // Both outlive it; `account` may be null.
  Bookkeeping(BufferPool* pool, JobAccount* account) : pool_(*pool), account_(account) {}
  ~Bookkeeping() { Set(0); }
  Bookkeeping(const Bookkeeping&) = delete;
  Bookkeeping& operator=(const Bookkeeping&) = delete;

  // Sets the current amount.
  void Set(uint64_t bytes) {
    pool_.Count(static_cast<int64_t>(bytes) - static_cast<int64_t>(bytes_));
    if (account_ != nullptr) {
      // Take the new amount before giving back the old: the count is never too low.
      (void)account_->Take(bytes, MemoryUse::kBookkeeping);
      account_->Give(bytes_, MemoryUse::kBookkeeping);
    }
    bytes_ = bytes;
  }

 private:
  BufferPool& pool_;
  JobAccount* const account_;
  uint64_t bytes_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_BOOKKEEPING_H_
