#include "shard/job_memory.h"

#include <algorithm>
#include <numeric>

#include "proto/spec/job_limits.h"

namespace verbena::shard {

uint64_t JobMemory::Most(MemoryUse use) const {
  const uint64_t limit = limit_;
  if (limit == kUnlimited || use == MemoryUse::kSums || use == MemoryUse::kBookkeeping) {
    return kUnlimited;
  }
  const uint64_t kept_free = limit - RoomForTables(limit);
  if (use == MemoryUse::kTables) {
    const uint64_t other =
        std::max(used(MemoryUse::kScratch), kept_free) + used(MemoryUse::kBookkeeping);
    return limit - std::min(limit, other);
  }
  const uint64_t left = limit - std::min(limit, used(MemoryUse::kTables));
  return std::max({left, kept_free, kLeastScratch});
}

bool JobMemory::MayTake(uint64_t bytes, MemoryUse use) const {
  const uint64_t most = Most(use);
  return bytes <= most && used(use) <= most - bytes;
}

bool JobMemory::Take(uint64_t bytes, MemoryUse use) {
  // Counted first, so that requests that meet do not both fit.
  const uint64_t had = used_[static_cast<size_t>(use)].fetch_add(bytes);
  const uint64_t most = Most(use);
  if (bytes <= most && had <= most - bytes) return true;
  Give(bytes, use);
  return false;
}

JobAccount::~JobAccount() {
  for (size_t i = 0; i < kMemoryUses; ++i) job_->Give(used_[i], static_cast<MemoryUse>(i));
}

uint64_t JobAccount::bytes() const {
  return std::accumulate(used_.begin(), used_.end(), uint64_t{0});
}

bool JobAccount::Take(uint64_t bytes, MemoryUse use) {
  if (!job_->Take(bytes, use)) return false;
  used_[static_cast<size_t>(use)] += bytes;
  return true;
}

void JobAccount::Count(uint64_t bytes, MemoryUse use) {
  used_[static_cast<size_t>(use)] += bytes;
  job_->Count(bytes, use);
}

void JobAccount::Give(uint64_t bytes, MemoryUse use) {
  used_[static_cast<size_t>(use)] -= bytes;
  job_->Give(bytes, use);
}

}  // namespace verbena::shard
