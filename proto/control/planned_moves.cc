#include "proto/control/planned_moves.h"

#include <algorithm>

namespace verbena {
namespace {

const v1::Server* Find(uint64_t server, const v1::ClusterView& view) {
  const auto it = std::find_if(view.servers().begin(), view.servers().end(),
                               [&](const v1::Server& s) { return s.incarnation() == server; });
  return it == view.servers().end() ? nullptr : &*it;
}

// It may get, or keep, a replica.
bool Usable(const v1::Server& server) {
  return server.state() == v1::Server::ALIVE && !server.draining();
}

// Whether the primary and the other followers are as many as the cluster wants and has servers for.
bool EnoughWithout(const v1::Replica& follower, const v1::Partition& partition,
                   const v1::ClusterView& view) {
  uint32_t usable = 0, staying = 0;
  for (const v1::Server& server : view.servers()) {
    if (!Usable(server)) continue;
    ++usable;
    const auto on_it = [&](const v1::Replica& r) {
      return r.server() == server.incarnation() && r.server() != follower.server();
    };
    const auto& followers = partition.followers();
    staying += server.incarnation() == partition.primary() ||
                       std::any_of(followers.begin(), followers.end(), on_it)
                   ? 1
                   : 0;
  }
  return staying >= std::min(view.replicas(), usable);
}

}  // namespace

uint64_t MissingTarget(const v1::Partition& partition) {
  const auto& followers = partition.followers();
  const auto is_target = [&](const v1::Replica& r) { return r.server() == partition.move_to(); };
  return std::any_of(followers.begin(), followers.end(), is_target) ? 0 : partition.move_to();
}

bool LearnerOfMove(const v1::Partition& partition, const v1::ClusterView& view) {
  return !partition.learners().empty() &&
         1 + static_cast<uint32_t>(partition.followers_size()) >= view.replicas();
}

bool IsDraining(uint64_t server, const v1::ClusterView& view) {
  const v1::Server* const found = Find(server, view);
  return found != nullptr && found->draining();
}

bool PrimaryLeaves(const v1::Partition& partition, const v1::ClusterView& view) {
  return partition.primary() != 0 && ((partition.move_to() != 0 && partition.move_from() == 0) ||
                                      IsDraining(partition.primary(), view));
}

uint32_t StayingReplicas(const v1::Partition& partition, const v1::ClusterView& view) {
  const auto staying =
      std::count_if(partition.followers().begin(), partition.followers().end(),
                    [&](const v1::Replica& r) { return !IsDraining(r.server(), view); });
  return static_cast<uint32_t>(staying) + (PrimaryLeaves(partition, view) ? 0 : 1);
}

bool EnoughStay(const v1::Partition& partition, const v1::ClusterView& view) {
  const bool leaves = PrimaryLeaves(partition, view);
  uint32_t usable = 0, staying = leaves ? 0 : 1;
  for (const v1::Server& server : view.servers()) {
    if (!Usable(server)) continue;
    usable += leaves && server.incarnation() == partition.primary() ? 0 : 1;
    staying += static_cast<uint32_t>(
        std::count_if(partition.followers().begin(), partition.followers().end(),
                      [&](const v1::Replica& r) { return r.server() == server.incarnation(); }));
  }
  return staying >= std::min(view.replicas(), usable);
}

const v1::Replica* PlannedHeir(const v1::Partition& partition, const v1::ClusterView& view) {
  if (!PrimaryLeaves(partition, view) || !partition.learners().empty() ||
      !EnoughStay(partition, view)) {
    return nullptr;
  }
  for (const v1::Replica& follower : partition.followers()) {
    const v1::Server* const server = Find(follower.server(), view);
    if (server == nullptr || !Usable(*server)) continue;
    if (partition.move_to() == 0 || partition.move_to() == follower.server()) return &follower;
  }
  return nullptr;
}

const v1::Replica* SurplusFollower(const v1::Partition& partition, const v1::ClusterView& view) {
  if (!partition.learners().empty()) return nullptr;
  const bool leaves = PrimaryLeaves(partition, view);
  const bool drops_drained = !leaves && EnoughStay(partition, view);
  for (const v1::Replica& follower : partition.followers()) {
    if (follower.server() == partition.unwanted()) {
      // It may have the place that the target of a move needs.
      const bool may_go = !leaves || MissingTarget(partition) != 0;
      if (may_go && EnoughWithout(follower, partition, view)) return &follower;
    } else if (drops_drained && IsDraining(follower.server(), view)) {
      return &follower;
    }
  }
  return nullptr;
}

}  // namespace verbena
