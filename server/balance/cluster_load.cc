#include "server/balance/cluster_load.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "proto/control/planned_moves.h"

namespace verbena::server {
namespace {

// It may have replicas.
bool Counts(const v1::Server& server) {
  return server.state() == v1::Server::ALIVE && !server.draining();
}

uint32_t CountingServers(const v1::ClusterView& view) {
  return static_cast<uint32_t>(std::count_if(view.servers().begin(), view.servers().end(), Counts));
}

uint32_t ReplicasOf(const v1::Partition& partition) {
  return 1 + static_cast<uint32_t>(partition.followers_size());
}

uint32_t WantedReplicas(const v1::ClusterView& view) {
  return std::min(std::max(view.replicas(), 1U), CountingServers(view));
}

// The replicas when its move has ended.
void Place(const v1::Partition& partition, BalancePartition* out) {
  const uint64_t to = partition.move_to(), from = partition.move_from();
  out->primary = to != 0 && from == 0 ? to : partition.primary();
  for (const v1::Replica& follower : partition.followers()) {
    const uint64_t server = follower.server();
    if (server == to || server == partition.unwanted() || (to != 0 && server == from)) continue;
    out->followers.push_back(server);
  }
  if (to != 0 && from != 0) out->followers.push_back(to);
}

}  // namespace

BalanceInput BalanceInputOf(const v1::ClusterView& view, const ServerReports& reports,
                            const std::set<uint64_t>& full) {
  BalanceInput input;
  std::map<uint32_t, uint64_t> bytes;
  std::set<uint64_t> alive;
  for (const v1::Server& server : view.servers()) {
    BalanceServer& out = input.servers.emplace_back();
    out.incarnation = server.incarnation();
    out.name = server.name();
    out.zone = server.zone();
    out.counts = Counts(server);
    out.accepts = out.counts && !full.contains(server.incarnation());
    out.memory_limit = server.memory_bytes();
    if (server.state() == v1::Server::ALIVE) alive.insert(server.incarnation());
    const auto report = reports.find(server.incarnation());
    if (report == reports.end()) continue;
    for (const v1::ShardStatistics& shard : report->second.shards()) {
      out.memory_limit = std::max(out.memory_limit, shard.memory_limit_bytes());
      out.memory_reserved = std::max(out.memory_reserved, shard.memory_reserved_bytes());
      out.accepts = out.accepts && !shard.memory_full();
      // A learner has a part only.
      for (const v1::PartitionStatistics& held : shard.partitions()) {
        uint64_t& most = bytes[held.partition()];
        most = std::max(most, held.bytes());
      }
    }
  }
  for (const v1::Partition& partition : view.partitions()) {
    if (partition.primary() == 0) continue;
    BalancePartition& out = input.partitions.emplace_back();
    out.id = partition.id();
    Place(partition, &out);
    const auto held = bytes.find(partition.id());
    out.bytes = held == bytes.end() ? 0 : held->second;
    out.movable = partition.learners().empty() && partition.move_to() == 0 &&
                  partition.unwanted() == 0 && alive.contains(partition.primary()) &&
                  ReplicasOf(partition) >= WantedReplicas(view);
    if (MissingTarget(partition) == 0) continue;
    for (BalanceServer& server : input.servers) {
      if (server.incarnation == partition.move_to()) server.memory_reserved += out.bytes;
    }
  }
  return input;
}

uint32_t PartitionsInMove(const v1::ClusterView& view) {
  return static_cast<uint32_t>(
      std::count_if(view.partitions().begin(), view.partitions().end(),
                    [](const v1::Partition& p) { return p.move_to() != 0 || p.unwanted() != 0; }));
}

uint32_t PartitionsIncomplete(const v1::ClusterView& view) {
  const uint32_t wanted = WantedReplicas(view);
  return static_cast<uint32_t>(std::count_if(
      view.partitions().begin(), view.partitions().end(),
      [&](const v1::Partition& p) { return p.primary() != 0 && ReplicasOf(p) < wanted; }));
}

absl::Status MayPlanBalance(const v1::ClusterView& view) {
  const uint32_t servers = CountingServers(view);
  if (servers < 2) {
    return absl::FailedPreconditionError(
        absl::StrCat("rebalance: it needs two servers that are alive and not being drained (there ",
                     servers == 1 ? "is " : "are ", servers, "); start another server"));
  }
  if (std::all_of(view.partitions().begin(), view.partitions().end(),
                  [](const v1::Partition& p) { return p.primary() == 0; })) {
    return absl::FailedPreconditionError(
        "rebalance: no partition is on a server yet; the first table that is created spreads them "
        "evenly");
  }
  return absl::OkStatus();
}

absl::Status MayBalance(const v1::ClusterView& view) {
  if (absl::Status status = MayPlanBalance(view); !status.ok()) return status;
  if (const uint32_t moving = PartitionsInMove(view); moving > 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "rebalance: moves are in progress (", moving, moving == 1 ? " partition" : " partitions",
        "); wait for their end, or end them with verbena rebalance --cancel"));
  }
  return absl::OkStatus();
}

}  // namespace verbena::server
