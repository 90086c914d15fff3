// Requests of a dead lane and their resends on another one, in both orders (engine.h, invariant 9).
// Rank r's lanes are r, which the shard takes for alive, and r + 10.
#include <catch2/catch.hpp>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

constexpr uint32_t kOther = 10;

// A table of one chunk.
FixtureOptions Options(uint32_t workers, v1::Consistency consistency, uint32_t spares = 16) {
  FixtureOptions options;
  options.workers = workers;
  options.partitions = options.chunks = 1;
  options.consistency = consistency;
  options.spares = spares;
  return options;
}

struct LanesFixture : Fixture {
  using Fixture::Fixture;
  PushOutcome PushOn(uint32_t lane, uint32_t rank, uint64_t sequence,
                     const std::vector<float>& values) {
    return engine->Push(PushOf(kFirstWorker + rank, 0, sequence, values, lane));
  }
};

TEST_CASE("async: a push that comes on two lanes is applied once and in order") {
  LanesFixture f(Options(1, v1::CONSISTENCY_ASYNC));
  const std::vector<float> one = Filled(16, 1);
  CHECK(f.PushOn(0, 0, 1, one).answer.status == ReplyStatus::kOk);
  SECTION("the push on the old lane is first") {
    CHECK(f.PushOn(0, 0, 2, one).answer.status == ReplyStatus::kOk);
    CHECK(f.PushOn(kOther, 0, 2, one).answer.status == ReplyStatus::kDuplicate);
  }
  SECTION("the resend is first") {
    CHECK(f.PushOn(kOther, 0, 2, one).answer.status == ReplyStatus::kOk);
    CHECK(f.PushOn(0, 0, 2, one).answer.status == ReplyStatus::kDuplicate);
  }
  SECTION("the resend is empty and first: the old push is ignored") {
    CHECK(f.PushOn(kOther, 0, 2, {}).answer.status == ReplyStatus::kOk);
    CHECK(f.PushOn(0, 0, 2, one).answer.status == ReplyStatus::kDuplicate);
    CHECK(f.Read(0) == Filled(16, -1));
    return;
  }
  CHECK(f.PushOn(kOther, 0, 4, one).answer.status == ReplyStatus::kSequenceGap);
  CHECK(f.Read(0) == Filled(16, -2));
}

TEST_CASE("async: a push queued on the old lane is neither settled nor overtaken") {
  LanesFixture f(Options(1, v1::CONSISTENCY_ASYNC, 0));
  const std::vector<float> one = Filled(16, 1);
  const PullOutcome pinned = f.Pull(kFirstWorker, 0, 0);
  REQUIRE(pinned.kind == PullOutcome::Kind::kReady);
  CHECK(f.PushOn(0, 0, 1, one).held);
  CHECK(f.PushOn(kOther, 0, 1, one).answer.status == ReplyStatus::kSequenceGap);
  SECTION("its lane closes: the other push is applied") {
    f.engine->ForgetLane(0);
    f.engine->Unpin(pinned.view.pin);
    CHECK(f.PushOn(kOther, 0, 1, one).answer.status == ReplyStatus::kOk);
  }
  SECTION("it is applied: the other push is a duplicate") {
    f.engine->Unpin(pinned.view.pin);
    CHECK(f.Events().size() == 1);
    CHECK(f.PushOn(kOther, 0, 1, one).answer.status == ReplyStatus::kDuplicate);
  }
  CHECK(f.Read(0) == Filled(16, -1));
}

TEST_CASE("sync: a contribution held on the old lane excludes others until that lane closes") {
  LanesFixture f(Options(2, v1::CONSISTENCY_SYNC));
  const std::vector<float> one = Filled(16, 1), two = Filled(16, 2);
  CHECK(f.PushOn(1, 1, 0, two).held);
  CHECK(f.PushOn(1 + kOther, 1, 0, two).answer.status == ReplyStatus::kWrongStep);
  SECTION("the step commits with it") {
    CHECK(f.PushOn(0, 0, 0, one).answer.status == ReplyStatus::kOk);
    CHECK(f.Read(0) == Filled(16, -3));
    CHECK(f.PushOn(1 + kOther, 1, 0, two).answer.status == ReplyStatus::kDuplicate);
  }
  SECTION("its lane closes, and the resend replaces it") {
    f.engine->ForgetLane(1);
    CHECK(f.PushOn(1 + kOther, 1, 0, two).held);
    CHECK(f.PushOn(0, 0, 0, one).answer.status == ReplyStatus::kOk);
    CHECK(f.Read(0) == Filled(16, -3));
  }
  SECTION("its lane closes, and the resend is empty") {
    f.engine->ForgetLane(1);
    CHECK(f.PushOn(1 + kOther, 1, 0, {}).answer.status == ReplyStatus::kOk);
    // Still in progress on another dead lane.
    CHECK(f.PushOn(1 + 2 * kOther, 1, 0, two).answer.status == ReplyStatus::kDuplicate);
    CHECK(f.PushOn(0, 0, 0, one).answer.status == ReplyStatus::kOk);
    CHECK(f.Read(0) == Filled(16, -1));
  }
  CHECK(f.Version(0) == 1);
}

TEST_CASE("sync: an end-step on two lanes counts once, in either order") {
  LanesFixture f(Options(2, v1::CONSISTENCY_SYNC));
  const std::vector<float> one = Filled(16, 1);
  CHECK(f.PushOn(kOther, 0, 0, one).answer.status == ReplyStatus::kOk);
  CHECK(f.EndStep(0, 0, 0, 1).group_status[0] == ReplyStatus::kOk);
  CHECK(f.EndStep(0, 0, 0, 1).group_status[0] == ReplyStatus::kOk);
  CHECK(f.PushOn(0, 0, 0, one).answer.status == ReplyStatus::kDuplicate);
  CHECK(f.EndStep(1, 0, 0, 0).group_status[0] == ReplyStatus::kOk);
  CHECK(f.Read(0) == Filled(16, -1));
  CHECK(f.EndStep(0, 0, 0, 1).group_status[0] == ReplyStatus::kDuplicate);
}

}  // namespace
}  // namespace verbena::shard
