// Embedding tables of a sync job: one behaviour each.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;
using Workers = std::vector<uint64_t>;

RowOptions SyncRowOptions(uint32_t workers = 2) {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.workers = workers;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  return o;
}

TEST_CASE("a step on rows commits when every rank has ended it, also without rows") {
  RowFixture f(SyncRowOptions());
  const std::vector<uint64_t> keys = f.KeysIn(1, 2);
  CHECK(f.PushValue(1, 1, 0, keys, 1) == Status::kOk);
  CHECK(f.PushValue(0, 1, 0, {keys[0]}, 2) == Status::kOk);
  CHECK(f.EndStatus(1, 1, 0, 1) == Status::kOk);
  CHECK(f.ReadRow(keys[0]) == f.Filled(0));  // uncommitted
  CHECK(f.Scan(1, 9).empty());
  CHECK(f.EndStatus(0, 1, 0, 1) == Status::kOk);
  CHECK(f.ReadRow(keys[0]) == f.Filled(-3));
  CHECK(f.ReadRow(keys[1]) == f.Filled(-1));
  CHECK(f.Scan(1, 9).size() == 2);
  REQUIRE(f.commits.size() == 1);
  CHECK(f.commits[0].chunk == 1);
  CHECK(f.commits[0].contributors == Workers{kFirstWorker, kFirstWorker + 1});
  CHECK(f.EndStatus(0, 1, 1, 0) == Status::kOk);
  CHECK(f.EndStatus(1, 1, 1, 0) == Status::kOk);
  REQUIRE(f.commits.size() == 2);
  CHECK(f.commits[1].step == 1);
  CHECK(f.commits[1].contributors.empty());
}

TEST_CASE("a rank's records of a step are identified by their index") {
  RowFixture f(SyncRowOptions(1));
  const uint64_t key = f.KeysIn(0, 1)[0];
  CHECK(f.PushValue(0, 0, 0, {key}, 1, 0) == Status::kOk);
  CHECK(f.PushValue(0, 0, 0, {key}, 1, 0) == Status::kDuplicate);
  CHECK(f.EndStep(0, 0, 0, 2).answer.detail == 1);
  CHECK(f.PushValue(0, 0, 0, {key}, 10, 1) == Status::kOk);
  CHECK(f.PushValue(0, 0, 1, {key}, 1, 0) == Status::kWrongStep);
  CHECK(f.EndStatus(0, 0, 0, 2) == Status::kOk);
  CHECK(f.ReadRow(key) == f.Filled(-11));
  CHECK(f.PushValue(0, 0, 0, {key}, 1, 1) == Status::kDuplicate);
  CHECK(f.EndStatus(0, 0, 0, 2) == Status::kDuplicate);
  CHECK(f.EndStatus(0, 0, 2, 0) == Status::kWrongStep);
}

TEST_CASE("contributions are summed by rank and index, in any order of arrival") {
  // In f32 the order shows: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
  const auto run = [](const std::vector<uint32_t>& order, float first, float second, float third) {
    RowFixture f(SyncRowOptions(2));
    const uint64_t key = f.KeysIn(0, 1)[0];
    for (const uint32_t what : order) {
      if (what == 0) CHECK(f.PushValue(0, 0, 0, {key}, first, 0) == Status::kOk);
      if (what == 1) CHECK(f.PushValue(0, 0, 0, {key}, second, 1) == Status::kOk);
      if (what == 2) CHECK(f.PushValue(1, 0, 0, {key}, third, 0) == Status::kOk);
    }
    f.EndStep(1, 0, 0, 1);
    f.EndStep(0, 0, 0, 2);
    return f.ReadRow(key)[0];
  };
  for (const auto& order : {std::vector<uint32_t>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}}) {
    CHECK(run(order, 1e8f, 1, -1e8f) == 0);
    CHECK(run(order, 1e8f, -1e8f, 1) == -1);
  }
}

TEST_CASE("the pushes of a departed worker stay, and no step waits for it") {
  RowOptions o = SyncRowOptions(3);
  o.reduction = v1::REDUCTION_MEAN;
  RowFixture f(o);
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.PushValue(2, 0, 0, {key}, 4);
  f.PushValue(0, 0, 0, {key}, 5);
  f.EndStep(0, 0, 0, 1);
  f.EndStep(1, 0, 0, 0);
  CHECK(f.commits.empty());
  f.Depart(2);
  REQUIRE(f.commits.size() == 1);
  CHECK(f.commits[0].divisor == 3);  // it contributed
  CHECK(f.commits[0].contributors == Workers{kFirstWorker, kFirstWorker + 2});
  CHECK(f.ReadRow(key) == f.Filled(-3));
  f.PushValue(0, 0, 1, {key}, 4);
  f.EndStep(0, 0, 1, 1);
  f.EndStep(1, 0, 1, 0);
  REQUIRE(f.commits.size() == 2);
  CHECK(f.commits[1].divisor == 2);
  CHECK(f.ReadRow(key) == f.Filled(-5));
}

TEST_CASE("the open step on rows of workers that have all left is not applied") {
  RowFixture f(SyncRowOptions(3));
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.PushValue(0, 0, 0, {key}, 4);
  f.EndStep(0, 0, 0, 1);
  f.PushValue(1, 0, 0, {key}, 5);
  f.EndStep(1, 0, 0, 1);
  for (const uint32_t rank : {0, 1, 2}) f.Depart(rank);
  CHECK(f.commits.empty());
  CHECK(f.engine->counters().applies == 0);
  // It is no open step, for which a planned move or a checkpoint would wait.
  CHECK_FALSE(f.engine->checkpoints().HasOpenStep(kTable));
}

TEST_CASE("regression: a refused push of rows is refused again, until an empty one settles it") {
  RowFixture f(SyncRowOptions());
  const uint64_t key = f.KeysIn(0, 1)[0];
  CHECK(f.PushValue(0, 0, 0, {key}, kNan) == Status::kNonFinite);
  CHECK(f.PushValue(0, 0, 0, {key}, kNan) == Status::kNonFinite);
  CHECK(f.EndStatus(0, 0, 0, 1) == Status::kTooEarly);
  CHECK(f.PushStatus(0, 0, 0, {}) == Status::kOk);
  CHECK(f.PushValue(0, 0, 0, {key}, kNan) == Status::kDuplicate);
  CHECK(f.EndStatus(0, 0, 0, 1) == Status::kOk);
  f.PushValue(1, 0, 0, {key}, 1);
  f.EndStep(1, 0, 0, 1);
  CHECK(f.commits.size() == 1);
  CHECK(f.commits[0].contributors == Workers{kFirstWorker + 1});
  CHECK(f.ReadRow(key) == f.Filled(-1));
}

TEST_CASE("a lost lane and a new epoch remove nothing from a step on rows") {
  RowFixture f(SyncRowOptions());
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.PushValue(0, 0, 0, {key}, 1);
  f.engine->ForgetLane(0);
  f.view.mutable_partitions(0)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.PushValue(0, 0, 0, {key}, 1) == Status::kDuplicate);
  f.EndStep(0, 0, 0, 1);
  f.EndStep(1, 0, 0, 0);
  CHECK(f.ReadRow(key) == f.Filled(-1));
}

TEST_CASE("a new generation of the job forgets the open step and keeps committed ones") {
  RowFixture f(SyncRowOptions(1));
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  f.PushValue(0, 0, 0, {keys[0]}, 1);
  f.EndStep(0, 0, 0, 1);
  f.PushValue(0, 0, 1, {keys[1]}, 7);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.EndStatus(0, 0, 0, 0) == Status::kOk);
  CHECK(f.ReadRow(keys[0]) == f.Filled(-1));
  CHECK(f.ReadRow(keys[1]) == f.Filled(0));
  CHECK(f.Scan(0, 9).size() == 1);
}

TEST_CASE("an await of rows ends when all its partitions have the version") {
  RowFixture f(SyncRowOptions(1));
  CHECK(f.Await(kFirstWorker, {0, 3}, 1).deferred);
  f.EndStep(0, 0, 0, 0);
  CHECK(f.Events().empty());
  f.EndStep(0, 3, 0, 0);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kAwaitDone);
  CHECK(events[0].answer.status == Status::kOk);
  CHECK_FALSE(f.Await(kFirstWorker, {0, 3}, 1).deferred);
}

}  // namespace
}  // namespace verbena::shard
