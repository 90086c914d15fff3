// Training survives faults: invariants over many seeds, and failpoints that they find.
// Seeds: seeds.h.
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "client/core/failpoints.h"
#include "rdma/failpoints.h"
#include "rdma/sim/sim_network.h"
#include "server/coordinator/failpoints.h"
#include "shard/failpoints.h"
#include "tests/cluster/scenario_runs.h"

namespace verbena::test {
namespace {

TEST_CASE("sync training without faults") {
  ScenarioOptions options;
  options.connection_loss = options.connect_failure = options.control_loss = 0;
  options.death_delay_ns = 0;
  options.crashes = options.stalls = options.coordinator_restarts = options.hangs = false;
  options.partitions = false;
  const Totals totals = RunSeeds("sync training without faults", options, 50);
  CHECK(totals.commits > 0);
}

TEST_CASE("sync training under faults") {
  const Totals totals = RunSeeds("sync training under faults", ScenarioOptions(), 600);
  CHECK(totals.commits > 0);
  if (!SeedsToRun(1).replay) {
    // The faults did happen, and operations did run into their deadlines.
    CHECK(totals.crashed > 0);
    CHECK(totals.stalled > 0);
    CHECK(totals.hung > 0);
    CHECK(totals.partitioned > 0);
    CHECK(totals.resumed > 0);
  }
}

TEST_CASE("async training under faults") {
  ScenarioOptions options;
  options.consistency = v1::CONSISTENCY_ASYNC;
  options.steps = 12;
  const Totals totals = RunSeeds("async training under faults", options, 600);
  CHECK(totals.commits + totals.crashed + totals.stalled > 0);
}

ScenarioOptions SspOptions(uint32_t staleness) {
  ScenarioOptions options;
  options.consistency = v1::CONSISTENCY_SSP;
  options.staleness = staleness;
  options.steps = 12;
  options.joins = true;
  return options;
}

TEST_CASE("ssp training under faults, with workers that come and go") {
  const uint32_t staleness = GENERATE(0u, 2u);
  const Totals totals = RunSeeds("ssp training*", SspOptions(staleness), 500);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.stalled > 0);
    CHECK(totals.joined > 0);
  }
}

// Workers join a run, leave it after a step, or are killed; each step has the same workers on all
// servers, of which a mean divides by the number.
ScenarioOptions ElasticOptions() {
  ScenarioOptions options;
  options.elastic = options.joins = options.mean = true;
  options.steps = 25;
  return options;
}

TEST_CASE("sync training under faults, with workers that join, leave and are replaced") {
  ScenarioOptions options = ElasticOptions();
  options.replicas = GENERATE(1u, 2u);
  options.keys = GENERATE(0u, 60u);
  const Totals totals = RunSeeds("sync training under faults, with workers*", options, 300);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.admitted > 0);
    CHECK(totals.left > 0);
  }
}

// Keys of an embedding table instead of chunks of a dense one: each step's push and pull are one
// record a lane, whose groups are accepted, refused and sent again each for itself.
TEST_CASE("rows of an embedding table under faults") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  ScenarioOptions options;
  if (consistency == v1::CONSISTENCY_SSP) options = SspOptions(2);
  options.consistency = consistency;
  options.keys = 60;
  const Totals totals = RunSeeds("rows of an embedding table under faults", options, 400);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.stalled > 0);
    CHECK(totals.resumed > 0);
  }
}

// Two lanes to each shard, which stall, die and come back: pinned operations move to the other one.
TEST_CASE("rails under faults") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const uint32_t keys = GENERATE(0u, 60u);
  ScenarioOptions options;
  if (consistency == v1::CONSISTENCY_SSP) options = SspOptions(2);
  options.consistency = consistency;
  options.keys = keys;
  options.rails = 2;
  const Totals totals = RunSeeds("rails under faults", options, 200);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.rails_cut > 0);
    CHECK(totals.rails_stalled > 0);
    CHECK(totals.rail_moves > 0);
    CHECK(totals.crashed > 0);
    CHECK(totals.resumed > 0);
  }
}

TEST_CASE("a table of 16 bits under faults") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  ScenarioOptions options;
  options.consistency = consistency;
  options.narrow = true;
  options.elements *= 2;
  const Totals totals = RunSeeds("a table of 16 bits under faults", options, 300);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.resumed > 0);
  }
}

TEST_CASE("encoded gradients under faults: a repeated push sends its first encoding") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  ScenarioOptions options;
  options.consistency = consistency;
  if (consistency == v1::CONSISTENCY_SSP) options.staleness = 2;
  options.push_codec = v1::CODEC_BF16;
  const Totals totals = RunSeeds("encoded gradients under faults", options, 150);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.resumed > 0);
  }
}

// Sync alone: only its values are small enough to be exact in f16.
TEST_CASE("encoded parameters under faults: any server answers a pull with its step's values") {
  ScenarioOptions options;
  options.pull_codec = v1::CODEC_F16;
  options.push_codec = v1::CODEC_BF16;
  options.replicas = GENERATE(1u, 2u);
  const Totals totals = RunSeeds("encoded parameters under faults", options, 100);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.resumed > 0);
    if (options.replicas == 2) CHECK(totals.servers_killed > 0);
  }
}

// Rows have small whole numbers here: nothing is lost on their way.
TEST_CASE("encoded rows under faults: as without codecs, pushed and looked up") {
  ScenarioOptions options;
  options.keys = 40;
  options.pull_codec = v1::CODEC_F16;
  options.push_codec = v1::CODEC_BF16;
  options.replicas = GENERATE(1u, 2u);
  const Totals totals = RunSeeds("encoded rows under faults", options, 100);
  if (!SeedsToRun(1).replay) {
    CHECK(totals.crashed > 0);
    CHECK(totals.resumed > 0);
    if (options.replicas == 2) CHECK(totals.servers_killed > 0);
  }
}

TEST_CASE(
    "with one worker five times slower, ssp is as stale as it may be, and between the others") {
  ScenarioOptions options = SspOptions(3);
  options.connection_loss = options.connect_failure = options.control_loss = 0;
  options.death_delay_ns = 0;
  options.crashes = options.stalls = options.coordinator_restarts = false;
  options.joins = options.hangs = options.partitions = false;
  options.drift_ppm = 0;
  options.step_ns = 20 * kMilli;
  options.slow_factor = 5;
  const ScenarioResult ssp = RunScenario(options);
  CHECK(ssp.violations == std::vector<std::string>{});
  CHECK(ssp.staleness[3] > 0);
  CHECK(std::accumulate(ssp.staleness.begin() + 4, ssp.staleness.end(), uint64_t{0}) == 0);
  options.staleness = 0;
  options.consistency = v1::CONSISTENCY_ASYNC;
  const ScenarioResult async = RunScenario(options);
  options.consistency = v1::CONSISTENCY_SYNC;
  const ScenarioResult sync = RunScenario(options);
  const auto took = [](const ScenarioResult& r) { return r.fast_ns - r.started_ns; };
  // Virtual time: the same on every machine.
  std::printf("12 steps of the fast workers: async %.0f ms, ssp(3) %.0f ms, sync %.0f ms\n",
              took(async) * 1e-6, took(ssp) * 1e-6, took(sync) * 1e-6);
  CHECK(took(async) < took(ssp));
  CHECK(took(ssp) < took(sync));
}

TEST_CASE("failpoint: act on the sender's completion") {
  Planted failpoint(&rdma::failpoints().act_on_send_completion);
  CHECK_FALSE(FirstFinding(ScenarioOptions(), 300).empty());
}

TEST_CASE("failpoint: hand the buffer back at the deadline without closing the lane") {
  Planted failpoint(&client::failpoints().release_buffer_at_deadline);
  CHECK_FALSE(FirstFinding(ScenarioOptions(), 300).empty());
}

TEST_CASE("failpoint: send records again before their old lane is dead") {
  Planted failpoint(&rdma::failpoints().replay_before_dead);
  ScenarioOptions options;
  options.consistency = v1::CONSISTENCY_ASYNC;
  options.connection_loss = 0.03;
  // A write that the old lane has in flight lands in a buffer that the new lane's answer released.
  CHECK_THAT(FirstFinding(options, 300), Catch::Contains("settled buffer"));
}

TEST_CASE("failpoint: send records again on another rail before the lane of theirs is dead") {
  Planted failpoint(&rdma::failpoints().replay_before_dead);
  ScenarioOptions options;
  options.rails = 2;
  options.connection_loss = 0.03;
  CHECK_THAT(FirstFinding(options, 300), Catch::Contains("settled buffer"));
}

TEST_CASE("failpoint: answer a pull before the push that it names") {
  Planted failpoint(&shard::failpoints().pull_early);
  ScenarioOptions options;
  options.consistency = v1::CONSISTENCY_ASYNC;
  CHECK_THAT(FirstFinding(options, 300), Catch::Contains("had been acknowledged"));
}

TEST_CASE("failpoint: a worker that joins a run counts in a step that is perhaps open") {
  Planted failpoint(&server::failpoints().join_open_step);
  CHECK_FALSE(FirstFinding(ElasticOptions(), 100).empty());
}

TEST_CASE("failpoint: a worker gets a rank whose steps are not over") {
  Planted failpoint(&server::failpoints().reuse_ranks);
  CHECK_FALSE(FirstFinding(ElasticOptions(), 100).empty());
}

TEST_CASE("failpoint: a shard commits a step without a worker of which its view does not know") {
  Planted failpoint(&shard::failpoints().ignore_admission);
  // A worker that is left out of its first step waits for it, and others for the worker.
  CHECK_THAT(FirstFinding(ElasticOptions(), 300),
             Catch::Contains("without worker") || Catch::Contains("did not go on"));
}

TEST_CASE("failpoint: a worker goes on while it is decided which steps others join") {
  Planted failpoint(&client::failpoints().hold_no_steps);
  CHECK_THAT(FirstFinding(ElasticOptions(), 300), Catch::Contains("without worker"));
}

TEST_CASE("failpoint: return a reply or a credit before the receive is reposted") {
  Planted failpoint(&rdma::failpoints().reply_before_receive);
  CHECK_FALSE(FirstFinding(ScenarioOptions(), 300).empty());
}

TEST_CASE("failpoint: never ask whether a quiet lane's server is still there") {
  Planted failpoint(&rdma::failpoints().never_probe);
  ScenarioOptions options;
  options.connection_loss = 0.01;
  options.missed_loss = 0.9;
  CHECK_THAT(FirstFinding(options, 300), Catch::Contains("did not go on"));
}

TEST_CASE("failpoint: wait for a write that does not end") {
  Planted failpoint(&rdma::failpoints().trust_writes);
  CHECK_THAT(FirstFinding(ScenarioOptions(), 300), Catch::Contains("did not go on"));
}

}  // namespace
}  // namespace verbena::test
