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

}  // namespace

bool IsDraining(uint64_t server, const v1::ClusterView& view) {
  const v1::Server* const found = Find(server, view);
  return found != nullptr && found->draining();
}

bool PrimaryLeaves(const v1::Partition& partition, const v1::ClusterView& view) {
  return partition.primary() != 0 &&
         (partition.move_to() != 0 || IsDraining(partition.primary(), view));
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
  if (PrimaryLeaves(partition, view) || !partition.learners().empty() ||
      !EnoughStay(partition, view)) {
    return nullptr;
  }
  for (const v1::Replica& follower : partition.followers()) {
    if (IsDraining(follower.server(), view) || follower.server() == partition.unwanted()) {
      return &follower;
    }
  }
  return nullptr;
}

}  // namespace verbena
