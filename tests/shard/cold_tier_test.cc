// A tiered table when rows are not in memory: requests that wait, requests that do not, refusals,
// and a disk that is full or has lost rows.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/checkpoint/checkpoints.h"
#include "shard/cold_events.h"
#include "tests/shard/tiered_rows.h"

namespace verbena::shard {
namespace cold_tier_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

TEST_CASE("without a cold store a tiered table is not served, and the error names --cold-dir") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.cold = nullptr;
  RowFixture f(o);
  CHECK(f.applied.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(f.applied.message()), Catch::Contains("--cold-dir"));
  CHECK(f.PushValue(0, 0, 1, {1}, 1) == Status::kUnavailable);
}

TEST_CASE("memory of a tiered table is its share, for any number of rows") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 400);
  const ColdCounters cold = f.engine->cold().counters();
  CHECK(cold.hot_limit_bytes == 16 * 16);
  CHECK(cold.hot_bytes <= 20 * 16);
  CHECK(cold.hot_rows <= 16);
  CHECK(store.rows() > 380);
  CHECK(f.engine->tables()[0].rows == 400);
  f.engine.reset();
  CHECK(f.allocator.used == 0);
  CHECK(store.rows() == 0);
}

TEST_CASE("a lookup of cold rows waits for them, and is answered once") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  const PullOutcome out = f.Lookup(kFirstWorker, From(0, 6), 0, 3, 9);
  REQUIRE(out.kind == Kind::kDeferred);
  CHECK(f.engine->counters().deferred == 1);
  CHECK(f.engine->cold().counters().waiting == 1);
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  CHECK(events[0].token.operation == 9);
  CHECK(events[0].destination == 0x1009);
  f.engine->Unpin(events[0].view.pin);
  CHECK(f.engine->counters().deferred == 0);
  // Now they are there.
  CHECK(f.Lookup(kFirstWorker, From(0, 6), 0).kind == Kind::kReady);
}

TEST_CASE("a request that may not wait is refused, and finds the rows when it is repeated") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  f.Lookup(kFirstWorker, {}, 0);
  f.keys = From(0, 4);
  f.groups = {f.GroupOf(0, 0, 4)};
  LookupRequest r;
  r.worker = kFirstWorker;
  r.table = kTable;
  r.groups = f.groups;
  r.keys = f.keys;
  r.may_park = false;
  CHECK(f.engine->Lookup(r).answer.status == Status::kResourceExhausted);
  CHECK(Drain(&f).empty());
  PullOutcome again = f.engine->Lookup(r);
  for (int i = 0; i < 5 && again.kind != Kind::kReady; ++i) {
    CHECK(Drain(&f).empty());
    again = f.engine->Lookup(r);
  }
  CHECK(again.kind == Kind::kReady);
}

TEST_CASE("a lookup of more rows than may be in memory is answered at once") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  Fill(&f, 100);
  const Rows rows = f.Read(From(0, 90));
  REQUIRE(rows.size() == 90);
  RowFixture g(InMemory());
  Fill(&g, 90);
  CHECK(SameRows(rows, g.Read(From(0, 90))));
}

TEST_CASE("requests that wait for rows end with their lane, their worker, their partition") {
  const int how = GENERATE(0, 1, 2, 3);
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.observers = 1;
  RowFixture f(o);
  const uint64_t sequence = Fill(&f, 100);
  REQUIRE(f.Lookup(2000, From(0, 6), 0, 3, 9).kind == Kind::kDeferred);
  if (how == 0) {
    f.engine->ForgetLane(3);
  } else if (how == 1) {
    f.job()->mutable_members()->RemoveLast();
    REQUIRE(f.Apply().ok());
  } else if (how == 2) {
    f.view.mutable_partitions(0)->set_epoch(2);
    REQUIRE(f.Apply().ok());
  } else {
    f.view.mutable_partitions(0)->set_primary(kServer + 1);
    f.view.mutable_partitions(0)->set_epoch(2);
    REQUIRE(f.Apply().ok());
  }
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == (how == 0 ? 0 : 1));
  if (how != 0) CHECK(events[0].kind == Event::Kind::kPullFailed);
  CHECK(f.engine->counters().deferred == 0);
  CHECK(f.engine->cold().counters().waiting == 0);
  if (how == 3) return;
  // Nothing is left pinned: others get on.
  f.Push(0, 0, sequence + 1, {{50, f.Filled(1)}, {51, f.Filled(1)}});
  Drain(&f);
  CHECK(f.engine->cold().counters().waiting == 0);
  for (uint64_t key = 0; key < 96; key += 8) {
    const PullOutcome out = f.Lookup(kFirstWorker, From(key, 8), 0);
    if (out.kind == Kind::kReady) continue;
    REQUIRE(out.kind == Kind::kDeferred);
    CHECK_FALSE(Drain(&f).empty());
  }
}

TEST_CASE("a push to more rows than half of the memory is refused") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC);
  FakeColdStore store(1);
  RowFixture f(Tiered(&store, consistency));
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  const GroupsOutcome refused = [&] {
    Rows rows;
    for (const uint64_t key : From(0, 9)) rows[key] = f.Filled(1);
    return f.Push(0, 0, sync ? 0 : 1, rows);
  }();
  CHECK(refused.group_status[0] == Status::kMemoryLimit);
  CHECK(refused.answer.detail == 0);
  CHECK(f.PushValue(0, 0, sync ? 0 : 1, From(0, 8), 1, 1) == Status::kOk);
  // The rows of a step count together; repeated keys count once.
  if (sync) {
    CHECK(f.PushValue(0, 0, 0, From(4, 4), 1, 2) == Status::kOk);
    CHECK(f.PushValue(0, 0, 0, From(4, 5), 1, 3) == Status::kMemoryLimit);
    CHECK(f.PushStatus(0, 0, 0, {}, 3) == Status::kOk);
    CHECK(f.PushStatus(0, 0, 0, {}) == Status::kOk);
    CHECK(f.EndStatus(0, 0, 0, 4) == Status::kOk);
  }
  CHECK(f.engine->tables()[0].rows == 8);
}

TEST_CASE("pushes of cold rows are answered when they are applied, in their order") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  uint64_t sequence = Fill(&f, 100);
  const GroupsOutcome first = f.Push(0, 0, ++sequence, {{1, f.Filled(2)}});
  CHECK(first.replicating);
  const GroupsOutcome second = f.Push(0, 0, ++sequence, {{99, f.Filled(2)}});
  CHECK(second.replicating);
  // Sent again: it waits for the same.
  CHECK(f.Push(0, 0, sequence, {{99, f.Filled(2)}}).replicating);
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 3);
  for (const Event& e : events) CHECK(e.kind == Event::Kind::kReplicated);
  CHECK_FALSE(f.Push(0, 0, ++sequence, {{1, f.Filled(2)}}).replicating);
}

TEST_CASE("when the disk is full, rows in memory work, and nothing is lost") {
  FakeColdStore store(1);
  RowFixture f(Tiered(&store));
  uint64_t sequence = Fill(&f, 100);
  store.full = true;
  CHECK(f.engine->cold().health().code() == absl::StatusCode::kResourceExhausted);
  // All frames become dirty and cannot be written: pushes that need another one are refused.
  std::vector<uint64_t> refused;
  for (uint64_t key = 0; key < 60; ++key) {
    const GroupsOutcome out = f.Push(0, 0, sequence + 1, {{key, f.Filled(1)}});
    CHECK_FALSE(out.replicating);
    Drain(&f);
    if (out.group_status[0] == Status::kOk) {
      ++sequence;
    } else {
      REQUIRE(out.group_status[0] == Status::kResourceExhausted);
      refused.push_back(key);
    }
  }
  CHECK(refused.size() > 20);
  CHECK(f.engine->cold().counters().hot_rows <= 20);
  CHECK(f.engine->cold().counters().waiting == 0);
  store.full = false;
  Drain(&f);
  for (const uint64_t key : refused) {
    REQUIRE(f.PushValue(0, 0, ++sequence, {key}, 1) == Status::kOk);
    Drain(&f);
  }
  const Rows rows = f.Scan(0, 1000);
  RowFixture g(InMemory());
  uint64_t pushed = Fill(&g, 100);
  PushEach(&g, 0, From(0, 60), &pushed);
  CHECK(SameRows(rows, g.Scan(0, 1000)));
}

TEST_CASE("a row that cannot be read makes only its own partition lost") {
  const int who = GENERATE(0, 1, 2, 3);
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 2;
  RowFixture f(o);
  std::vector<uint64_t> sequence(2);
  std::vector<std::vector<uint64_t>> keys = {f.KeysIn(0, 60), f.KeysIn(1, 60)};
  for (uint32_t p = 0; p < 2; ++p) PushEach(&f, p, keys[p], &sequence[p]);
  store.lose_all = true;
  if (who == 0) {
    REQUIRE(f.Lookup(kFirstWorker, {keys[0][0]}, 0, 1, 5).kind == Kind::kDeferred);
  } else if (who == 1) {
    REQUIRE(f.Push(0, 0, ++sequence[0], {{keys[0][0], f.Filled(1)}}).replicating);
  } else if (who == 2) {
    CHECK(f.ScanAt(0, 0, 50).answer.status == Status::kResourceExhausted);
  } else {
    PartitionCheckpointRequest save;
    save.id = 1;
    save.tables.push_back({kTable, 0, 0, false});
    std::vector<uint64_t> newest;
    REQUIRE(f.engine->checkpoints().Begin(save, &newest).ok());
    CheckpointPiece piece;
    CHECK_FALSE(f.engine->checkpoints().Take(1, &piece));
  }
  const std::vector<Event> events = Drain(&f);
  store.lose_all = false;
  if (who == 0) {
    REQUIRE(events.size() == 1);
    CHECK(events[0].kind == Event::Kind::kPullFailed);
    CHECK(events[0].answer.status == Status::kDataLoss);
  } else if (who == 1) {
    REQUIRE(events.size() == 1);
    CHECK((*events[0].group_status)[0] == Status::kDataLoss);
  } else if (who == 3) {
    CHECK(f.engine->checkpoints().progress(1)->status.code() == absl::StatusCode::kDataLoss);
    f.engine->checkpoints().Abort(1);
  }
  const std::vector<std::string> errors = f.engine->cold().TakeErrors();
  REQUIRE(errors.size() == 1);
  CHECK_THAT(errors[0], Catch::Contains("table 7 \"rows\", partition 0: the row of key ") &&
                            Catch::Contains("block checksum mismatch"));
  CHECK(f.PushValue(0, 0, sequence[0] + 1, {keys[0][1]}, 1) == Status::kDataLoss);
  f.Push(0, 1, ++sequence[1], {{keys[1][0], f.Filled(1)}});
  Drain(&f);
  CHECK(f.Scan(1, 100).size() == 60);
}

TEST_CASE("a partition that leaves frees its frames, and the share follows") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 2;
  o.hot_bytes = 64 * 16;
  RowFixture f(o);
  std::vector<uint64_t> sequence(2);
  for (uint32_t p = 0; p < 2; ++p) PushEach(&f, p, f.KeysIn(p, 80), &sequence[p]);
  CHECK(f.engine->cold().counters().hot_limit_bytes == 64 * 16);
  f.view.mutable_partitions(1)->set_primary(kServer + 1);
  f.view.mutable_partitions(1)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  for (int n = 0; n < 10; ++n) f.Events();
  CHECK(f.engine->cold().counters().hot_limit_bytes == 32 * 16);
  CHECK(f.engine->cold().counters().hot_bytes < 40 * 16);
  CHECK(f.Scan(0, 1000).size() == 80);
  CHECK(store.misses == 0);
}

}  // namespace cold_tier_test
}  // namespace verbena::shard
