#include "server/coordinator/configuration_moves.h"

#include <algorithm>

namespace verbena::server {
void Grow(v1::Partition* partition) {
  partition->set_configuration(partition->configuration() + 1);
}

bool HasFollower(const v1::Partition& partition, uint64_t server) {
  const auto& followers = partition.followers();
  return std::any_of(followers.begin(), followers.end(),
                     [&](const v1::Replica& r) { return r.server() == server; });
}

void BeginMove(uint64_t target, uint64_t from, uint32_t partition, ViewEditor* view) {
  v1::Partition* const edited = view->EditPartition(static_cast<int>(partition));
  edited->set_move_to(target);
  edited->set_move_from(from);
  edited->clear_last_move();
  if (edited->unwanted() == target) edited->clear_unwanted();
  Grow(edited);
}

void EndMove(v1::MoveEnd why, uint32_t partition, ViewEditor* view) {
  const v1::Partition& before = view->view().partitions(static_cast<int>(partition));
  const uint64_t target = before.move_to();
  if (target == 0) return;
  v1::Partition* const edited = view->EditPartition(static_cast<int>(partition));
  edited->clear_move_to();
  edited->clear_move_from();
  edited->set_last_move(why);
  // A follower is dropped by its primary: that may be gone already, and the follower have all that
  // is left.
  const bool surplus = edited->followers_size() >= static_cast<int>(view->view().replicas());
  if (surplus && HasFollower(*edited, target)) {
    edited->set_unwanted(target);
  }
  Grow(edited);
  if (!edited->learners().empty() && edited->learners(0).server() == target) {
    edited->clear_learners();
  }
}

void MarkNewestUnwanted(uint32_t partition, ViewEditor* view) {
  v1::Partition* const edited = view->EditPartition(static_cast<int>(partition));
  const auto newest = std::max_element(
      edited->followers().begin(), edited->followers().end(),
      [](const v1::Replica& a, const v1::Replica& b) { return a.since() < b.since(); });
  if (newest == edited->followers().end()) return;
  edited->set_unwanted(newest->server());
  Grow(edited);
}

void KeepUnwanted(uint32_t partition, ViewEditor* view) {
  v1::Partition* const edited = view->EditPartition(static_cast<int>(partition));
  edited->clear_unwanted();
  Grow(edited);
}

void GrowConfiguration(uint32_t partition, ViewEditor* view) {
  Grow(view->EditPartition(static_cast<int>(partition)));
}

void DropLearner(uint32_t partition, ViewEditor* view) {
  v1::Partition* const edited = view->EditPartition(static_cast<int>(partition));
  edited->clear_learners();
  Grow(edited);
}

}  // namespace verbena::server
