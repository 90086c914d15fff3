#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

void Step(Fixture& f, uint64_t step) {
  f.Push(0, 0, step, 1);
  f.Push(1, 0, step, 1);
}

TEST_CASE("a view handed out never changes until it is unpinned") {
  FixtureOptions o;
  o.spares = 3;
  o.optimizer = "momentum";
  Fixture f(o);
  std::vector<PullOutcome> pulls;
  std::vector<std::vector<float>> seen;
  for (uint64_t step = 0; step < 3; ++step) {
    pulls.push_back(f.Pull(kFirstWorker, 0, step));
    seen.push_back(Fixture::Values(pulls.back().view));
    Step(f, step);
    CHECK(f.Version(0) == step + 1);
    for (size_t i = 0; i < pulls.size(); ++i) {
      CHECK(Fixture::Values(pulls[i].view) == seen[i]);
      CHECK(pulls[i].view.version == i);
    }
  }
  CHECK(seen[0] != seen[1]);
  // All three spares hold old versions now; the current one is free.
  Step(f, 3);
  CHECK(f.Version(0) == 4);
  for (const PullOutcome& p : pulls) f.engine->Unpin(p.view.pin);
}

TEST_CASE("without a free shadow buffer an apply waits for the write-out and then continues") {
  FixtureOptions o;
  o.spares = 1;
  Fixture f(o);
  const PullOutcome first = f.Pull(kFirstWorker, 0, 0);
  Step(f, 0);
  const PullOutcome second = f.Pull(kFirstWorker, 0, 1);
  CHECK(f.Push(0, 0, 1, 1).answer.status == Status::kOk);  // only the last run waits
  CHECK(f.Push(1, 0, 1, 1).held);
  CHECK(f.Pull(kFirstWorker, 0, 2, 0, 3).kind == PullOutcome::Kind::kDeferred);
  CHECK(f.engine->counters().spare_exhausted == 1);
  CHECK(f.Events().empty());
  CHECK(f.Version(0) == 1);
  SECTION("the shadow buffer is free again") { f.engine->Unpin(first.view.pin); }
  SECTION("the chunk itself is free") { f.engine->Unpin(second.view.pin); }
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 2);
  CHECK(events[0].kind == Event::Kind::kPushDone);
  CHECK(events[0].answer.version == 2);
  CHECK(events[1].kind == Event::Kind::kPullReady);
  CHECK(Fixture::Values(events[1].view) == Filled(16, -4));
  CHECK(f.engine->counters().held == 0);
}

TEST_CASE("several pins of one buffer count") {
  FixtureOptions o;
  o.spares = 0;
  Fixture f(o);
  const PullOutcome a = f.Pull(kFirstWorker, 0, 0);
  const PullOutcome b = f.Pull(kFirstWorker, 0, 0);
  Step(f, 0);
  CHECK(f.Version(0) == 0);
  f.engine->Unpin(a.view.pin);
  CHECK(f.Version(0) == 0);
  f.engine->Unpin(b.view.pin);
  CHECK(f.Version(0) == 1);
  // Too often, or never given: ignored.
  f.engine->Unpin(b.view.pin);
  f.engine->Unpin(UINT64_MAX);
}

TEST_CASE("shadow buffers are used again and never exceed their limit") {
  FixtureOptions o;
  o.spares = 2;
  Fixture f(o);
  Step(f, 0);
  const uint64_t before = f.engine->counters().resident_bytes;
  for (uint64_t step = 1; step < 50; ++step) {
    const PullOutcome p = f.Pull(kFirstWorker, 0, step);
    Step(f, step);
    f.engine->Unpin(p.view.pin);
    CHECK(f.Version(0) == step + 1);
  }
  CHECK(f.engine->counters().resident_bytes <= before + 2 * 64);
}

TEST_CASE("a chunk that waits for a buffer still loses a departed worker's contribution") {
  FixtureOptions o;
  o.spares = 0;
  o.workers = 3;
  Fixture f(o);
  const PullOutcome p = f.Pull(kFirstWorker, 0, 0);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 2);
  CHECK(f.Push(2, 0, 0, 100).held);
  f.Depart(2);
  f.engine->Unpin(p.view.pin);
  CHECK(f.Read(0) == Filled(16, -3));
}

TEST_CASE("ended steps that wait for a buffer commit, also after an epoch change") {
  FixtureOptions o;
  o.spares = 0;
  o.optimizer = "momentum";
  Fixture f(o);
  const PullOutcome p = f.Pull(kFirstWorker, 0, 0);
  f.EndStep(0, 0, 0, 0);
  f.EndStep(1, 0, 0, 0);
  CHECK(f.Version(0) == 0);
  f.view.mutable_partitions(static_cast<int>(f.PartitionOf(0)))->set_epoch(2);
  REQUIRE(f.Apply().ok());
  f.engine->Unpin(p.view.pin);
  CHECK(f.Version(0) == 1);
}

TEST_CASE("a dropped table's pinned buffer lives until it is unpinned") {
  Fixture f({});
  const PullOutcome p = f.Pull(kFirstWorker, 0, 0);
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.allocator.used == 64);
  CHECK(Fixture::Values(p.view) == Filled(16, 0));
  f.engine->Unpin(p.view.pin);
  CHECK(f.allocator.used == 0);
  CHECK(f.engine->counters().resident_bytes == 0);
}

TEST_CASE("an engine frees all its memory") {
  FixtureOptions o;
  o.optimizer = "adam";
  Fixture f(o);
  f.Pull(kFirstWorker, 0, 0);  // never unpinned
  Step(f, 0);
  f.Push(0, 1, 0, 1);
  CHECK(f.allocator.used > 4 * 3 * 64);
  CHECK(f.engine->counters().resident_bytes == f.allocator.used);
  f.engine.reset();
  CHECK(f.allocator.used == 0);
}

}  // namespace
}  // namespace verbena::shard
