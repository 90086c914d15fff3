// Lanes over the simulated fabric: many seeds of random load, delays, losses and faulty peers.
//
// VERBENA_SEED=S replays one seed.
#include <catch2/catch.hpp>
#include <cstdlib>

#include "rdma/failpoints.h"
#include "rdma/sim/sim_network.h"
#include "tests/rdma/lane_world.h"

namespace verbena::rdma {
namespace lane_sim_test {

LaneConfig TightConfig(Random* random) {
  LaneConfig config;
  config.small_slots = 1 + static_cast<uint32_t>(Below(random, 6));
  config.large_slots = 1 + static_cast<uint32_t>(Below(random, 3));
  config.large_slot_bytes = 4096 + 16384;
  config.operations = 1 + static_cast<uint32_t>(Below(random, 12));
  return config;
}

struct SimWorld {
  Random random;
  SimNetwork network;
  std::unique_ptr<Endpoint> workers;
  std::unique_ptr<Endpoint> shard;
  LaneWorld world;

  SimWorld(uint64_t seed, const SimFaults& faults, uint32_t lanes)
      : random(seed),
        network(seed, faults),
        workers(network.NewEndpoint("worker")),
        shard(network.NewEndpoint("shard")),
        world(workers.get(), shard.get(), TightConfig(&random), lanes, seed,
              [this] { network.Advance(network.clock().NowNanos() + 50'000); }) {}
};

uint64_t Replay() {
  const char* seed = std::getenv("VERBENA_SEED");
  return seed == nullptr ? 0 : std::strtoull(seed, nullptr, 10);
}

void ForSeeds(uint64_t count, const std::function<void(uint64_t)>& run) {
  const uint64_t replay = Replay();
  for (uint64_t seed = replay != 0 ? replay : 1; seed <= (replay != 0 ? replay : count); ++seed) {
    INFO("replay: VERBENA_SEED=" << seed);
    run(seed);
  }
}

std::vector<std::string> None() { return {}; }

TEST_CASE("sim lanes: every record is answered once, and the lane never runs dry") {
  ForSeeds(300, [](uint64_t seed) {
    SimWorld sim(seed, {}, 2);
    REQUIRE(sim.world.StepUntil([&] { return sim.world.AllOpen(); }, 0, 10000));
    const uint64_t target = 120;
    REQUIRE(sim.world.StepUntil(
        [&] {
          return sim.world.user(0).posted() >= target && sim.world.user(1).posted() >= target;
        },
        1 + seed % 8, 1'000'000));
    REQUIRE(sim.world.StepUntil([&] { return sim.world.AllAnswered(); }, 0, 100'000));
    CHECK(sim.world.Violations() == None());
    // No receive was missing and no send queue was full: either would have closed a lane.
    CHECK(sim.world.AllOpen());
    for (uint32_t i = 0; i < 2; ++i) {
      const ShardLane* lane = sim.world.server().lane(i);
      CHECK(lane->counters().records == sim.world.user(i).posted());
      CHECK(lane->counters().replies == sim.world.user(i).posted());
      CHECK(sim.world.user(i).Accounted());
    }
  });
}

TEST_CASE("sim lanes: deferred records hold operations, not slots") {
  ForSeeds(20, [](uint64_t seed) {
    SimWorld sim(seed, {}, 1);
    REQUIRE(sim.world.StepUntil([&] { return sim.world.AllOpen(); }, 0, 10000));
    LaneUser& user = sim.world.user(0);
    sim.world.server().set_answering(false);
    for (int i = 0; i < 2000; ++i) sim.world.Step(8);
    // Without answers the load stops at the operations granted, and starts again with answers.
    const uint64_t stopped_at = user.posted();
    CHECK(stopped_at > 0);
    CHECK(stopped_at <= user.lane()->ticket().config.operations);
    CHECK(user.answered() == 0);
    sim.world.server().set_answering(true);
    CHECK(sim.world.StepUntil([&] { return user.posted() > 3 * stopped_at; }, 8, 200'000));
    CHECK(sim.world.Violations() == None());
  });
}

TEST_CASE("sim lanes: a lost lane returns every resource exactly once") {
  uint64_t lost_with_records = 0;
  ForSeeds(300, [&](uint64_t seed) {
    SimFaults faults;
    faults.connection_loss = 0.01;
    SimWorld sim(seed, faults, 2);
    CHECK(sim.world.StepUntil([&] { return sim.world.AllDead(); }, 4, 1'000'000));
    CHECK(sim.world.Violations() == None());
    for (uint32_t i = 0; i < 2; ++i) {
      CHECK(sim.world.user(i).Accounted());
      CHECK_FALSE(sim.world.user(i).lane()->error().ok());
      lost_with_records += sim.world.user(i).lane()->unanswered_count() > 0 ? 1 : 0;
    }
    // Records that were waiting for an answer are answered into the void; every cookie is back.
    CHECK(sim.world.StepUntil([&] { return sim.world.server().Idle(); }, 0, 10'000));
    CHECK(sim.world.server().unreturned_cookies() == 0);
  });
  if (Replay() == 0) CHECK(lost_with_records > 100);
}

TEST_CASE("sim lanes: closing one lane leaves the others alone") {
  ForSeeds(50, [](uint64_t seed) {
    SimWorld sim(seed, {}, 3);
    REQUIRE(sim.world.StepUntil([&] { return sim.world.AllOpen(); }, 0, 10000));
    for (int i = 0; i < 50; ++i) sim.world.Step(4);
    sim.world.server().lane(1)->Close(absl::InternalError("closed by the test"));
    const uint64_t before = sim.world.user(0).answered();
    REQUIRE(sim.world.StepUntil(
        [&] {
          return sim.world.user(1).lane()->state() == WorkerLane::State::kDead &&
                 sim.world.user(0).answered() > before + 50;
        },
        4, 1'000'000));
    CHECK(sim.world.user(0).lane()->state() == WorkerLane::State::kOpen);
    CHECK(sim.world.user(2).lane()->state() == WorkerLane::State::kOpen);
    CHECK(sim.world.user(1).Accounted());
    CHECK(sim.world.Violations() == None());
  });
}

TEST_CASE("sim lanes: the failpoint of a credit that returns before its receive is detected") {
  struct Planted {
    Planted() { failpoints().reply_before_receive = true; }
    ~Planted() { failpoints().reply_before_receive = false; }
  } planted;
  bool found = false;
  for (uint64_t seed = 1; seed <= 50 && !found; ++seed) {
    SimWorld sim(seed, {}, 1);
    sim.world.StepUntil([&] { return sim.world.user(0).posted() >= 200; }, 8, 20'000);
    found = sim.world.user(0).lane()->state() != WorkerLane::State::kOpen;
  }
  CHECK(found);
}

TEST_CASE("sim lanes: the failpoint of acting on the sender's completion is detected") {
  struct Planted {
    Planted() { failpoints().act_on_send_completion = true; }
    ~Planted() { failpoints().act_on_send_completion = false; }
  } planted;
  bool found = false;
  for (uint64_t seed = 1; seed <= 50 && !found; ++seed) {
    SimWorld sim(seed, {}, 1);
    sim.world.StepUntil([&] { return sim.world.user(0).posted() >= 200; }, 8, 20'000);
    found = !sim.world.Violations().empty();
  }
  CHECK(found);
}

}  // namespace lane_sim_test
}  // namespace verbena::rdma
