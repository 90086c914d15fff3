// The plan of `verbena rebalance` as text: shares, limits, primaries, moves in progress.
#include <catch2/catch.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "server/cli/verbena/rebalance_command.h"
#include "tests/server/cli_states.h"

namespace verbena::cli {
namespace {

using Catch::Matchers::Contains;

// Partitions of 1 MiB.
ClusterState Filled() {
  ClusterState state = Healthy();
  for (int server = 0; server < 2; ++server) {
    v1::ShardStatistics* const shard = Shard(&state, server, 0);
    shard->set_memory_limit_bytes(server == 0 ? 1ULL << 30 : 3ULL << 30);
    for (const v1::Partition& p : state.view.partitions()) {
      if (p.primary() != state.servers[static_cast<size_t>(server)].server.incarnation()) continue;
      v1::PartitionStatistics* const held = shard->add_partitions();
      held->set_partition(p.id());
      held->set_bytes(1 << 20);
    }
  }
  return state;
}

std::string TextOf(const ClusterState& state) {
  const absl::StatusOr<server::BalancePlan> plan = PlanFor(state);
  INFO(plan.status());
  REQUIRE(plan.ok());
  return PlanText(*plan, state);
}

TEST_CASE("rebalance: the plan has each server's limit, part of its share, and primaries") {
  const std::string text = TextOf(Filled());
  CHECK_THAT(text, Contains("LIMIT") && Contains("OF SHARE") && Contains("PRIMARIES"));
  // A quarter and three quarters of four partitions are due.
  CHECK_THAT(text, Contains("1.1 GB  2.1 MB   200.0 %  1.0 MB   100.0 %          2"));
  CHECK_THAT(text, Contains("3.2 GB  2.1 MB    66.7 %  3.1 MB   100.0 %          2"));
  CHECK_THAT(text, !Contains("in progress"));
}

TEST_CASE("regression: rebalance: during moves the plan begins where they end") {
  ClusterState state = Filled();
  state.view.mutable_partitions(0)->set_move_to(6);
  const std::string text = TextOf(state);
  CHECK_THAT(text, Contains("moves of 1 partition are in progress"));
  CHECK_THAT(text, Contains("balanced: ") && Contains("nothing to move"));
}

TEST_CASE("regression: rebalance: a memory limit that holds no partition gives no share") {
  ClusterState state = Filled();
  state.servers.push_back(Answering(7, "s7", 1, 10));
  *state.view.add_servers() = state.servers.back().server;
  Shard(&state, 2, 0)->set_memory_limit_bytes(1 << 20);
  const std::string text = TextOf(state);
  CHECK_THAT(text, Contains("server 's7' is left out: its memory limit holds no partition"));
  CHECK_THAT(text, Contains("then by 0.0 %"));
}

}  // namespace
}  // namespace verbena::cli
