// The bounds of a replication log (log_limits.h): the bytes of its records, by partition and in
// all, and whether there is room for more.
//
// Records of applies and of catch-up have shares of their own. Once a caller was refused, later
// callers are refused too, until a quarter of the share is free: requests that wait are then first.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_REPLICA_LOG_ROOM_H_
#define VERBENA_SHARD_REPLICA_LOG_ROOM_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "shard/replica/log_limits.h"

namespace verbena::shard {

class LogRoom {
 public:
  // The log of one partition.
  struct Part {
    uint64_t apply_bytes = 0, catch_up_bytes = 0;
    bool crowded = false;  // HasRoom() has refused, and there is no room yet for requests that wait
    bool learning = false;  // its replica catches up
    uint64_t bytes() const { return apply_bytes + catch_up_bytes; }
  };

  explicit LogRoom(const ReplicaLogLimits& limits) : limits_(limits) {}

  const ReplicaLogLimits& limits() const { return limits_; }
  uint64_t bytes() const { return apply_bytes_ + catch_up_bytes_; }

  // A record is added.
  void Add(Part* part, bool catches_up, uint32_t bytes) {
    (catches_up ? part->catch_up_bytes : part->apply_bytes) += bytes;
    (catches_up ? catch_up_bytes_ : apply_bytes_) += bytes;
  }
  // It is gone from the partition; Free() follows.
  static void Remove(Part* part, bool catches_up, uint32_t bytes) {
    (catches_up ? part->catch_up_bytes : part->apply_bytes) -= bytes;
  }
  // Its memory is free.
  void Free(bool catches_up, uint32_t bytes);
  // Continues requests that wait, if there is room by now.
  void CheckCrowded(Part* part);

  // Whether applies have their share.
  bool Full(const Part& part) const;
  bool HasRoom(Part* part);
  bool HasRoomToCatchUp(const Part& part) const;
  // `learners`: partitions of this shard that have one.
  void NewConfiguration(size_t learners);
  // Requests that wait may ask again.
  void Open() { room_ = true; }
  // Whether there may be room since the last call where there was none.
  bool Take() { return std::exchange(room_, false); }

 private:
  // The share of the partition's records, of all records, that applies may have.
  uint64_t PartitionShare(const Part& part) const;
  uint64_t ShardShare() const;

  const ReplicaLogLimits limits_;
  uint64_t apply_bytes_ = 0, catch_up_bytes_ = 0;
  bool crowded_ = false;  // as Part::crowded, by the bytes of all
  bool room_ = false;
  size_t learners_ = 0;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_REPLICA_LOG_ROOM_H_
