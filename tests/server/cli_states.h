// Cluster states as the operator's program reads them.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_SERVER_CLI_STATES_H_
#define VERBENA_TESTS_SERVER_CLI_STATES_H_

#include <string>

#include "server/cli/verbena/cluster_state.h"

namespace verbena::cli {

inline ServerState Answering(uint64_t incarnation, const std::string& name, int shards,
                             double read_at) {
  ServerState state;
  state.server.set_incarnation(incarnation);
  state.server.set_name(name);
  state.server.set_address(name + ":1");
  state.server.set_shards(shards);
  state.server.set_state(v1::Server::ALIVE);
  v1::GetStatisticsResponse statistics;
  statistics.set_incarnation(incarnation);
  for (int i = 0; i < shards; ++i) statistics.add_shards()->set_shard(i);
  state.statistics = statistics;
  state.read_at = read_at;
  return state;
}

// Two servers of two shards, four partitions, nothing wrong.
inline ClusterState Healthy(double read_at = 10) {
  ClusterState state;
  state.coordinator = "c:7000";
  state.time = absl::UnixEpoch();
  state.read_at = read_at;
  state.view.set_cluster_id("id");
  state.view.set_expected_servers(2);
  for (uint64_t incarnation : {5, 6}) {
    state.servers.push_back(Answering(incarnation, "s" + std::to_string(incarnation), 2, read_at));
    *state.view.add_servers() = state.servers.back().server;
  }
  for (uint32_t i = 0; i < 4; ++i) {
    v1::Partition* partition = state.view.add_partitions();
    partition->set_id(i);
    partition->set_primary(i < 2 ? 5 : 6);
    partition->set_shard(i % 2);
  }
  return state;
}

inline v1::ShardStatistics* Shard(ClusterState* state, int server, int shard) {
  return state->servers[static_cast<size_t>(server)].statistics->mutable_shards(shard);
}

}  // namespace verbena::cli

#endif  // VERBENA_TESTS_SERVER_CLI_STATES_H_
