#include "server/coordinator/learner_bars.h"

#include <algorithm>
#include <utility>

#include "proto/control/planned_moves.h"
#include "server/coordinator/placement.h"
#include "server/nanoseconds.h"

namespace verbena::server {

void LearnerBars::Add(uint32_t partition, uint64_t server, int64_t until_ns) {
  until_[{partition, server}] = until_ns;
  next_ = std::min(next_, until_ns);
}

bool LearnerBars::Has(uint32_t partition, uint64_t server, int64_t now_ns) const {
  const auto it = until_.find({partition, server});
  if (it != until_.end() && it->second > now_ns) return true;
  const auto full = full_.find(server);
  return full != full_.end() && full->second.until_ns > now_ns;
}

void LearnerBars::AddFull(uint32_t partition, uint64_t server, int64_t now_ns, int64_t lease_ns) {
  Full& full = full_[server];
  full.refused[partition] = now_ns;
  full.has_room = false;
  // Many learners are refused at once: that is one pause.
  if (full.until_ns > now_ns) return;
  full.pause_ns = std::clamp(2 * full.pause_ns, lease_ns, kLongestPauseLeases * lease_ns);
  full.until_ns = now_ns + full.pause_ns;
  begun_.push_back(server);
  full.forget_ns = full.until_ns + kLongestPauseLeases * lease_ns;
  next_ = std::min(next_, full.until_ns);
}

void LearnerBars::Admitted(uint32_t partition, uint64_t server) {
  const auto it = full_.find(server);
  if (it == full_.end()) return;
  it->second.has_room = true;
  it->second.refused.erase(partition);
}

void LearnerBars::Freed(int64_t now_ns) {
  if (full_.empty()) return;
  full_.clear();
  next_ = now_ns;
}

bool LearnerBars::OneAtATime(uint64_t server) const {
  const auto it = full_.find(server);
  return it != full_.end() && !it->second.has_room;
}

int64_t LearnerBars::RefusedAt(uint32_t partition) const {
  int64_t last = 0;
  for (const auto& [server, full] : full_) {
    const auto it = full.refused.find(partition);
    if (it != full.refused.end()) last = std::max(last, it->second);
  }
  return last;
}

void LearnerBars::EndDue(int64_t now_ns) {
  std::erase_if(until_, [&](const auto& bar) { return bar.second <= now_ns; });
  std::erase_if(full_, [&](const auto& full) { return full.second.forget_ns <= now_ns; });
  FindNext(now_ns);
}

void LearnerBars::FindNext(int64_t now_ns) {
  next_ = kNever;
  for (const auto& [place, until] : until_) next_ = std::min(next_, until);
  for (const auto& [server, full] : full_) {
    next_ = std::min(next_, full.until_ns > now_ns ? full.until_ns : full.forget_ns);
  }
}

// One is missing, or a planned move or the drain of a server waits for it.
bool WantsReplica(const v1::Partition& partition, const v1::ClusterView& view) {
  return StayingReplicas(partition, view) < view.replicas() || MissingTarget(partition) != 0;
}

std::set<uint32_t> PartitionsRefused(const LearnerBars& bars, const v1::ClusterView& view) {
  std::set<uint32_t> refused;
  for (const auto& [server, full] : bars.full()) {
    if (!IsAlive(server, view)) continue;
    for (const auto& [partition, when] : full.refused) {
      if (WantsReplica(view.partitions(static_cast<int>(partition)), view)) {
        refused.insert(partition);
      }
    }
  }
  return refused;
}

void AddFullServers(const LearnerBars& bars, int64_t now_ns, const v1::ClusterView& view,
                    v1::GetViewResponse* response) {
  for (const auto& [server, full] : bars.full()) {
    if (!IsAlive(server, view)) continue;
    v1::FullServer added;
    for (const auto& [partition, when] : full.refused) {
      const v1::Partition& of = view.partitions(static_cast<int>(partition));
      if (WantsReplica(of, view)) added.add_partitions(partition);
    }
    if (added.partitions().empty()) continue;
    added.set_incarnation(server);
    const int64_t left = std::max<int64_t>(full.until_ns - now_ns, 0);
    added.set_retry_ms(static_cast<uint64_t>(left / kNanosPerMilli));
    *response->add_full_servers() = std::move(added);
  }
}

}  // namespace verbena::server
