// The peers that may have lanes to a shard: the workers of the view's jobs, other servers, and the
// limits of jobs.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_SHARD_MEMBERS_H_
#define VERBENA_SERVER_EXECUTOR_SHARD_MEMBERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "proto/control/view_difference.h"
#include "server/executor/lane_state.h"
#include "server/executor/shard_executor.h"

namespace verbena::server {

struct ShardCore;

class ShardMembers {
 public:
  struct Job {
    std::string name;
    uint32_t lane_limit = 0;  // 0: none
    std::vector<uint64_t> members;
  };

  explicit ShardMembers(ShardCore* core) : core_(*core) {}

  // Updates the members from the view. `what`: its difference to the previous view.
  void Follow(const ViewDifference& what);
  // Whether the view allows this peer lanes here.
  bool MayHaveLanes(const LanePeer& peer) const {
    return peer.server ? servers_.contains(peer.incarnation) : workers_.contains(peer.incarnation);
  }
  size_t size() const { return workers_.size() + servers_.size(); }
  // Null: it is no worker of the view.
  const Job* JobOf(uint64_t worker) const;
  // The domain of a member's lanes, which separates its job's memory from other jobs'.
  uint64_t DomainOf(const LanePeer& peer) const {
    return peer.server ? kServersDomain : workers_.at(peer.incarnation);
  }
  // The peer that requests a lane; an error if it is no member.
  absl::StatusOr<LanePeer> CheckOpener(const v1::OpenLaneRequest& request) const;
  // "worker 12"; "shard 0 of server 'b' (incarnation 3)".
  std::string NameOf(const LanePeer& peer) const;
  std::vector<JobSnapshot> Snapshots() const;

 private:
  void UpdateServers();
  // Null: the view has no such job (any more).
  void UpdateJob(const std::string& name, const v1::Job* job);
  // Whether this shard is a follower or learner of a partition whose primary that is.
  bool KeepsCopiesOf(uint64_t server) const;

  ShardCore& core_;
  // Members of any job of the view, with the domain of their job.
  absl::flat_hash_map<uint64_t, uint64_t> workers_;
  absl::flat_hash_map<uint64_t, Job> jobs_;  // of the view, by the same
  // Other servers of the view that may have lanes here. A silent server keeps its lanes while this
  // shard has replicas of its partitions: perhaps only the coordinator cannot reach it.
  absl::flat_hash_set<uint64_t> servers_;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_SHARD_MEMBERS_H_
