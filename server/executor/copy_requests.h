// Replicas of partitions: records for the replicas that this shard keeps, and the answers that
// leases between replicas allow.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_COPY_REQUESTS_H_
#define VERBENA_SERVER_EXECUTOR_COPY_REQUESTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "rdma/lane/shard_lane.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"

namespace verbena::server {

struct ShardCore;

class CopyRequests {
 public:
  explicit CopyRequests(ShardCore* core) : core_(*core) {}

  // Takes the servers with replicas of this shard's partitions from the view.
  void Follow();
  void Replicate(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  void Beacon(Lane* lane, const rdma::ShardLane::Arrival& arrival);
  // Whether this shard's promises to replicas allow an answer to a worker's record. Otherwise the
  // answer is kNotReady.
  bool MayAnswer(const Record& record) const;
  // Whether a follower here has what the pull asks for, by age.
  bool IsFresh(const Record& record) const;
  // Whether every partition that the view gives to this shard is its own to answer for now, in the
  // view that the caller has.
  absl::Status MayCheckpoint(uint64_t server_incarnation, uint64_t revision) const;
  std::vector<v1::ReplicaStatistics> Statistics() const;
  // v1::ShardStatistics::partitions
  std::vector<v1::PartitionStatistics> Contents() const;

 private:
  // Adds this server's free memory to an answer to a primary.
  void ReportRoom(rdma::ShardLane::Answer* answer) const;

  ShardCore& core_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_COPY_REQUESTS_H_
