// The memory that the shards of one server may take from the system for tables, together.
//
// **Thread safety**: all threads.
//
// Invariants:
//  1. reserved() is never more than limit() by Reserve(), nor more than MostOf(use). Count() may
//     bring it there: Reserve() then refuses until there is room again.
#ifndef VERBENA_SERVER_EXECUTOR_MEMORY_BUDGET_H_
#define VERBENA_SERVER_EXECUTOR_MEMORY_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace verbena::server {

class MemoryBudget {
 public:
  // kTables is permanent memory: parameters, optimizer state, indices. kScratch is temporary
  // memory: rows being sent, sums of an open step. The last sixteenth of the limit is kept for
  // kScratch, so that a full server still serves its tables, and for kFollowers: data that a
  // follower's primary has already logged. On a server with replicas, tables of its own partitions
  // leave another sixteenth to them (kTablesBesideCopies).
  enum class Use : uint8_t { kTables, kTablesBesideCopies, kFollowers, kScratch };

  explicit MemoryBudget(uint64_t limit) : limit_(limit) {}

  uint64_t limit() const { return limit_; }
  uint64_t MostOf(Use use) const {
    if (use == Use::kTables) return limit_ - limit_ / 16;
    return use == Use::kTablesBesideCopies ? limit_ - limit_ / 8 : limit_;
  }
  // Relaxed: no other memory depends on this number.
  uint64_t reserved() const { return reserved_.load(std::memory_order_relaxed); }

  // False, with nothing taken: that would be beyond the limit.
  bool Reserve(uint64_t bytes, Use use) {
    const uint64_t most = MostOf(use);
    uint64_t now = reserved_.load(std::memory_order_relaxed);
    do {
      if (bytes > most || now > most - bytes) return false;
      // Relaxed: the number alone is agreed on.
    } while (!reserved_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return true;
  }
  // Counts bytes that were taken without Reserve(); negative: given back.
  void Count(int64_t bytes) {
    reserved_.fetch_add(static_cast<uint64_t>(bytes), std::memory_order_relaxed);
  }
  void Release(uint64_t bytes) { reserved_.fetch_sub(bytes, std::memory_order_relaxed); }

  // Number of refusals of temporary memory. A shard frees its idle buffers when it grows, because
  // another shard may need them.
  uint64_t shortages() const { return shortages_.load(std::memory_order_relaxed); }
  void CountShortage() { shortages_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> reserved_ = 0, shortages_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_MEMORY_BUDGET_H_
