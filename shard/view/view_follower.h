// Applies views of the cluster: this shard's partitions, and the order in which the parts of the
// engine follow.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_VIEW_VIEW_FOLLOWER_H_
#define VERBENA_SHARD_VIEW_VIEW_FOLLOWER_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

struct EngineCore;

class ViewFollower {
 public:
  explicit ViewFollower(EngineCore* core) : core_(*core) {}

  // See Engine::ApplyView(), Engine::RetryStarved().
  absl::Status Apply(const v1::ClusterView& view, absl::Span<const v1::ViewChange> changes);
  bool RetryStarved(const v1::ClusterView& view, absl::Status* applied);

 private:
  absl::Status CheckPartitions(const v1::ClusterView& view) const;
  void UpdatePartitions(const v1::ClusterView& view);
  const v1::Replica* FindReplica(const v1::Partition& partition) const;

  EngineCore& core_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_VIEW_VIEW_FOLLOWER_H_
