#include "server/coordinator/placement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "proto/routing.h"
#include "proto/table_spec.h"

namespace verbena::server {

v1::Server* FindServer(uint64_t incarnation, v1::ClusterView* view) {
  for (v1::Server& server : *view->mutable_servers()) {
    if (server.incarnation() == incarnation) return &server;
  }
  return nullptr;
}

uint32_t AliveServers(const v1::ClusterView& view) {
  return static_cast<uint32_t>(
      std::count_if(view.servers().begin(), view.servers().end(),
                    [](const v1::Server& s) { return s.state() == v1::Server::ALIVE; }));
}

void PlaceAllPartitions(v1::ClusterView* view) {
  std::vector<std::pair<uint64_t, uint32_t>> shards;
  for (const v1::Server& server : view->servers()) {
    if (server.state() != v1::Server::ALIVE) continue;
    for (uint32_t shard = 0; shard < server.shards(); ++shard) {
      shards.emplace_back(server.incarnation(), shard);
    }
  }
  if (shards.empty()) return;
  std::sort(shards.begin(), shards.end());
  for (v1::Partition& partition : *view->mutable_partitions()) {
    const auto& [server, shard] = shards[partition.id() % shards.size()];
    if (partition.primary() == server && partition.shard() == shard) continue;
    partition.set_primary(server);
    partition.set_shard(shard);
    partition.set_epoch(partition.epoch() + 1);
  }
}

bool HasChunkIn(const v1::Table& table, uint32_t partition, uint32_t partitions) {
  if (table.spec().dim() > 0) return true;  // its keys are in all of them
  const uint32_t chunks = LayoutOf(table.spec()).chunks();
  return ChunksInPartition(table.id(), chunks, partition, partitions) > 0;
}

void ReplaceServer(uint64_t before, const v1::Server& now, v1::ClusterView* view) {
  const auto partitions = static_cast<uint32_t>(view->partitions_size());
  for (v1::Partition& partition : *view->mutable_partitions()) {
    if (partition.primary() != before) continue;
    partition.set_primary(now.incarnation());
    partition.set_shard(partition.shard() % now.shards());
    partition.set_epoch(partition.epoch() + 1);
    for (v1::Table& table : *view->mutable_tables()) {
      if (!HasChunkIn(table, partition.id(), partitions)) continue;
      auto* lost = table.mutable_lost_partitions();
      const auto at = std::lower_bound(lost->begin(), lost->end(), partition.id());
      if (at != lost->end() && *at == partition.id()) continue;
      const auto index = at - lost->begin();
      lost->Add(partition.id());
      std::rotate(lost->begin() + index, lost->end() - 1, lost->end());
    }
  }
}

}  // namespace verbena::server
