// The memory for tables that a job has on a server, and its limit.
//
// A server's shards have a JobMemory in common for each job, and an account each with it.
//
// **Thread safety**: JobMemory: all threads. JobAccount: one owner thread.
//
// Invariants:
//  1. JobMemory counts the memory of all its accounts; an account that ends gives all back.
//  2. Memory of tables and scratch beyond the limit consists at most of: memory from before the
//     limit was set or bookkeeping grew, kLeastScratch, one request of each shard that asks at the
//     same moment, rows that were dropped and that an apply in the replication log names, and
//     replicas of partitions whose primaries are elsewhere, because those have their limit there.
#ifndef VERBENA_SHARD_JOB_MEMORY_H_
#define VERBENA_SHARD_JOB_MEMORY_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace verbena::shard {

enum class MemoryUse : uint8_t {
  kTables,   // permanent: parameters, optimizer state, indices. Up to 15/16 of the limit
  kScratch,  // rows being sent, rows pushed in an open step. It has the memory that tables leave,
             // at least 1/16 and kLeastScratch, so that tables are served also after the limit was
             // lowered below their size
  kSums,     // of open steps of dense tables: counted, never refused and in nobody's way, because a
             // step in two phases cannot commit without. As much as their parameters in f32 at most
  kBookkeeping,  // state of a sync table for each worker. Never refused, because a later run may
                 // have more workers, but tables leave room for it
};
inline constexpr size_t kMemoryUses = 4;

class JobMemory {
 public:
  // Enough for a lookup or two of the greatest size: less would serve nobody.
  static constexpr uint64_t kLeastScratch = uint64_t{16} << 20;
  static constexpr uint64_t kUnlimited = UINT64_MAX;

  void SetLimit(uint64_t bytes) { limit_ = bytes; }
  uint64_t limit() const { return limit_; }
  uint64_t used(MemoryUse use) const { return used_[static_cast<size_t>(use)]; }

  // False, with nothing taken: that would be beyond the limit.
  bool Take(uint64_t bytes, MemoryUse use);
  bool MayTake(uint64_t bytes, MemoryUse use) const;  // Take() could succeed now
  void Count(uint64_t bytes, MemoryUse use) { used_[static_cast<size_t>(use)] += bytes; }
  void Give(uint64_t bytes, MemoryUse use) { used_[static_cast<size_t>(use)] -= bytes; }

 private:
  // How much of that use there may be now.
  uint64_t Most(MemoryUse use) const;

  // Sequentially consistent: of two requests that meet, at least one sees the other.
  std::atomic<uint64_t> limit_ = kUnlimited;
  std::array<std::atomic<uint64_t>, kMemoryUses> used_ = {};
};

// The memory that one shard has of it.
class JobAccount {
 public:
  explicit JobAccount(std::shared_ptr<JobMemory> job) : job_(std::move(job)) {}
  ~JobAccount();
  JobAccount(const JobAccount&) = delete;
  JobAccount& operator=(const JobAccount&) = delete;

  JobMemory& job() { return *job_; }
  const JobMemory& job() const { return *job_; }
  uint64_t bytes() const;

  bool Take(uint64_t bytes, MemoryUse use);
  // Take() without the limit.
  void Count(uint64_t bytes, MemoryUse use);
  void Give(uint64_t bytes, MemoryUse use);

 private:
  const std::shared_ptr<JobMemory> job_;
  std::array<uint64_t, kMemoryUses> used_ = {};
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_JOB_MEMORY_H_
