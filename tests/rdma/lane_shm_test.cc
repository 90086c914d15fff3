// Lanes over shared memory, both ends in this process.
#include <catch2/catch.hpp>

#include "rdma/shm/shm_endpoint.h"
#include "tests/rdma/lane_world.h"

namespace verbena::rdma {
namespace lane_shm_test {

struct ShmWorld : LanePair {
  ShmWorld(const LaneConfig& config, uint32_t lanes, uint64_t seed)
      : LanePair(*NewShmEndpoint(), *NewShmEndpoint(), config, lanes, seed) {}
};

constexpr uint64_t kSteps = kLanePairSteps;

std::vector<std::string> None() { return {}; }

TEST_CASE("shm lanes: every record is answered once, with the configured sizes and tight ones") {
  for (const LaneConfig& config : {LaneConfig(), TightLanes()}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed, config.operations);
      ShmWorld shm(config, 2, seed);
      REQUIRE(shm.world.StepUntil([&] { return shm.world.AllOpen(); }, 0, kSteps));
      REQUIRE(shm.world.StepUntil(
          [&] { return shm.world.user(0).posted() >= 2000 && shm.world.user(1).posted() >= 2000; },
          8, kSteps));
      REQUIRE(shm.world.StepUntil([&] { return shm.world.AllAnswered(); }, 0, kSteps));
      CHECK(shm.world.Violations() == None());
      CHECK(shm.world.AllOpen());
      CHECK(shm.world.user(0).Accounted());
      CHECK(shm.world.user(1).Accounted());
    }
  }
}

TEST_CASE("shm lanes: closing either end under load returns every resource exactly once") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    ShmWorld shm(LaneConfig(), 2, seed);
    REQUIRE(shm.world.StepUntil([&] { return shm.world.AllOpen(); }, 0, kSteps));
    for (uint64_t i = 0; i < 20 + seed; ++i) shm.world.Step(8);
    const absl::Status reason = absl::CancelledError("closed by the test");
    shm.world.user(0).lane()->Close(reason);
    shm.world.server().lane(1)->Close(reason);
    REQUIRE(shm.world.StepUntil([&] { return shm.world.AllDead(); }, 0, kSteps));
    REQUIRE(shm.world.StepUntil([&] { return shm.world.server().Idle(); }, 0, kSteps));
    CHECK(shm.world.Violations() == None());
    for (size_t i = 0; i < 2; ++i) CHECK(shm.world.user(i).Accounted());
    CHECK(shm.world.user(0).lane()->error() == reason);
    CHECK(shm.world.server().lane(1)->error() == reason);
  }
}

TEST_CASE("shm lanes: large payloads are read in place, small ones are copied") {
  ShmWorld shm(LaneConfig(), 1, 7);
  REQUIRE(shm.world.StepUntil([&] { return shm.world.AllOpen(); }, 0, kSteps));
  REQUIRE(shm.world.StepUntil([&] { return shm.world.user(0).posted() >= 2000; }, 8, kSteps));
  REQUIRE(shm.world.StepUntil([&] { return shm.world.AllAnswered(); }, 0, kSteps));
  CHECK(shm.world.Violations() == None());
  const WorkerLaneCounters& sent = shm.world.user(0).lane()->counters();
  const ShardLaneCounters& read = shm.world.server().lane(0)->counters();
  CHECK(sent.referenced_bytes > 0);
  CHECK(sent.referenced_bytes < sent.payload_bytes);
  CHECK(read.borrowed_bytes == sent.referenced_bytes);
  CHECK(read.payload_bytes == sent.payload_bytes);
}

TEST_CASE("shm lanes: a worker whose reference is outside its shared memory loses only its lane") {
  ShmWorld shm(LaneConfig(), 2, 9);
  REQUIRE(shm.world.StepUntil([&] { return shm.world.AllOpen(); }, 0, kSteps));
  const auto block = MemoryBlock::Allocate(65536, "test").value();
  WorkerLane* const lane = shm.world.user(0).lane();
  RemoteMemory memory = lane->Refer(block, block->data(), 65536).value();
  SECTION("beyond its end") { memory.address += 4; }
  SECTION("before its beginning") { memory.address -= 4; }
  SECTION("far away") { memory.address = ~uint64_t{0} - 8; }
  SECTION("in no memory") { memory.key += 1000; }
  WorkerLane::Request request;
  request.header.type = RecordType::kPush;
  request.header.dtype = ElementType::kF32;
  const Group group = {0, 0, 0, 1, 65536 / 4, 0};
  request.groups = absl::MakeConstSpan(&group, 1);
  request.payload = {block->data(), 65536, block.get()};
  request.reference = memory;
  REQUIRE(lane->Post(request).ok());
  REQUIRE(shm.world.StepUntil(
      [&] { return shm.world.server().lane(0)->state() == ShardLane::State::kDead; }, 0, kSteps));
  CHECK(std::string(shm.world.server().lane(0)->error().message())
            .find("outside the memory the peer exposed") != std::string::npos);
  CHECK(shm.world.user(1).lane()->state() == WorkerLane::State::kOpen);
  REQUIRE(shm.world.StepUntil([&] { return shm.world.user(1).answered() > 100; }, 8, kSteps));
}

}  // namespace lane_shm_test
}  // namespace verbena::rdma
