// Lanes over ofi, both ends in this process.
#include <catch2/catch.hpp>

#include "tests/rdma/lane_world.h"
#include "tests/rdma/ofi_fixture.h"

namespace verbena::rdma {
namespace {

struct OfiWorld : LanePair {
  OfiWorld(const LaneConfig& config, uint32_t lanes, uint64_t seed)
      : LanePair(NewTestOfiEndpoint(), NewTestOfiEndpoint(), config, lanes, seed) {}
};

constexpr uint64_t kSteps = kLanePairSteps;

std::vector<std::string> None() { return {}; }

TEST_CASE("ofi lanes: every record is answered once, with the configured sizes and tight ones") {
  for (const LaneConfig& config : {LaneConfig(), TightLanes()}) {
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed, config.operations);
      OfiWorld ofi(config, 2, seed);
      REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllOpen(); }, 0, kSteps));
      REQUIRE(ofi.world.StepUntil(
          [&] { return ofi.world.user(0).posted() >= 500 && ofi.world.user(1).posted() >= 500; }, 8,
          kSteps));
      REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllAnswered(); }, 0, kSteps));
      CHECK(ofi.world.Violations() == None());
      CHECK(ofi.world.AllOpen());
      CHECK(ofi.world.user(0).Accounted());
      CHECK(ofi.world.user(1).Accounted());
    }
  }
}

TEST_CASE("ofi lanes: closing either end under load returns every resource exactly once") {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    OfiWorld ofi(LaneConfig(), 2, seed);
    REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllOpen(); }, 0, kSteps));
    for (uint64_t i = 0; i < 20 + seed; ++i) ofi.world.Step(8);
    const absl::Status reason = absl::CancelledError("closed by the test");
    ofi.world.user(0).lane()->Close(reason);
    ofi.world.server().lane(1)->Close(reason);
    REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllDead(); }, 0, kSteps));
    REQUIRE(ofi.world.StepUntil([&] { return ofi.world.server().Idle(); }, 0, kSteps));
    CHECK(ofi.world.Violations() == None());
    for (size_t i = 0; i < 2; ++i) CHECK(ofi.world.user(i).Accounted());
    CHECK(ofi.world.user(0).lane()->error() == reason);
    CHECK(ofi.world.server().lane(1)->error() == reason);
  }
}

TEST_CASE("ofi lanes: 64 at a time") {
  constexpr uint32_t kLanes = 64;
  OfiWorld ofi(TightLanes(), kLanes, 1);
  REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllOpen(); }, 0, kSteps));
  REQUIRE(ofi.world.StepUntil(
      [&] {
        for (uint32_t i = 0; i < kLanes; ++i) {
          if (ofi.world.user(i).posted() < 4) return false;
        }
        return true;
      },
      1, kSteps));
  REQUIRE(ofi.world.StepUntil([&] { return ofi.world.AllAnswered(); }, 0, kSteps));
  CHECK(ofi.world.Violations() == None());
  CHECK(ofi.world.AllOpen());
}

}  // namespace
}  // namespace verbena::rdma
