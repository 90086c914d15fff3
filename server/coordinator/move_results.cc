#include "server/coordinator/move_results.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/coordinator/configuration_moves.h"
#include "server/coordinator/placement.h"

namespace verbena::server {
namespace {

bool HasMoved(uint64_t to, uint64_t from, const v1::Partition& partition) {
  return from == 0 ? partition.primary() == to : HasFollower(partition, to);
}

const char* EndReason(v1::MoveEnd end) {
  switch (end) {
    case v1::MOVE_END_TARGET_GONE:
      return "the target's lease has ended, or it is being drained";
    case v1::MOVE_END_SOURCE_GONE:
      return "the lease of the primary has ended";
    case v1::MOVE_END_NO_MEMORY:
      return "the target has no memory for it; raise its --memory-limit";
    default:
      return "another change took its place";
  }
}

}  // namespace

void MoveResults::Begin(const v1::ClusterView& view, Log log) {
  log_ = std::move(log);
  moves_.clear();
  for (const v1::Partition& partition : view.partitions()) Keep(partition, view);
}

void MoveResults::Keep(const v1::Partition& partition, const v1::ClusterView& view) {
  if (partition.move_to() == 0) return;
  const v1::Server* const target = FindServer(partition.move_to(), view);
  moves_[partition.id()] = {partition.move_to(), partition.move_from(),
                            target == nullptr ? "" : target->name()};
}

void MoveResults::FollowOne(const v1::Partition& partition, const v1::ClusterView& view,
                            Failed* failed) {
  const auto it = moves_.find(partition.id());
  if (it == moves_.end()) return Keep(partition, view);
  const Move move = it->second;
  if (partition.move_to() == move.to && partition.move_from() == move.from) return;
  moves_.erase(it);
  Keep(partition, view);
  if (partition.move_to() == 0 && partition.last_move() == v1::MOVE_END_UNSPECIFIED &&
      HasMoved(move.to, move.from, partition)) {
    ++counters_.moved;
    return;
  }
  switch (partition.last_move()) {
    case v1::MOVE_END_TARGET_GONE:
      ++counters_.target_gone;
      break;
    case v1::MOVE_END_SOURCE_GONE:
      ++counters_.primary_gone;
      break;
    case v1::MOVE_END_NO_MEMORY:
      ++counters_.no_memory;
      break;
    default:
      ++counters_.cancelled;
      return;
  }
  std::string& partitions = (*failed)[partition.last_move()][move.target];
  absl::StrAppend(&partitions, partitions.empty() ? "" : ", ", partition.id());
}

void MoveResults::LogFailed(const Failed& failed) const {
  constexpr size_t kMostText = 200;
  if (!log_) return;
  for (const auto& [reason, targets] : failed) {
    for (const auto& [target, partitions] : targets) {
      const std::string shown = partitions.size() <= kMostText
                                    ? partitions
                                    : absl::StrCat(partitions.substr(0, kMostText), "...");
      log_(absl::StrCat("planned move of partitions ", shown, " to server '", target,
                        "': it has ended without effect (", EndReason(reason), ")"));
    }
  }
}

}  // namespace verbena::server
