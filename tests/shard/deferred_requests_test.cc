#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace parking_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

TEST_CASE("a pull of a later version is deferred and answered by the commit, in order") {
  Fixture f({});
  CHECK(f.Pull(kFirstWorker, 0, 1, 0, 1).kind == Kind::kDeferred);
  CHECK(f.Pull(kFirstWorker + 1, 0, 2, 1, 2).kind == Kind::kDeferred);
  CHECK(f.Pull(kFirstWorker + 1, 0, 1, 1, 3).kind == Kind::kDeferred);
  CHECK(f.engine->counters().deferred == 3);
  f.Push(0, 0, 0, 1);
  CHECK(f.Events().empty());
  f.Push(1, 0, 0, 1);
  std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].token.operation == 1);
  CHECK(events[1].token.operation == 3);
  for (const Event& e : events) {
    CHECK(e.kind == Event::Kind::kPullReady);
    CHECK(e.answer.status == Status::kOk);
    CHECK(e.answer.version == 1);
    CHECK(e.view.version == 1);
    CHECK(e.destination == 0x1000 + e.token.operation);
    CHECK(e.destination_key == 0x55);
    CHECK(Fixture::Values(e.view) == Filled(16, -2));
    f.engine->Unpin(e.view.pin);
  }
  f.Push(0, 0, 1, 1);
  f.Push(1, 0, 1, 1);
  events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].token.operation == 2);
  CHECK(events[0].view.version == 2);
  CHECK(f.engine->counters().deferred == 0);
  CHECK(f.engine->counters().pulls == 3);
  CHECK(f.engine->counters().pull_bytes == 3 * 64);
}

TEST_CASE("an async pull waits for a number of applies") {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_ASYNC;
  Fixture f(o);
  CHECK(f.Pull(kFirstWorker, 0, 2).kind == Kind::kDeferred);
  f.Push(0, 0, 1, 1);
  CHECK(f.Events().empty());
  f.Push(1, 0, 1, 1);
  CHECK(f.Events().size() == 1);
  CHECK(f.Await(kFirstWorker, {0, 1, 2, 3}, 99).group_status.size() == 4);  // done at once
}

TEST_CASE("an await is done when every partition it lists is at the version") {
  Fixture f({});
  CHECK_FALSE(f.Await(kFirstWorker, {0, 1}, 0).deferred);
  CHECK(f.Await(kFirstWorker, {0, 1}, 1, 0, 8).deferred);
  f.Push(0, 1, 0, 1);
  f.Push(1, 1, 0, 1);
  CHECK(f.Events().empty());
  const GroupsOutcome out = f.Await(kFirstWorker, {1}, 1);
  CHECK_FALSE(out.deferred);
  CHECK(out.answer.status == Status::kOk);
  CHECK(out.group_status == absl::Span<const Status>{Status::kOk});
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kAwaitDone);
  CHECK(events[0].answer.status == Status::kOk);
  CHECK(events[0].token.operation == 8);
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("a partition has a version when all its chunks do") {
  FixtureOptions o;
  o.partitions = 1;
  o.chunks = 3;
  Fixture f(o);
  CHECK(f.Await(kFirstWorker, {0}, 1).deferred);
  CHECK(f.Await(kFirstWorker, {0}, 2).deferred);
  for (const uint32_t c : {2, 0, 1}) {
    CHECK(f.Events().empty());
    f.Push(0, c, 0, 1);
    f.Push(1, c, 0, 1);
  }
  CHECK(f.Events().size() == 1);
  f.EndStep(0, 0, 1, 0);
  f.EndStep(1, 0, 1, 0);
  CHECK(f.Events().size() == 1);
}

TEST_CASE("a refused group answers the whole await at once") {
  Fixture f({});
  f.groups = {f.GroupOf(0, 0), f.GroupOf(1, 0)};
  f.groups[1].epoch = 9;
  const GroupsOutcome out = f.engine->Await({{0, 0, 0}, kFirstWorker, kTable, f.groups, 1});
  CHECK_FALSE(out.deferred);
  CHECK(out.group_status == absl::Span<const Status>({Status::kNotReady, Status::kWrongEpoch}));
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("deferred requests of a dead lane are dropped without an event") {
  Fixture f({});
  f.Pull(kFirstWorker, 0, 1, 0);
  f.Pull(kFirstWorker + 1, 0, 1, 1);
  f.Await(kFirstWorker, {0, 1}, 1, 0);
  f.Await(kFirstWorker + 1, {0}, 1, 1);
  f.engine->ForgetLane(0);
  CHECK(f.engine->counters().deferred == 2);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  for (const Event& e : f.Events()) CHECK(e.token.lane == 1);
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("an answered pull of a dead lane releases its pin") {
  FixtureOptions o;
  o.spares = 0;
  Fixture f(o);
  f.Pull(kFirstWorker, 0, 1, 7);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  f.engine->ForgetLane(7);  // before its event was taken
  CHECK(f.Events().empty());
  f.Push(0, 0, 1, 1);
  CHECK(f.Push(1, 0, 1, 1).answer.version == 2);  // not blocked by a forgotten pin
}

TEST_CASE("deferred requests of a departed worker end with kExpired") {
  Fixture f({});
  f.Pull(kFirstWorker + 1, 0, 5, 1);
  f.Await(kFirstWorker + 1, {0, 1}, 5, 1);
  f.Await(kFirstWorker, {1}, 5, 0);
  f.Depart(1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == Event::Kind::kPullFailed);
  CHECK(events[1].kind == Event::Kind::kAwaitDone);
  for (const Event& e : events) CHECK(e.answer.status == Status::kExpired);
  CHECK(f.engine->counters().deferred == 1);
}

TEST_CASE("an observer pulls and awaits but does not push") {
  FixtureOptions o;
  o.observers = 1;
  Fixture f(o);
  const PullOutcome out = f.Pull(2000, 0, 0);
  CHECK(out.kind == Kind::kReady);
  f.engine->Unpin(out.view.pin);
  CHECK(f.Await(2000, {0}, 1).deferred);
  CHECK(f.engine->Push(f.PushOf(2000, 0, 0, Filled(16, 1), 5)).answer.status ==
        Status::kPermissionDenied);
  Group g = f.GroupOf(0, 0);
  CHECK(f.engine->EndStep({{0, 0, 0}, 2000, kTable, {&g, 1}, 0}).answer.status ==
        Status::kPermissionDenied);
}

}  // namespace parking_test
}  // namespace verbena::shard
