#include "server/coordinator/placement.h"

#include <algorithm>
#include <tuple>

namespace verbena::server {
namespace {

v1::Replica ReplicaOn(const std::pair<uint64_t, uint32_t>& place) {
  v1::Replica replica;
  replica.set_server(place.first);
  replica.set_shard(place.second);
  return replica;
}

bool HasCopy(const v1::Partition& partition, uint64_t server) {
  const auto on_it = [&](const v1::Replica& r) { return r.server() == server; };
  return partition.primary() == server ||
         std::any_of(partition.followers().begin(), partition.followers().end(), on_it) ||
         std::any_of(partition.learners().begin(), partition.learners().end(), on_it);
}

}  // namespace

const v1::Server* FindServer(uint64_t incarnation, const v1::ClusterView& view) {
  for (const v1::Server& server : view.servers()) {
    if (server.incarnation() == incarnation) return &server;
  }
  return nullptr;
}

void SetServerState(uint64_t incarnation, v1::Server::State state, ViewEditor* view) {
  for (v1::Server& server : *view->EditServers()) {
    if (server.incarnation() == incarnation) server.set_state(state);
  }
}

bool IsAlive(uint64_t incarnation, const v1::ClusterView& view) {
  const v1::Server* server = FindServer(incarnation, view);
  return server != nullptr && server->state() == v1::Server::ALIVE;
}

uint32_t AliveServers(const v1::ClusterView& view) {
  return static_cast<uint32_t>(
      std::count_if(view.servers().begin(), view.servers().end(),
                    [](const v1::Server& s) { return s.state() == v1::Server::ALIVE; }));
}

Loads::Loads(const v1::ClusterView& view, bool partitions) {
  const bool any = std::any_of(view.servers().begin(), view.servers().end(), [](const auto& s) {
    return s.state() == v1::Server::ALIVE && !s.draining();
  });
  for (const v1::Server& server : view.servers()) {
    zones_[server.incarnation()] = server.zone();
    if (server.state() != v1::Server::ALIVE || (any && server.draining())) continue;
    for (uint32_t shard = 0; shard < server.shards(); ++shard) {
      copies_[{server.incarnation(), shard}] = 0;
    }
  }
  if (!partitions) return;
  for (const v1::Partition& partition : view.partitions()) Add(partition);
}

void Loads::Add(const v1::Partition& partition) {
  const auto it = copies_.find({partition.primary(), partition.shard()});
  if (it != copies_.end()) ++it->second;
  for (const auto* copies : {&partition.followers(), &partition.learners()}) {
    for (const v1::Replica& copy : *copies) AddCopy(partition.primary(), copy);
  }
}

void Loads::AddCopy(uint64_t primary, const v1::Replica& copy) {
  const auto it = copies_.find({copy.server(), copy.shard()});
  if (it != copies_.end()) ++it->second;
  ++with_primary_[{primary, copy.server()}];
}

std::vector<v1::Replica> Loads::Shards() const {
  std::vector<v1::Replica> shards;
  for (const auto& [place, copies] : copies_) shards.push_back(ReplicaOn(place));
  return shards;
}

std::optional<v1::Replica> Loads::ForPrimary() const {
  const auto least =
      std::min_element(copies_.begin(), copies_.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (least == copies_.end()) return std::nullopt;
  return ReplicaOn(least->first);
}

// Without a name a zone has one server.
bool Loads::SameZone(uint64_t a, uint64_t b) const {
  const auto zone_a = zones_.find(a), zone_b = zones_.find(b);
  return zone_a != zones_.end() && zone_b != zones_.end() && !zone_a->second.empty() &&
         zone_a->second == zone_b->second;
}

uint32_t Loads::ReplicasInZoneOf(uint64_t server, const v1::Partition& partition) const {
  uint32_t count = SameZone(partition.primary(), server) ? 1 : 0;
  for (const auto* copies : {&partition.followers(), &partition.learners()}) {
    count += static_cast<uint32_t>(
        std::count_if(copies->begin(), copies->end(),
                      [&](const v1::Replica& r) { return SameZone(r.server(), server); }));
  }
  return count;
}

std::optional<v1::Replica> Loads::ForCopy(
    const v1::Partition& partition, const std::function<bool(uint64_t server)>& allowed) const {
  using Cost = std::tuple<uint32_t, uint32_t, uint32_t>;
  std::optional<Cost> least;
  std::optional<v1::Replica> best;
  for (const auto& [place, copies] : copies_) {
    const uint64_t server = place.first;
    if (HasCopy(partition, server) || !allowed(server)) continue;
    const auto with = with_primary_.find({partition.primary(), server});
    const Cost cost = {ReplicasInZoneOf(server, partition), copies,
                       with == with_primary_.end() ? 0 : with->second};
    if (least && *least <= cost) continue;
    least = cost;
    best = ReplicaOn(place);
  }
  return best;
}

}  // namespace verbena::server
