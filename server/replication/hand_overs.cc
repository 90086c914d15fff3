#include "server/replication/hand_overs.h"

#include <algorithm>
#include <set>

#include "proto/control/planned_moves.h"
#include "shard/replica/replicas.h"

namespace verbena::server {
namespace {

// The coordinator's tickets are good for so much of a lease.
bool Recent(int64_t ticket_ns, const ReplicaLeases& leases, int64_t now) {
  return ticket_ns > 0 && now - ticket_ns <= leases.lease_ns() / 8;
}

}  // namespace

bool HandOvers::closing() const {
  return std::any_of(stopped_.begin(), stopped_.end(), [](const auto& stopped) {
    return stopped.second.closing && !stopped.second.resumed;
  });
}

bool HandOvers::AnyStopped() const {
  return std::any_of(stopped_.begin(), stopped_.end(),
                     [](const auto& stopped) { return !stopped.second.resumed; });
}

bool HandOvers::MayStop(const Coordinator& coordinator, int64_t now) {
  if (!coordinator.ready) {
    delayed_ = true;
    return false;
  }
  const bool together = AnyStopped() && together_ns_ == now;
  if (!together && (AnyStopped() || now < paused_until_ns_)) {
    delayed_ = true;
    return false;
  }
  together_ns_ = now;
  delayed_ = false;
  return true;
}

int64_t HandOvers::NextNanos(int64_t now) const {
  return delayed_ && now < paused_until_ns_ ? paused_until_ns_ : kNever;
}

void HandOvers::Pause(int64_t now) {
  const int64_t pause = (now - together_ns_) * kPauseFactor * std::max<int64_t>(handing_over_, 1);
  paused_until_ns_ = now + std::min(pause, kLongestPause);
}

void HandOvers::Follow(const v1::ClusterView& view, const PeerId& self, shard::Engine* engine,
                       int64_t now) {
  planned_.clear();
  std::set<uint64_t> handing_over;
  // Where there are to be replicas, workers keep the pushes of open steps to send them again.
  between_steps_ = view.replicas() < 2;
  for (const v1::Partition& p : view.partitions()) {
    if (PlannedHeir(p, view) != nullptr || p.move_to() != 0) handing_over.insert(p.primary());
    if (self.server == 0 || PeerId{p.primary(), p.shard()} != self) continue;
    const v1::Replica* const heir = PlannedHeir(p, view);
    const v1::Replica* const surplus = SurplusFollower(p, view);
    if (heir == nullptr && surplus == nullptr) continue;
    planned_[p.id()] = {p.configuration(), heir == nullptr ? 0 : heir->server(),
                        surplus == nullptr ? 0 : surplus->server()};
  }
  handing_over_ = static_cast<int64_t>(handing_over.size());
  const bool any_stopped = AnyStopped();
  std::erase_if(stopped_, [&](const auto& stopped) {
    const auto& [id, of] = stopped;
    if (view.partitions(static_cast<int>(id)).configuration() == of.configuration) return false;
    engine->replicas().Unseal(id);
    return true;
  });
  if (any_stopped && !AnyStopped()) Pause(now);
}

uint64_t HandOvers::Surplus(uint32_t partition) const {
  const auto planned = planned_.find(partition);
  return planned == planned_.end() ? 0 : planned->second.surplus;
}

bool HandOvers::NeedsTicket(uint32_t partition, int64_t ticket_ns, const ReplicaLeases& leases,
                            int64_t now) const {
  const auto planned = planned_.find(partition);
  const auto stopped = stopped_.find(partition);
  return planned != planned_.end() && planned->second.heir != 0 &&
         (stopped == stopped_.end() || stopped->second.closing) && !Recent(ticket_ns, leases, now);
}

bool HandOvers::waits_for_call() const {
  return delayed_ || std::any_of(stopped_.begin(), stopped_.end(), [](const auto& stopped) {
           return stopped.second.ready_ns != 0 && !stopped.second.asked && !stopped.second.resumed;
         });
}

int64_t HandOvers::AskNanos(int64_t now) const {
  int64_t until = kNever;
  bool all = true;
  for (const auto& [id, stopped] : stopped_) {
    if (stopped.resumed || stopped.asked || stopped.closing) continue;
    all &= stopped.ready_ns != 0;
    if (stopped.ready_ns == 0) continue;
    until = std::min(until, stopped.ready_ns + (stopped.ready_ns - stopped.since_ns));
  }
  return all ? now : std::max(until, now);
}

uint64_t HandOvers::Ready(uint32_t partition, const Coordinator& coordinator,
                          const ReplicaLeases& leases, shard::Engine* engine, int64_t now) {
  const auto heard = [&](uint64_t server) {
    return leases.Heard(partition, server, now - leases.lease_ns() / 4);
  };
  const auto may_stop = [&](uint64_t heir) {
    return leases.MayServe(partition, now) && Recent(coordinator.answered_ns, leases, now) &&
           heard(heir);
  };
  auto it = stopped_.find(partition);
  if (it == stopped_.end()) {
    const auto planned = planned_.find(partition);
    if (planned == planned_.end() || planned->second.heir == 0 || !may_stop(planned->second.heir) ||
        !MayStop(coordinator, now)) {
      return 0;
    }
    it = stopped_
             .insert({partition,
                      {.configuration = planned->second.configuration,
                       .heir = planned->second.heir,
                       .since_ns = now}})
             .first;
  }
  Stopped& stopped = it->second;
  if (stopped.resumed) {
    if (now - stopped.since_ns > 2 * leases.lease_ns()) stopped_.erase(it);
    return 0;
  }
  if (stopped.closing && may_stop(stopped.heir) &&
      engine->replicas().Seal(partition, between_steps_)) {
    stopped.closing = false;
    stopped.since_ns = now;
  }
  // All jobs of the partition wait meanwhile.
  if (!stopped.asked && now - stopped.since_ns > leases.lease_ns() / 2) {
    engine->replicas().Unseal(partition);
    stopped.resumed = true;
    stopped.since_ns = now;
    if (!AnyStopped()) Pause(now);
    return 0;
  }
  if (stopped.closing) return 0;
  // It may be gone since it has answered.
  const bool ready = engine->replicas().Drained(partition) && heard(stopped.heir);
  if (!ready) {
    stopped.ready_ns = 0;
  } else if (stopped.ready_ns == 0) {
    stopped.ready_ns = now;
  }
  // The view is on its way, unless the call was lost.
  if (stopped.asked && now - stopped.asked_ns < leases.lease_ns() / 16) return 0;
  return ready ? stopped.heir : 0;
}

}  // namespace verbena::server
