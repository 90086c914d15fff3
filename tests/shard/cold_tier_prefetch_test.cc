// Prefetched rows of a tiered table: they are read while no request waits, take no memory from
// waiting requests, and change no answer.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/cold_events.h"
#include "tests/shard/tiered_rows.h"

namespace verbena::shard {
namespace cold_tier_prefetch_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

// For a store that does nothing: as many rows as may be wanted together, and a lookup behind them.
void TwoWait(RowFixture* f, FakeColdStore* store) {
  store->stopped = true;
  REQUIRE(f->Lookup(kFirstWorker, From(0, 8), 0, 3, 1).kind == Kind::kDeferred);
  REQUIRE(f->Lookup(kFirstWorker, From(8, 8), 0, 3, 2).kind == Kind::kDeferred);
}

TEST_CASE("prefetched rows are in memory when they are looked up") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  REQUIRE(f.Lookup(kFirstWorker, From(0, 6), 0, 3, 9).kind == Kind::kDeferred);
  f.engine->ForgetLane(3);
  Drain(&f);
  const uint64_t waits = f.engine->cold().counters().waits;
  const uint64_t reads = f.engine->cold().counters().reads;
  // Keys without a row cause no read.
  std::vector<uint64_t> keys = From(40, 6);
  keys.push_back(1000);
  const GroupsOutcome out = f.Prefetch(kFirstWorker, keys);
  CHECK(out.answer.status == Status::kOk);
  CHECK_FALSE(out.deferred);
  CHECK(std::vector<Status>(out.group_status.begin(), out.group_status.end()) ==
        std::vector<Status>{Status::kOk});
  CHECK(Drain(&f).empty());
  CHECK(f.engine->cold().counters().reads == reads + 6);
  CHECK(f.engine->cold().counters().intended == 6);
  const PullOutcome lookup = f.Lookup(kFirstWorker, keys, 0);
  REQUIRE(lookup.kind == Kind::kReady);
  f.engine->Unpin(lookup.view.pin);
  CHECK(f.engine->cold().counters().waits == waits);
  CHECK(f.engine->tables()[0].rows == 100);
}

TEST_CASE("prefetched rows that are already in memory stay there longer") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  const std::vector<uint64_t> kept = From(97, 3);
  for (uint64_t key = 0; key < 60; key += 3) {
    f.Prefetch(kFirstWorker, kept);
    f.Prefetch(kFirstWorker, From(key, 3));
    CHECK(Drain(&f).empty());
  }
  const uint64_t reads = f.engine->cold().counters().reads;
  CHECK(f.Lookup(kFirstWorker, kept, 0).kind == Kind::kReady);
  CHECK(f.engine->cold().counters().reads == reads);
}

TEST_CASE("prefetches yield to waiting requests: they take no frame that a lookup needs") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  TwoWait(&f, &store);
  CHECK(f.Prefetch(kFirstWorker, From(30, 5)).answer.status == Status::kOk);
  CHECK(f.engine->cold().counters().intended == 0);
  store.stopped = false;
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 2);
  for (const Event& e : events) {
    CHECK(e.kind == Event::Kind::kPullReady);
    f.engine->Unpin(e.view.pin);
  }
  Drain(&f);
  CHECK(f.engine->cold().counters().intended == 5);
  CHECK(f.Lookup(kFirstWorker, From(30, 5), 0).kind == Kind::kReady);
}

TEST_CASE("prefetches of more rows than fit into memory are dropped") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 400);
  store.stopped = true;
  for (uint64_t key = 0; key < 300; key += 100) f.Prefetch(kFirstWorker, From(key, 100));
  ColdCounters cold = f.engine->cold().counters();
  CHECK(cold.dropped_prefetches > 250);
  CHECK(store.queued_reads() <= 8);
  CHECK(cold.hot_rows <= 20);
  store.stopped = false;
  CHECK(Drain(&f).empty());
  cold = f.engine->cold().counters();
  CHECK(cold.intended + cold.dropped_prefetches == 300);
  CHECK(cold.hot_rows <= 20);
  CHECK(cold.waiting == 0);
  // Others get on.
  REQUIRE(f.Lookup(kFirstWorker, From(200, 8), 0, 3, 1).kind == Kind::kDeferred);
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  f.engine->Unpin(events[0].view.pin);
}

TEST_CASE("a partition that leaves, and an engine that ends, drop their prefetches") {
  const bool whole = GENERATE(false, true);
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  TwoWait(&f, &store);
  f.Prefetch(kFirstWorker, From(30, 5));
  if (whole) {
    f.engine.reset();
    CHECK(f.allocator.used == 0);
    return;
  }
  f.view.mutable_partitions(0)->set_primary(kServer + 1);
  f.view.mutable_partitions(0)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  store.stopped = false;
  Drain(&f);
  CHECK(f.engine->cold().counters().intended == 0);
  f.view.mutable_partitions(0)->set_primary(kServer);
  f.view.mutable_partitions(0)->set_epoch(3);
  f.view.mutable_tables(0)->add_lost_partitions(0);
  REQUIRE(f.Apply().ok());
  f.view.mutable_tables(0)->clear_lost_partitions();
  REQUIRE(f.Apply().ok());
  // Nothing is there any more.
  CHECK(f.Prefetch(kFirstWorker, From(30, 5)).answer.status == Status::kOk);
  Drain(&f);
  CHECK(f.engine->cold().counters().intended == 0);
}

TEST_CASE("a prefetch is refused by group, as a lookup would be") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 3;
  RowFixture f(o);
  f.view.mutable_partitions(1)->set_primary(kServer + 1);
  f.view.mutable_partitions(1)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  const auto statuses = [](const GroupsOutcome& out) {
    return std::vector<Status>(out.group_status.begin(), out.group_status.end());
  };
  const std::vector<uint64_t> keys = {f.KeysIn(0, 1)[0], f.KeysIn(1, 1)[0], f.KeysIn(2, 1)[0]};
  CHECK(statuses(f.Prefetch(kFirstWorker, keys)) ==
        std::vector<Status>{Status::kOk, Status::kWrongEpoch, Status::kOk});
  CHECK(statuses(f.Prefetch(4711, keys)) == std::vector<Status>(3, Status::kExpired));
  // A key of another partition.
  f.keys = {f.KeysIn(2, 1)[0]};
  f.groups = {f.GroupOf(0, 0, 1)};
  CHECK(f.engine->Prefetch({kFirstWorker, kTable, f.groups, f.keys}).answer.status ==
        Status::kOutOfRange);
  // Fewer keys than the groups count.
  f.groups = {f.GroupOf(0, 0, 2)};
  CHECK(f.engine->Prefetch({kFirstWorker, kTable, f.groups, f.keys}).answer.status ==
        Status::kMalformed);
  CHECK(f.engine->Prefetch({kFirstWorker, kTable + 1, f.groups, f.keys}).answer.status !=
        Status::kOk);
  // A table that has all its rows in memory: there is nothing to do.
  RowFixture g(InMemory());
  g.PushValue(0, 0, 1, {7}, 1);
  CHECK(g.Prefetch(kFirstWorker, {7, 8}).answer.status == Status::kOk);
}

}  // namespace cold_tier_prefetch_test
}  // namespace verbena::shard
