// Lookups of embedding tables that wait: for versions of several partitions, and for clocks.
#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace rows_parking_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

RowOptions SyncOptions() {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.workers = 1;
  o.observers = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  return o;
}

struct Waiting : RowFixture {
  Waiting() : RowFixture(SyncOptions()) {
    for (const uint32_t p : {0u, 1u, 3u}) wanted.push_back(KeysIn(p, 1)[0]);
    CHECK(Lookup(2000, wanted, 1, 5, 77).kind == Kind::kDeferred);
  }
  void Step(uint32_t partition, uint64_t step) {
    CHECK(PushValue(0, partition, step, KeysIn(partition, 1), 1) == Status::kOk);
    CHECK(EndStatus(0, partition, step, 1) == Status::kOk);
  }
  Event OnlyEvent() {
    const std::vector<Event> events = Events();
    REQUIRE(events.size() == 1);
    CHECK(events[0].token.lane == 5);
    CHECK(events[0].token.operation == 77);
    CHECK(events[0].destination == 0x1000 + 77);
    CHECK(events[0].destination_key == 0x55);
    CHECK(engine->counters().deferred == 0);
    return events[0];
  }
  std::vector<uint64_t> wanted;
};

TEST_CASE("a lookup waits for the last of its partitions, in any order") {
  for (const auto& order :
       {std::vector<uint32_t>{0, 1, 3}, {3, 1, 0}, {1, 0, 3}, {3, 0, 1}, {0, 3, 1}}) {
    Waiting f;
    f.Step(order[0], 0);
    f.Step(order[0], 1);
    f.Step(order[1], 0);
    CHECK(f.Events().empty());
    f.Step(order[2], 0);
    const Event e = f.OnlyEvent();
    CHECK(e.kind == Event::Kind::kPullReady);
    CHECK(e.answer.version == 1);  // the least
    const Rows rows = f.RowsOf(f.Order(f.wanted), e.view);
    CHECK(rows.at(f.KeysIn(order[0], 1)[0]) == f.Filled(-2));
    CHECK(rows.at(f.KeysIn(order[2], 1)[0]) == f.Filled(-1));
    f.engine->Unpin(e.view.pin);
  }
}

TEST_CASE("a deferred lookup ends with the event that makes an answer impossible") {
  Waiting f;
  SECTION("a new epoch of a partition that it does not wait for yet") {
    f.view.mutable_partitions(3)->set_epoch(2);
    REQUIRE(f.Apply().ok());
    CHECK(f.OnlyEvent().answer.status == Status::kWrongEpoch);
  }
  SECTION("a lost partition") {
    f.view.mutable_tables(0)->add_lost_partitions(1);
    REQUIRE(f.Apply().ok());
    CHECK(f.OnlyEvent().answer.status == Status::kWrongEpoch);
  }
  SECTION("its worker's lease") {
    f.job()->mutable_members()->RemoveLast();
    REQUIRE(f.Apply().ok());
    CHECK(f.OnlyEvent().answer.status == Status::kExpired);
  }
  SECTION("the table is dropped") {
    f.view.clear_tables();
    REQUIRE(f.Apply().ok());
    CHECK(f.OnlyEvent().answer.status == Status::kUnknownTable);
  }
  SECTION("no memory to gather its rows in") {
    for (const uint32_t p : {0u, 1u}) f.Step(p, 0);
    CHECK(f.PushValue(0, 3, 0, f.KeysIn(3, 1), 1) == Status::kOk);
    // All idle scratch is in use.
    std::vector<uint64_t> pins;
    f.allocator.scratch_limit = 0;
    for (;;) {
      const PullOutcome out = f.Lookup(kFirstWorker, f.KeysIn(0, 3), 0);
      if (out.kind != Kind::kReady) break;
      pins.push_back(out.view.pin);
    }
    CHECK(f.EndStatus(0, 3, 0, 1) == Status::kOk);
    const Event e = f.Events()[0];
    // The memory that the step was copied to may have been enough.
    if (e.kind == Event::Kind::kPullFailed) CHECK(e.answer.status == Status::kResourceExhausted);
    for (const uint64_t pin : pins) f.engine->Unpin(pin);
    f.engine->Unpin(e.view.pin);
  }
  SECTION("another partition's new epoch does not") {
    f.view.mutable_partitions(2)->set_epoch(2);
    REQUIRE(f.Apply().ok());
    CHECK(f.Events().empty());
    CHECK(f.engine->counters().deferred == 1);
  }
  SECTION("a lost lane ends it without an event") {
    f.engine->ForgetLane(5);
    CHECK(f.engine->counters().deferred == 0);
    for (const uint32_t p : {0u, 1u, 3u}) f.Step(p, 0);
    CHECK(f.Events().empty());
  }
  SECTION("a lost lane frees gathered rows that were not taken") {
    for (const uint32_t p : {0u, 1u, 3u}) f.Step(p, 0);
    f.engine->ForgetLane(5);
    CHECK(f.Events().empty());
    f.view.clear_tables();
    REQUIRE(f.Apply().ok());
    CHECK(f.allocator.used == 0);
  }
}

RowOptions SspOptions(uint32_t staleness) {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SSP;
  o.staleness = staleness;
  o.workers = 2;
  o.observers = 1;
  return o;
}

TEST_CASE("an ssp lookup waits while its worker is more than the bound ahead in any partition") {
  const uint32_t bound = GENERATE(0u, 2u);
  RowFixture f(SspOptions(bound));
  const std::vector<uint64_t> keys = {f.KeysIn(0, 1)[0], f.KeysIn(1, 1)[0]};
  uint64_t sequence = 0;
  const auto end = [&](uint32_t rank, uint32_t partition, uint64_t of, uint64_t clock) {
    CHECK(f.EndStatus(rank, partition, of, 0, clock) == Status::kOk);
  };
  for (uint64_t clock = 1; clock <= bound + 1; ++clock) {
    const PullOutcome out = f.Lookup(kFirstWorker, keys, clock - 1);
    REQUIRE(out.kind == Kind::kReady);
    CHECK(out.answer.version == 0);
    CHECK(out.answer.detail == clock - 1);
    f.engine->Unpin(out.view.pin);
    ++sequence;
    for (const uint32_t p : {0u, 1u}) end(0, p, sequence, clock);
  }
  CHECK(f.Lookup(kFirstWorker, keys, bound + 1).kind == Kind::kDeferred);
  CHECK(f.Lookup(2000, keys, bound + 1).kind == Kind::kReady);  // an observer has no clock
  end(1, 0, 1, 1);
  CHECK(f.PushValue(1, 0, 2, {keys[0]}, 1) == Status::kOk);
  CHECK(f.Events().empty());
  end(1, 1, 1, 1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  CHECK(events[0].answer.version == 1);
  CHECK(events[0].answer.detail == bound);
  const auto& counts = f.engine->counters().staleness;
  CHECK(std::accumulate(counts.begin(), counts.end(), uint64_t{0}) == bound + 3);
  CHECK(std::accumulate(counts.begin() + bound + 1, counts.end(), uint64_t{0}) == 0);
}

TEST_CASE("an ssp lookup is as stale as the partition that is furthest behind") {
  RowFixture f(SspOptions(3));
  for (const uint32_t p : {0u, 1u, 2u}) CHECK(f.EndStatus(0, p, 1, 0, 3) == Status::kOk);
  CHECK(f.EndStatus(1, 0, 1, 0, 2) == Status::kOk);
  CHECK(f.EndStatus(1, 2, 1, 0, 1) == Status::kOk);
  const std::vector<uint64_t> keys = {f.KeysIn(0, 1)[0], f.KeysIn(1, 1)[0], f.KeysIn(2, 1)[0]};
  const PullOutcome out = f.Lookup(kFirstWorker, keys, 3);
  REQUIRE(out.kind == Kind::kReady);
  CHECK(out.answer.version == 0);
  CHECK(out.answer.detail == 3);
  CHECK(f.engine->counters().staleness[3] == 1);  // once for the lookup
  CHECK(f.engine->counters().pulls == 1);
}

TEST_CASE("an ssp lookup does not wait for workers that have left") {
  RowFixture f(SspOptions(0));
  const uint64_t key = f.KeysIn(0, 1)[0];
  CHECK(f.EndStatus(0, 0, 1, 0, 1) == Status::kOk);
  CHECK(f.Lookup(kFirstWorker, {key}, 1).kind == Kind::kDeferred);
  f.Depart(1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
}

TEST_CASE("regression: an observer of another job looks rows of an ssp table up at once") {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SSP;
  RowFixture f(o);
  v1::Job* other = f.view.add_jobs();
  other->set_name("other");
  other->set_generation(1);
  v1::Worker* observer = other->add_members();
  observer->set_incarnation(3000);
  observer->set_rank(-1);
  REQUIRE(f.Apply().ok());
  const std::vector<uint64_t> key = f.KeysIn(0, 1);
  REQUIRE(f.PushValue(0, 0, 1, key, 1) == Status::kOk);
  const auto read = [&] {
    const PullOutcome out = f.Lookup(3000, key, 0);
    REQUIRE(out.kind == Kind::kReady);
    CHECK(f.RowsOf(f.keys, out.view).size() == 1);
    f.engine->Unpin(out.view.pin);
  };
  read();
  // Also when the table's job has ended.
  f.job()->clear_members();
  REQUIRE(f.Apply().ok());
  read();
}

}  // namespace rows_parking_test
}  // namespace verbena::shard
