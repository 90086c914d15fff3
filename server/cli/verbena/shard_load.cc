#include "server/cli/verbena/shard_load.h"

#include <map>

#include "server/cli/verbena/health.h"

namespace verbena::cli {
namespace {

std::optional<Rates> RatesBetween(const v1::ShardStatistics& before, const v1::ShardStatistics& now,
                                  double seconds) {
  // Counters only grow, so a smaller one belongs to another run of the shard.
  const bool grew = now.push_bytes() >= before.push_bytes() &&
                    now.pull_bytes() >= before.pull_bytes() && now.pushes() >= before.pushes() &&
                    now.pulls() >= before.pulls() && now.cpu_seconds() >= before.cpu_seconds();
  if (!grew || !(seconds > 0)) return std::nullopt;
  const auto rate = [seconds](uint64_t a, uint64_t b) {
    return static_cast<double>(b - a) / seconds;
  };
  return Rates{.push_bytes = rate(before.push_bytes(), now.push_bytes()),
               .pull_bytes = rate(before.pull_bytes(), now.pull_bytes()),
               .pushes = rate(before.pushes(), now.pushes()),
               .pulls = rate(before.pulls(), now.pulls()),
               .cpu = (now.cpu_seconds() - before.cpu_seconds()) / seconds};
}

const v1::ShardStatistics* FindShard(const ServerState& server, uint32_t shard) {
  if (!server.statistics.ok()) return nullptr;
  for (const v1::ShardStatistics& statistics : server.statistics->shards()) {
    if (statistics.shard() == shard) return &statistics;
  }
  return nullptr;
}

// Processor time, when it served anything; below zero otherwise.
double Heat(const ShardLoad& load, bool by_rates) {
  if (by_rates) {
    if (!load.rates || load.rates->pushes + load.rates->pulls == 0) return -1;
    return load.rates->cpu;
  }
  if (load.statistics == nullptr) return -1;
  if (load.statistics->pushes() == 0 && load.statistics->pulls() == 0) return -1;
  return load.statistics->cpu_seconds();
}

}  // namespace

std::vector<ShardLoad> ShardLoads(const ClusterState& now, const ClusterState* before) {
  const Placement placement = PlacementOf(now);
  std::map<uint64_t, const ServerState*> earlier;
  if (before != nullptr) {
    for (const ServerState& server : before->servers) {
      earlier[server.server.incarnation()] = &server;
    }
  }
  std::vector<ShardLoad> loads;
  for (const ServerState& server : now.servers) {
    const uint64_t incarnation = server.server.incarnation();
    if (!server.statistics.ok()) {
      loads.push_back(
          {.server = &server, .partitions = placement.OfServer(incarnation).partitions});
      continue;
    }
    const auto it = earlier.find(incarnation);
    for (const v1::ShardStatistics& statistics : server.statistics->shards()) {
      ShardLoad load = {.server = &server,
                        .statistics = &statistics,
                        .partitions = placement.Of(incarnation, statistics.shard()).partitions};
      if (it != earlier.end()) {
        if (const auto* then = FindShard(*it->second, statistics.shard())) {
          load.rates = RatesBetween(*then, statistics, server.read_at - it->second->read_at);
        }
      }
      loads.push_back(load);
    }
  }
  ShardLoad* hottest = nullptr;
  for (ShardLoad& load : loads) {
    const double heat = Heat(load, before != nullptr);
    if (heat >= 0 && (hottest == nullptr || heat > Heat(*hottest, before != nullptr))) {
      hottest = &load;
    }
  }
  if (hottest != nullptr) hottest->hottest = true;
  return loads;
}

}  // namespace verbena::cli
