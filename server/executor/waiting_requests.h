// Requests that wait, in their slots, for room in the replication log (shard_executor.h, invariant
// 9).
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_WAITING_REQUESTS_H_
#define VERBENA_SERVER_EXECUTOR_WAITING_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "absl/container/flat_hash_map.h"
#include "rdma/lane/shard_lane.h"
#include "server/executor/lane_state.h"

namespace verbena::server {

struct ShardCore;

class WaitingRequests {
 public:
  explicit WaitingRequests(ShardCore* core) : core_(*core) {}

  // Whether an older request for one of its partitions waits, of any table: one that names many
  // partitions would not find room in all of them at once, if others took it in between.
  bool IsBehind(const Record& record) const;
  void Add(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Handles them again, in order, if there may be room.
  bool Retry();
  // Refuses requests that have waited for too long.
  bool RefuseLate(int64_t now);
  void Forget(const Lane* lane);
  int64_t NextNanos() const;
  size_t size() const { return requests_.size(); }

 private:
  struct Waiting {
    Lane* lane = nullptr;
    rdma::ShardLane::Arrival request;
    int64_t until_ns = 0;
  };

  void Count(const Record& record, int change);

  ShardCore& core_;
  std::deque<Waiting> requests_;  // by time of arrival; at most the slots of all lanes
  bool left_ = false;             // one of several partitions is gone: others may find room
  absl::flat_hash_map<uint32_t, uint32_t> by_partition_;  // how many
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_WAITING_REQUESTS_H_
