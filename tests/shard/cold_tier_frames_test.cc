// Frames of a tiered table when their number grows, shrinks, or memory is missing: requests that
// wait for one continue or fail; and the records for replicas about rows that are lost or have no
// memory.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/checkpoint/checkpoints.h"
#include "shard/cold_events.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/tiered_rows.h"

namespace verbena::shard {
namespace cold_tier_frames_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

constexpr size_t kContent = 16;  // bytes of a row: four numbers, and no state

TEST_CASE("after partitions are added a lookup may need more rows than fit before") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 8;
  o.hot_bytes = 8 * 32 * kContent;
  RowFixture f(o);
  for (int p = 1; p < 8; ++p) f.view.mutable_partitions(p)->set_primary(kServer + 1);
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->cold().counters().hot_limit_bytes == 32 * kContent);
  const std::vector<uint64_t> keys = f.KeysIn(0, 200);
  uint64_t sequence = 0;
  PushEach(&f, 0, keys, &sequence);
  for (int p = 1; p < 8; ++p) {
    f.view.mutable_partitions(p)->set_primary(kServer);
    f.view.mutable_partitions(p)->set_epoch(2);
    f.view.mutable_tables(0)->add_lost_partitions(static_cast<uint32_t>(p));
  }
  REQUIRE(f.Apply().ok());
  f.view.mutable_tables(0)->clear_lost_partitions();
  REQUIRE(f.Apply().ok());
  REQUIRE(f.engine->cold().counters().hot_limit_bytes == 256 * kContent);
  REQUIRE(f.Lookup(kFirstWorker, {keys.begin(), keys.begin() + 100}, 0, 1, 5).kind ==
          Kind::kDeferred);
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  f.engine->Unpin(events[0].view.pin);
}

TEST_CASE("with less memory than hot_bytes a step commits or is refused") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store, v1::CONSISTENCY_SYNC);
  o.dim = 256;
  const uint64_t content = o.dim * sizeof(float);
  o.hot_bytes = 4000 * content;
  RowFixture f(o);
  uint64_t step = 0;
  const auto commit = [&](const std::vector<uint64_t>& keys) {
    Rows rows;
    for (const uint64_t key : keys) rows[key] = f.Filled(1);
    const Status status = f.PushStatus(0, 0, step, rows);
    if (status != Status::kOk) REQUIRE(f.PushStatus(0, 0, step, {}) == Status::kOk);
    REQUIRE(f.EndStatus(0, 0, step, 1) == Status::kOk);
    Drain(&f);
    REQUIRE_FALSE(f.Await(kFirstWorker, {0}, ++step).deferred);
    return status;
  };
  for (uint64_t first = 0; first < 100; first += 10) {
    std::vector<uint64_t> some;
    for (uint64_t key = first; key < first + 10; ++key) some.push_back(key);
    REQUIRE(commit(some) == Status::kOk);
  }
  // Space for the push, for a row's other memory, and for some frames.
  f.allocator.limit = f.allocator.used + 350 * content + 300'000;
  // By the share these are few; all of them are new, or then there.
  std::vector<uint64_t> many;
  for (uint64_t key = 1000; key < 1350; ++key) many.push_back(key);
  CHECK(commit(many) == Status::kMemoryLimit);
  const ColdCounters cold = f.engine->cold().counters();
  CHECK(cold.hot_bytes < 450 * content);
  CHECK(cold.hot_limit_bytes == cold.hot_bytes);
  CHECK(commit(many) == Status::kMemoryLimit);
  const auto half = static_cast<ptrdiff_t>(cold.hot_bytes / content / 2);
  for (int i = 0; i < 3; ++i) {
    CHECK(commit({many.end() - half, many.end()}) == Status::kOk);
    CHECK(commit({many.begin(), many.begin() + half}) == Status::kOk);
  }
  CHECK(f.engine->cold().counters().waiting == 0);
  CHECK(store.misses == 0);
}

TEST_CASE("requests that wait for frames get those of a partition that leaves") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 2;
  RowFixture f(o);
  std::vector<uint64_t> sequence(2);
  const std::vector<uint64_t> here = f.KeysIn(1, 60), leaving = f.KeysIn(0, 60);
  PushEach(&f, 1, here, &sequence[1]);
  PushEach(&f, 0, {leaving.begin(), leaving.begin() + 44}, &sequence[0]);
  // All frames are of rows that are to be written first, and are not.
  store.full = true;
  for (int i = 0; i < 3; ++i) f.Events();
  for (uint64_t i = 44; i < 60; ++i) {
    f.PushValue(0, 0, sequence[0] + 1, {leaving[i]}, 1) == Status::kOk ? ++sequence[0] : 0;
  }
  for (uint64_t i = 28; i < 44; ++i) {
    f.PushValue(0, 0, sequence[0] + 1, {leaving[i]}, 1) == Status::kOk ? ++sequence[0] : 0;
  }
  store.full = false;
  store.stopped = true;
  REQUIRE(f.Lookup(kFirstWorker, {here.begin(), here.begin() + 7}, 0, 1, 5).kind ==
          Kind::kDeferred);
  f.Events();
  REQUIRE(store.queued_reads() < 7);  // there are not as many frames
  f.view.mutable_partitions(0)->set_primary(kServer + 1);
  f.view.mutable_partitions(0)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  store.stopped = false;
  const std::vector<Event> events = Drain(&f);
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  CHECK(f.engine->cold().counters().waiting == 0);
}

TEST_CASE("rows dropped before the checkpoint has taken them need not be read") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.eviction.set_kind(v1::Eviction::TTL_STEPS);
  o.eviction.set_ttl(160);
  RowFixture f(o);
  uint64_t sequence = 0;
  const std::vector<uint64_t> keys = f.KeysIn(0, 160);
  PushEach(&f, 0, keys, &sequence);
  const Rows rows = f.Scan(0, 100);
  PartitionCheckpointRequest save;
  save.id = 1;
  save.memory_bytes = 1 << 20;
  save.tables.push_back({kTable, 0, 0, false});
  std::vector<uint64_t> newest;
  REQUIRE(f.engine->checkpoints().Begin(save, &newest).ok());
  const Rows hot = {{keys.back(), f.Filled(1)}};
  for (int i = 0; i < 60; ++i) {
    const GroupsOutcome out = f.Push(0, 0, ++sequence, hot);
    CHECK(out.group_status[0] == Status::kOk);
    CHECK_FALSE(out.replicating);
    f.Events();
  }
  CHECK(f.engine->tables()[0].counters.evicted_rows >= 40);
  CHECK(f.engine->cold().counters().hot_bytes <= 20 * kContent);
  // They are saved as they were.
  uint64_t saved = 0;
  for (CheckpointPiece piece; f.engine->checkpoints().Take(1, &piece);) {
    if (piece.kind == CheckpointPiece::Kind::kRows) saved += piece.count;
    f.engine->checkpoints().Release(1, piece.id);
  }
  CHECK(saved == rows.size());
}

TEST_CASE("on a full disk, rows that come and go do not fill the write queue") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  o.partitions = 2;
  o.eviction.set_kind(v1::Eviction::TTL_STEPS);
  // Nearly all frames are of rows that will go, and some are to be written ahead.
  o.eviction.set_ttl(56);
  o.hot_bytes = 64 * kContent;
  RowFixture f(o);
  std::vector<uint64_t> sequence(2);
  // These are cold and stay: nobody pushes to their partition. So there are more rows than frames.
  const std::vector<uint64_t> stay = f.KeysIn(0, 96);
  for (uint64_t i = 0; i < 96; i += 8) {
    REQUIRE(f.PushValue(0, 0, ++sequence[0], {stay.begin() + i, stay.begin() + i + 8}, 1) ==
            Status::kOk);
    Drain(&f);
  }
  // Those in memory are as they are on the disk: their frames can be had.
  for (uint64_t i = 0; i < 96; i += 4) {
    f.Lookup(kFirstWorker, {stay.begin() + i, stay.begin() + i + 4}, 0, 1, 5);
    for (const Event& e : Drain(&f)) f.engine->Unpin(e.view.pin);
  }
  const uint64_t before = f.engine->tables()[0].rows;
  store.full = true;
  const std::vector<uint64_t> come = f.KeysIn(1, 2000);
  uint32_t applied = 0;
  for (const uint64_t key : come) {
    const Status status = f.PushValue(0, 1, sequence[1] + 1, {key}, 1);
    f.Events();
    if (status != Status::kOk) continue;
    ++sequence[1];
    ++applied;
  }
  CHECK(applied == 2000);
  CHECK(f.engine->tables()[0].rows < before + 64);
  CHECK(store.queued_writes() > 32);
  CHECK(store.queued_writes() <= 64);
  store.full = false;
  Drain(&f);
  CHECK(f.Scan(0, 100).size() == f.engine->tables()[0].rows - f.Scan(1, 100).size());
  CHECK(store.misses == 0);
}

// ---- copies -------------------------------------------------------------------------------------

void AddLearner(RowFixture* f) {
  v1::Replica* learner = f->view.mutable_partitions(0)->add_learners();
  learner->set_server(kServer + 1);
  learner->set_since(2);
}

TEST_CASE("a learner of a partition that has lost rows never catches up") {
  const bool lost = GENERATE(false, true);
  FakeColdStore store(1);
  RowOptions o = Tiered(&store);
  RowFixture f(o);
  uint64_t sequence = 0;
  PushEach(&f, 0, f.KeysIn(0, 60), &sequence);
  store.lose_all = lost;
  f.Lookup(kFirstWorker, {0, 1}, 0, 1, 5);
  Drain(&f);
  CHECK(f.engine->cold().TakeErrors().size() == (lost ? 1 : 0));
  AddLearner(&f);
  REQUIRE(f.Apply().ok());
  for (int i = 0; i < 100; ++i) {
    std::vector<ReplicaRecord> records;
    f.engine->replicas().Take(&records, 8);
    for (const ReplicaRecord& r : records) {
      f.engine->replicas().Answered(r.to, 0, r.group.sequence, Status::kOk);
    }
  }
  CHECK(f.engine->replicas().CaughtUp(0) == !lost);
}

TEST_CASE("pushes are answered while a learner catches up, with their rows in memory or not") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store, GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP));
  RowFixture f(o);
  uint64_t sequence = 0;
  const std::vector<uint64_t> keys = f.KeysIn(0, 60);
  PushEach(&f, 0, keys, &sequence);
  AddLearner(&f);
  REQUIRE(f.Apply().ok());
  std::vector<ReplicaRecord> records;
  f.engine->replicas().Take(&records, 100);  // all of it, but the end, which waits for answers
  REQUIRE_FALSE(f.engine->replicas().CaughtUp(0));
  uint32_t later = 0;
  for (int i = 0; i < 40; ++i) {
    // The same twice: the second time it is there. Now and then before the first is.
    const GroupsOutcome out = f.Push(0, 0, ++sequence, {{keys[i / 2], f.Filled(1)}});
    REQUIRE(out.group_status[0] == Status::kOk);
    const GroupsOutcome end = f.EndStep(0, 0, ++sequence, 0, static_cast<uint64_t>(i) + 1);
    REQUIRE(end.group_status[0] == Status::kOk);
    const size_t waits = (out.replicating ? 1 : 0) + (end.replicating ? 1 : 0);
    REQUIRE(Drain(&f).size() == waits);
    later += waits;
  }
  CHECK(later > 10);
  CHECK(later < 80);
}

// A follower takes all its records and acknowledges them.
void ShipAll(RowFixture* f) {
  for (int i = 0; i < 100; ++i) {
    std::vector<ReplicaRecord> records;
    f->engine->replicas().Take(&records, 8);
    for (const ReplicaRecord& r : records) {
      f->engine->replicas().Answered(r.to, 0, r.group.sequence, Status::kOk);
    }
  }
}

TEST_CASE("regression: a new run reads cold rows only when their follower has them") {
  FakeColdStore store(1);
  RowOptions o = Tiered(&store, GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP));
  o.observers = 1;
  RowFixture f(o);
  const uint64_t sequence = Fill(&f, 60);
  AddLearner(&f);
  REQUIRE(f.Apply().ok());
  ShipAll(&f);
  REQUIRE(f.engine->replicas().CaughtUp(0));
  v1::Partition* partition = f.view.mutable_partitions(0);
  partition->mutable_followers()->Swap(partition->mutable_learners());
  REQUIRE(f.Apply().ok());
  Rows expected = f.Scan(0, 100);
  REQUIRE(expected.size() == 60);
  REQUIRE(f.Push(0, 0, sequence + 1, {{0, f.Filled(8)}, {1, f.Filled(8)}}).replicating);
  // With its rows in memory, it waits for the follower alone.
  REQUIRE(Drain(&f).empty());
  store.stopped = true;
  REQUIRE(f.Lookup(2000, From(20, 8), 0, 3, 1).kind == Kind::kDeferred);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  store.stopped = false;
  // Those whose rows were to come from the disk when the run began, and those that ask after that.
  const PullOutcome asked = f.Lookup(2000, {0, 1}, 0, 3, 2);
  const std::vector<Event> events = Drain(&f);
  CHECK(events.size() == (asked.kind == Kind::kDeferred ? 2 : 1));
  if (asked.kind != Kind::kDeferred) CHECK(asked.answer.status == Status::kNotReady);
  for (const Event& e : events) {
    CHECK(e.kind == Event::Kind::kPullFailed);
    CHECK(e.answer.status == Status::kNotReady);
  }
  CHECK(f.engine->counters().deferred == 0);
  CHECK(f.engine->cold().counters().waiting == 0);
  CHECK(f.Scan(0, 100).empty());
  ShipAll(&f);
  for (const uint64_t key : {0, 1}) {
    for (float& number : expected[key]) number -= 8;
  }
  CHECK(SameRows(f.Scan(0, 100), expected));
}

TEST_CASE("a server without a cold store cannot be a replica of a tiered table") {
  FakeColdStore store(1), of_copy(1);
  RowOptions o = Tiered(&store);
  RowFixture f(o);
  uint64_t sequence = 0;
  PushEach(&f, 0, f.KeysIn(0, 60), &sequence);
  AddLearner(&f);
  REQUIRE(f.Apply().ok());
  const bool has_store = GENERATE(false, true);
  o.cold = has_store ? &of_copy : nullptr;
  RowFixture copy(o, kServer + 1);
  copy.view = f.view;
  CHECK(copy.applied.ok() == has_store);
  REQUIRE(copy.Apply().ok());
  Status refused = Status::kOk;
  for (int i = 0; i < 100 && refused == Status::kOk; ++i) {
    std::vector<ReplicaRecord> records;
    f.engine->replicas().Take(&records, 8);
    for (const ReplicaRecord& r : records) {
      const ReplicaBytes bytes(r);
      const Answer answer =
          copy.engine->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload());
      copy.Events();
      f.engine->replicas().Answered(r.to, 0, r.group.sequence, answer.status);
      refused = answer.status;
      if (refused != Status::kOk) break;
    }
  }
  CHECK(refused == (has_store ? Status::kOk : Status::kNotReady));
  CHECK(f.engine->replicas().CaughtUp(0) == has_store);
}

}  // namespace cold_tier_frames_test
}  // namespace verbena::shard
