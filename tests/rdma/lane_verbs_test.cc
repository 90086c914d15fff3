// Lanes over verbs, both ends in this process; needs an RDMA device.
#include <catch2/catch.hpp>

#include "rdma/memory/statistics.h"
#include "tests/rdma/lane_world.h"
#include "tests/rdma/verbs_fixture.h"

namespace verbena::rdma {
namespace {

struct VerbsWorld : LanePair {
  VerbsWorld(const LaneConfig& config, uint32_t lanes, uint64_t seed)
      : LanePair(NewTestEndpoint(), NewTestEndpoint(), config, lanes, seed) {}
};

constexpr uint64_t kSteps = kLanePairSteps;

std::vector<std::string> None() { return {}; }

TEST_CASE("verbs lanes: every record is answered once, with the configured sizes and tight ones") {
  for (const LaneConfig& config : {LaneConfig(), TightLanes()}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed, config.operations);
      VerbsWorld verbs(config, 2, seed);
      REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllOpen(); }, 0, kSteps));
      REQUIRE(verbs.world.StepUntil(
          [&] {
            return verbs.world.user(0).posted() >= 300 && verbs.world.user(1).posted() >= 300;
          },
          8, kSteps));
      REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllAnswered(); }, 0, kSteps));
      CHECK(verbs.world.Violations() == None());
      CHECK(verbs.world.AllOpen());
      CHECK(verbs.world.user(0).Accounted());
      CHECK(verbs.world.user(1).Accounted());
    }
  }
}

TEST_CASE("verbs lanes: closing either end under load returns every resource exactly once") {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    VerbsWorld verbs(LaneConfig(), 2, seed);
    REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllOpen(); }, 0, kSteps));
    for (uint64_t i = 0; i < 20 + seed; ++i) verbs.world.Step(8);
    const absl::Status reason = absl::CancelledError("closed by the test");
    verbs.world.user(0).lane()->Close(reason);
    verbs.world.server().lane(1)->Close(reason);
    REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllDead(); }, 0, kSteps));
    REQUIRE(verbs.world.StepUntil([&] { return verbs.world.server().Idle(); }, 0, kSteps));
    CHECK(verbs.world.Violations() == None());
    for (size_t i = 0; i < 2; ++i) CHECK(verbs.world.user(i).Accounted());
  }
}

uint64_t MemoryBytes() {
  uint64_t bytes = 0;
  for (const auto& entry : GetMemoryStatistics().entries) bytes += entry.bytes;
  return bytes;
}

// docs/rdma.md: a lane costs LaneConfig::shard_memory_bytes() and worker_memory_bytes(), rounded up
// to pages, out of slabs of 16 MiB.
TEST_CASE("verbs lanes: 256 at a time, and their memory") {
  const LaneConfig config = TightLanes();
  constexpr uint32_t kLanes = 256;
  const uint64_t before = MemoryBytes();
  VerbsWorld verbs(config, kLanes, 1);
  REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllOpen(); }, 0, kSteps));
  const uint64_t lanes =
      uint64_t{kLanes} * (config.shard_memory_bytes() + config.worker_memory_bytes());
  const uint64_t rounding = uint64_t{kLanes} * 4 * 4096;
  const uint64_t slabs = 2 * (uint64_t{16} << 20);
  CHECK(MemoryBytes() - before <=
        lanes + rounding + slabs + verbs.world.memory_bytes() + 4096 * (kLanes + 1));
  REQUIRE(verbs.world.StepUntil(
      [&] {
        for (uint32_t i = 0; i < kLanes; ++i) {
          if (verbs.world.user(i).posted() < 4) return false;
        }
        return true;
      },
      1, kSteps));
  REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllAnswered(); }, 0, kSteps));
  CHECK(verbs.world.Violations() == None());
  CHECK(verbs.world.AllOpen());
}

TEST_CASE("verbs lanes: 1,000 opened and closed leave nothing behind") {
  const auto kept = NewTestEndpoint();  // so that the device stays open
  const auto round = [&](uint64_t seed, int queue_pairs) {
    VerbsWorld verbs(TightLanes(), 200, seed);
    REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllOpen(); }, 0, kSteps));
    for (size_t i = 0; i < verbs.world.users(); ++i) {
      verbs.world.user(i).lane()->Close(absl::CancelledError("closed by the test"));
    }
    REQUIRE(verbs.world.StepUntil([&] { return verbs.world.AllDead(); }, 0, kSteps));
    // Also while its endpoints live on.
    CHECK(KernelObjects()["qp"] == queue_pairs);
  };
  const std::map<std::string, int> objects = KernelObjects();
  const int descriptors = OpenDescriptors();
  for (uint64_t seed = 1; seed <= 5; ++seed) round(seed, objects.at("qp"));
  CHECK(KernelObjects() == objects);
  CHECK(OpenDescriptors() == descriptors);
}

}  // namespace
}  // namespace verbena::rdma
