// Selects the server and shard for a replica of a partition.
//
// **Thread safety**: pure functions on a view; Loads: one owner thread.
#ifndef VERBENA_SERVER_COORDINATOR_PLACEMENT_H_
#define VERBENA_SERVER_COORDINATOR_PLACEMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/coordinator/view_editor.h"
#include "verbena/v1/cluster.pb.h"

namespace verbena::server {

const v1::Server* FindServer(uint64_t incarnation, const v1::ClusterView& view);
void SetServerState(uint64_t incarnation, v1::Server::State state, ViewEditor* view);
bool IsAlive(uint64_t incarnation, const v1::ClusterView& view);
uint32_t AliveServers(const v1::ClusterView& view);

// The number of replicas on each shard of the servers that are alive, without those that are being
// drained, as long as there are others. A snapshot of the servers,
// updated by Add() and AddCopy().
class Loads {
 public:
  // `partitions`: whether those of the view are counted; else there are none so far.
  Loads(const v1::ClusterView& view, bool partitions);

  void Add(const v1::Partition& partition);
  void AddCopy(uint64_t primary, const v1::Replica& copy);
  // All shards, by server and number.
  std::vector<v1::Replica> Shards() const;
  // For the primary of a partition that had none: the shard with the fewest replicas.
  std::optional<v1::Replica> ForPrimary() const;
  // For one more replica: never on a server that has one. Prefers a zone other than the primary's,
  // then the fewest replicas, then the fewest whose primaries are on the same server as this one's.
  // So the partitions of a lost server go to many others. Empty: no server may have it.
  std::optional<v1::Replica> ForCopy(const v1::Partition& partition,
                                     const std::function<bool(uint64_t server)>& allowed) const;

 private:
  bool SameZone(uint64_t a, uint64_t b) const;
  // Replicas of the partition that are in the zone of the server.
  uint32_t ReplicasInZoneOf(uint64_t server, const v1::Partition& partition) const;

  std::map<uint64_t, std::string> zones_;                           // of all servers
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> copies_;        // by (server, shard), alive
  std::map<std::pair<uint64_t, uint64_t>, uint32_t> with_primary_;  // by (primary, copy's server)
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_COORDINATOR_PLACEMENT_H_
