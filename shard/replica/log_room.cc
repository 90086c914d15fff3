#include "shard/replica/log_room.h"

#include <algorithm>

#include "shard/failpoints.h"

namespace verbena::shard {
namespace {

// While a learner catches up, applies and catch-up have this part of each bound. When the learner
// becomes a follower, pushes wait behind everything in the log, so that must be less than the whole
// bound.
constexpr uint64_t kCatchUpShare = 4;

}  // namespace

uint64_t LogRoom::PartitionShare(const Part& part) const {
  return part.learning ? limits_.partition_bytes / kCatchUpShare : limits_.partition_bytes;
}

uint64_t LogRoom::ShardShare() const {
  return learners_ > 0 ? limits_.shard_bytes / kCatchUpShare : limits_.shard_bytes;
}

bool LogRoom::Full(const Part& part) const {
  // Without entries there is none whose end would let anybody go on.
  return (part.apply_bytes > 0 && part.apply_bytes >= PartitionShare(part)) ||
         (apply_bytes_ > 0 && apply_bytes_ >= ShardShare());
}

bool LogRoom::HasRoom(Part* part) {
  part->crowded |= part->apply_bytes > 0 && part->apply_bytes >= PartitionShare(*part);
  crowded_ |= apply_bytes_ > 0 && apply_bytes_ >= ShardShare();
  return !part->crowded && !crowded_;
}

bool LogRoom::HasRoomToCatchUp(const Part& part) const {
  if (VERBENA_FAILPOINT(shard, unbounded_log)) return bytes() < limits_.catch_up_bytes;
  // As much as applies have in the log: a learner's link is shared by halves. Otherwise little
  // enough for applies of other partitions not to wait behind it.
  const uint64_t most =
      std::min(limits_.shard_bytes / kCatchUpShare, std::max(limits_.catch_up_bytes, apply_bytes_));
  const uint64_t share = limits_.partition_bytes / kCatchUpShare;
  return catch_up_bytes_ == 0 || (catch_up_bytes_ < most && part.catch_up_bytes < share);
}

void LogRoom::NewConfiguration(size_t learners) {
  learners_ = learners;
  crowded_ = false;
  room_ = true;
}

void LogRoom::Free(bool catches_up, uint32_t bytes) {
  (catches_up ? catch_up_bytes_ : apply_bytes_) -= bytes;
  if (!crowded_ || apply_bytes_ > ShardShare() / 4 * 3) return;
  crowded_ = false;
  room_ = true;
}

void LogRoom::CheckCrowded(Part* part) {
  if (!part->crowded || part->apply_bytes > PartitionShare(*part) / 4 * 3) return;
  part->crowded = false;
  room_ = true;
}

}  // namespace verbena::shard
