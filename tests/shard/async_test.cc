#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

FixtureOptions AsyncOptions() {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_ASYNC;
  return o;
}

TEST_CASE("async applies each push when it arrives, in any order of ranks") {
  Fixture f(AsyncOptions());
  CHECK(f.Push(1, 0, 1, 1).answer.version == 1);
  CHECK(f.Push(0, 0, 1, 2).answer.version == 2);
  CHECK(f.Push(1, 0, 2, 4).answer.version == 3);
  CHECK(f.Read(0) == Filled(16, -7));
}

TEST_CASE("async applies a sequence exactly once, only as last + 1") {
  Fixture f(AsyncOptions());
  CHECK(f.Push(0, 0, 2, 1).answer.status == Status::kSequenceGap);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kDuplicate);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kOk);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kDuplicate);
  CHECK(f.Push(0, 0, 3, 1).answer.status == Status::kSequenceGap);
  CHECK(f.Push(0, 0, 2, 1).answer.status == Status::kOk);
  CHECK(f.Read(0) == Filled(16, -2));
}

TEST_CASE("a sequence belongs to a worker and a partition, whatever the chunk") {
  FixtureOptions o = AsyncOptions();
  o.partitions = 2;  // chunks 0 and 2 share one
  Fixture f(o);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kOk);
  CHECK(f.Push(0, 2, 1, 1).answer.status == Status::kDuplicate);
  CHECK(f.Push(0, 2, 2, 1).answer.status == Status::kOk);
  CHECK(f.Push(0, 1, 1, 1).answer.status == Status::kOk);
  CHECK(f.Push(1, 0, 1, 1).answer.status == Status::kOk);
}

TEST_CASE("a pull that follows a push is not answered before it is applied") {
  FixtureOptions o = AsyncOptions();
  o.consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  Fixture f(o);
  const auto pull = [&](uint64_t worker, uint64_t sequence) {
    PullRequest r;
    r.worker = worker;
    r.table = kTable;
    r.group = f.GroupOf(0, sequence);
    r.dtype = ElementType::kF32;
    r.destination = 0x1000;
    r.destination_key = 0x55;
    const PullOutcome out = f.engine->Pull(r);
    if (out.kind == PullOutcome::Kind::kReady) f.engine->Unpin(out.view.pin);
    return out.kind == PullOutcome::Kind::kReady ? Status::kOk : out.answer.status;
  };
  const uint64_t first = f.job()->members(0).incarnation();
  CHECK(pull(first, 0) == Status::kOk);
  CHECK(pull(first, 1) == Status::kSequenceGap);
  REQUIRE(f.Push(0, 0, 1, 1).answer.status == Status::kOk);
  CHECK(pull(first, 1) == Status::kOk);
  CHECK(pull(first, 2) == Status::kSequenceGap);
  // Another worker's pushes do not count.
  CHECK(pull(f.job()->members(1).incarnation(), 1) == Status::kSequenceGap);
  // A refused push is over when its worker has sent an empty one.
  REQUIRE(f.Push(0, 0, 2, kNan).answer.status == Status::kNonFinite);
  CHECK(pull(first, 2) == Status::kSequenceGap);
  REQUIRE(f.Push(0, 0, 2, std::vector<float>{}).answer.status == Status::kOk);
  CHECK(pull(first, 2) == Status::kOk);
}

TEST_CASE("async mean divides by the expected workers") {
  FixtureOptions o = AsyncOptions();
  o.reduction = v1::REDUCTION_MEAN;
  o.workers = 4;
  Fixture f(o);
  f.Push(2, 0, 1, 6);
  CHECK(f.Read(0) == Filled(16, -1.5));
}

TEST_CASE(
    "regression: a refused async push is refused again, until an empty one takes its sequence") {
  Fixture f(AsyncOptions());
  // The first answer may have been lost with its lane: it is no duplicate, which would be OK.
  CHECK(f.Push(0, 0, 1, kNan).answer.status == Status::kNonFinite);
  CHECK(f.Push(0, 0, 1, kNan).answer.status == Status::kNonFinite);
  CHECK(f.Push(0, 0, 2, 1).answer.status == Status::kSequenceGap);
  CHECK(f.Push(0, 0, 1, std::vector<float>{}).answer.status == Status::kOk);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kDuplicate);
  CHECK(f.Push(0, 0, 2, std::vector<float>{}).answer.status == Status::kOk);
  CHECK(f.Version(0) == 0);
  CHECK(f.Push(0, 0, 3, 1).answer.version == 1);
}

TEST_CASE("an async end-step takes a sequence") {
  Fixture f(AsyncOptions());
  f.Push(0, 0, 1, 1);
  CHECK(f.EndStep(0, 0, 3, 0).answer.status == Status::kSequenceGap);
  CHECK(f.EndStep(0, 0, 2, 1).answer.status == Status::kOk);
  CHECK(f.EndStep(0, 0, 2, 1).group_status[0] == Status::kDuplicate);
  CHECK(f.Push(0, 0, 3, 1).answer.status == Status::kOk);
}

TEST_CASE("async: workers may join late, and departures stop no worker") {
  Fixture f(AsyncOptions());
  f.Push(0, 0, 1, 1);
  f.Depart(0);
  f.Join(kFirstWorker + 5, 5);
  REQUIRE(f.Apply().ok());
  CHECK(f.Push(0, 0, 2, 1).answer.status == Status::kExpired);
  CHECK(f.Push(1, 0, 1, 1).answer.status == Status::kOk);
  CHECK(f.Push(5, 0, 1, 1).answer.status == Status::kOk);  // a new worker starts at 1
  CHECK(f.Push(5, 0, 1, 1).answer.status == Status::kDuplicate);
  CHECK(f.Read(0) == Filled(16, -3));
}

TEST_CASE("an observer does not push to an async table") {
  FixtureOptions o = AsyncOptions();
  o.observers = 1;
  Fixture f(o);
  CHECK(f.engine->Push(f.PushOf(2000, 0, 1, Filled(16, 1), 5)).answer.status ==
        Status::kPermissionDenied);
  Group g = f.GroupOf(0, 1);
  CHECK(f.engine->EndStep({{0, 0, 0}, 2000, kTable, {&g, 1}, 0}).answer.status ==
        Status::kPermissionDenied);
  CHECK(f.Version(0) == 0);
}

TEST_CASE("sequences start again with a generation") {
  Fixture f(AsyncOptions());
  f.Push(0, 0, 1, 1);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.Version(0) == 0);
  CHECK(f.Push(0, 0, 1, 1).answer.version == 1);
  CHECK(f.Read(0) == Filled(16, -2));
}

struct Blocked : Fixture {
  static FixtureOptions Options() {
    FixtureOptions o = AsyncOptions();
    o.partitions = 1;
    o.spares = 0;
    return o;
  }
  Blocked() : Fixture(Options()) { pin = Pull(kFirstWorker, 0, 0).view.pin; }
  std::vector<std::pair<uint32_t, Status>> Done() {
    std::vector<std::pair<uint32_t, Status>> done;
    for (const Event& e : Events()) {
      REQUIRE(e.kind == Event::Kind::kPushDone);
      done.emplace_back(e.token.operation, e.answer.status);
    }
    return done;
  }
  uint64_t pin;
};

TEST_CASE_METHOD(Blocked, "pushes behind one that waits for a buffer keep their order") {
  CHECK(Push(0, 0, 1, Filled(16, 1), 1).held);
  CHECK(Push(0, 1, 2, Filled(16, 2), 2).held);  // same worker, free chunk: behind it
  CHECK(Push(1, 0, 1, Filled(16, 4), 3).held);  // other worker, same chunk
  CHECK(Push(1, 1, 2, Filled(16, kNan), 4).answer.status == Status::kNonFinite);
  CHECK(Push(0, 0, 2, Filled(16, 9), 5).answer.status == Status::kSequenceGap);
  CHECK(EndStep(0, 0, 3, 0).answer.status == Status::kTooEarly);
  CHECK(engine->counters().spare_exhausted == 1);
  CHECK(Done().empty());
  CHECK(Read(1) == Filled(16, 0));
  engine->Unpin(pin);
  CHECK(Done() == std::vector<std::pair<uint32_t, Status>>{
                      {1, Status::kOk}, {2, Status::kOk}, {3, Status::kOk}});
  CHECK(Read(0) == Filled(16, -5));
  CHECK(Read(1) == Filled(16, -2));
  CHECK(EndStep(0, 0, 3, 0).answer.status == Status::kOk);
}

TEST_CASE_METHOD(Blocked, "what is forgotten with its lane was not applied and is sent again") {
  CHECK(Push(0, 0, 1, Filled(16, 1), 1).held);
  CHECK(Push(1, 0, 1, Filled(16, 4), 2).held);
  CHECK(Push(0, 1, 2, Filled(16, 2), 3).held);
  engine->ForgetLane(0);
  engine->Unpin(pin);
  CHECK(Done() == std::vector<std::pair<uint32_t, Status>>{{2, Status::kOk}});
  CHECK(Push(0, 0, 1, 1).answer.status == Status::kOk);
  CHECK(Push(0, 1, 2, 2).answer.status == Status::kOk);
  CHECK(Read(0) == Filled(16, -5));
  CHECK(Read(1) == Filled(16, -2));
}

TEST_CASE_METHOD(Blocked, "forgetting the lane in front lets the others go on") {
  CHECK(Push(0, 0, 1, Filled(16, 1), 1).held);
  CHECK(Push(1, 1, 1, Filled(16, 4), 2).held);  // chunk 1 is free
  engine->ForgetLane(0);
  CHECK(Done() == std::vector<std::pair<uint32_t, Status>>{{2, Status::kOk}});
  CHECK(Read(1) == Filled(16, -4));
}

TEST_CASE_METHOD(Blocked, "a departed worker's queued push is dropped and says so") {
  CHECK(Push(0, 0, 1, Filled(16, 1), 1).held);
  CHECK(Push(1, 0, 1, Filled(16, 4), 2).held);
  Depart(0);
  engine->Unpin(pin);
  CHECK(Done() ==
        std::vector<std::pair<uint32_t, Status>>{{1, Status::kExpired}, {2, Status::kOk}});
  CHECK(Read(0).empty() == false);
  CHECK(Read(0) == Filled(16, -4));
}

}  // namespace
}  // namespace verbena::shard
