#include "shard/view/view_follower.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/control/planned_moves.h"
#include "shard/engine_core.h"
#include "shard/failpoints.h"

namespace verbena::shard {

absl::Status ViewFollower::CheckPartitions(const v1::ClusterView& view) const {
  const auto count = static_cast<uint32_t>(view.partitions_size());
  if (!core_.partitions.empty() && count != core_.partitions.size()) {
    return absl::FailedPreconditionError(absl::StrCat("view ", view.revision(), " has ", count,
                                                      " partitions; this cluster has ",
                                                      core_.partitions.size()));
  }
  for (const v1::Partition& p : view.partitions()) {
    if (p.id() >= count) {
      return absl::FailedPreconditionError(
          absl::StrCat("view ", view.revision(), ": partition ", p.id(), " of ", count));
    }
  }
  return absl::OkStatus();
}

// This shard's place among the partition's replicas.
const v1::Replica* ViewFollower::FindReplica(const v1::Partition& partition) const {
  for (const auto* list : {&partition.followers(), &partition.learners()}) {
    for (const v1::Replica& r : *list) {
      if (r.server() == core_.options.server && r.shard() == core_.options.shard) return &r;
    }
  }
  return nullptr;
}

void ViewFollower::UpdatePartitions(const v1::ClusterView& view) {
  core_.partitions.resize(view.partitions_size());
  core_.copies.Resize(core_.partitions.size());
  core_.proofs.Resize(core_.partitions.size());
  core_.log.Resize(static_cast<uint32_t>(core_.partitions.size()));
  core_.partitions_moved = false;
  for (const v1::Partition& p : view.partitions()) {
    PartitionInfo& info = core_.partitions[p.id()];
    const PartitionInfo was = info;
    info.epoch_changed = info.epoch != p.epoch();
    info.epoch = p.epoch();
    info.primary = {p.primary(), p.shard()};
    info.ours =
        p.primary() != 0 && p.primary() == core_.options.server && p.shard() == core_.options.shard;
    const v1::Replica* here = info.ours ? nullptr : FindReplica(p);
    info.copy = here != nullptr;
    info.since = info.copy ? here->since() : 0;
    info.enough = 1 + static_cast<uint32_t>(p.followers_size()) >= view.min_replicas();
    info.moves = info.ours && LearnerOfMove(p, view);
    // The shard may have missed the views between, also as the primary before.
    const bool lost = was.epoch > 0 && p.renewed_epoch() > was.epoch;
    info.renewed = info.ours && lost && !(was.copy && VERBENA_FAILPOINT(shard, keep_lost));
    info.promoted = was.copy && info.ours && !info.renewed;
    const bool again = was.copy && info.copy && was.since != info.since;
    info.stale = again || (was.ours && info.copy) || info.renewed ||
                 (info.promoted && core_.copies.learning(p.id()));
    const bool kept = was.copy && info.copy && !again && !lost;
    if (info.copy && kept && info.epoch_changed) core_.copies.Keep(p.id());
    if (!info.ours && !kept) core_.copies.Forget(p.id());
    core_.copies.SetBesideOthers(p.id(), info.copy && p.followers_size() > 1);
    core_.partitions_moved |= info.epoch_changed || info.ours != was.ours ||
                              info.copy != was.copy || info.since != was.since || info.renewed ||
                              info.promoted || info.stale;
  }
  core_.copies.CountSenders(view);
}

bool ViewFollower::RetryStarved(const v1::ClusterView& view, absl::Status* applied) {
  if (!core_.placement.HasUnserved() || view.revision() != core_.revision) return false;
  ViewDifference nothing;
  nothing.all = nothing.placement = false;
  const std::vector<uint32_t> starved = core_.placement.ToFollow(view, nothing);
  if (starved.empty()) return false;
  // The moves of the last view are done.
  core_.partitions_moved = false;
  for (PartitionInfo& p : core_.partitions) {
    p.epoch_changed = p.renewed = p.promoted = p.stale = false;
  }
  *applied = core_.placement.Follow(view, starved);
  core_.RetryBlocked();
  return true;
}

absl::Status ViewFollower::Apply(const v1::ClusterView& view,
                                 absl::Span<const v1::ViewChange> changes) {
  if (view.revision() < core_.revision) return absl::OkStatus();
  if (const absl::Status s = CheckPartitions(view); !s.ok()) return s;
  ViewDifference what = DifferenceOf(core_.revision, view, changes);
  what.all |= core_.partitions.empty();
  core_.revision = view.revision();
  UpdatePartitions(view);
  what.all |= core_.partitions_moved;
  core_.checkpoints.FollowView(view, what);
  core_.placement.Drop(view, what);
  absl::Status first = core_.jobs.Follow(view, what);
  core_.jobs.Limit(view, what);
  // Without partitions nothing can be placed: tables are not known yet.
  if (!core_.partitions.empty()) {
    const std::vector<uint32_t> followed = core_.placement.ToFollow(view, what);
    first.Update(core_.placement.Follow(view, followed));
    core_.replicas.FollowView(view, what, followed);
  }
  core_.jobs.EndChanges();
  core_.jobs.Forget(what);
  core_.RetryBlocked();
  return first;
}

}  // namespace verbena::shard
