// A primary that stops to hand its partition over: between steps of sync tables, whose pushes of an
// open step are on it alone.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/replicas.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace hand_over_test {

using Status = ReplyStatus;

FixtureOptions OnePartition(v1::Consistency consistency) {
  FixtureOptions o;
  o.partitions = 1;
  o.chunks = 2;
  o.consistency = consistency;
  return o;
}

// The answer to a push that is not held.
Status StatusOf(const PushOutcome& outcome) {
  REQUIRE_FALSE(outcome.held);
  return outcome.answer.status;
}

TEST_CASE("hand-over: a dense sync table stops when the steps that have begun are committed") {
  Fixture f(OnePartition(v1::CONSISTENCY_SYNC));
  Replicas& replicas = f.engine->replicas();
  CHECK(StatusOf(f.Push(0, 0, 0, 1)) == Status::kOk);
  CHECK_FALSE(replicas.Seal(0, true));
  // Others may contribute to it, in all chunks; nobody begins another one.
  CHECK(StatusOf(f.Push(0, 1, 0, 1)) == Status::kOk);
  f.Push(1, 0, 0, 1);
  CHECK(f.Version(0) == 1);
  CHECK(StatusOf(f.Push(0, 0, 1, 1)) == Status::kNotReady);
  CHECK_FALSE(replicas.Seal(0, true));
  f.Push(1, 1, 0, 1);
  CHECK(f.Version(1) == 1);
  CHECK(replicas.Seal(0, true));
  // It goes on when the move has no effect.
  replicas.Unseal(0);
  CHECK(StatusOf(f.Push(0, 0, 1, 1)) == Status::kOk);
  f.Push(1, 0, 1, 1);
  CHECK(f.Version(0) == 2);
}

TEST_CASE("hand-over: rows of a sync table stop when the step that has begun is committed") {
  RowOptions o;
  o.partitions = 1;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  RowFixture f(o);
  Replicas& replicas = f.engine->replicas();
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  CHECK(f.PushValue(0, 0, 0, keys, 1) == Status::kOk);
  CHECK(f.EndStatus(0, 0, 0, 1) == Status::kOk);
  CHECK_FALSE(replicas.Seal(0, true));
  CHECK(f.PushValue(1, 0, 0, keys, 1) == Status::kOk);
  CHECK(f.EndStatus(1, 0, 0, 1) == Status::kOk);
  CHECK(f.PushValue(0, 0, 1, keys, 1) == Status::kNotReady);
  CHECK(replicas.Seal(0, true));
  replicas.Unseal(0);
  CHECK(f.PushValue(0, 0, 1, keys, 1) == Status::kOk);
}

TEST_CASE("hand-over: a partition whose open pushes workers keep stops at once") {
  Fixture f(OnePartition(v1::CONSISTENCY_SYNC));
  CHECK(StatusOf(f.Push(0, 0, 0, 1)) == Status::kOk);
  CHECK(f.engine->replicas().Seal(0, false));
}

TEST_CASE("hand-over: an async table stops at once") {
  Fixture f(OnePartition(v1::CONSISTENCY_ASYNC));
  CHECK(StatusOf(f.Push(0, 0, 1, 1)) == Status::kOk);
  CHECK(f.engine->replicas().Seal(0, true));
}

TEST_CASE(
    "regression: hand-over: a push of rows goes on without the groups of a stopped partition") {
  RowOptions o;
  o.partitions = 3;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  RowFixture f(o);
  CHECK(f.engine->replicas().Seal(1, false));
  f.groups.clear();
  f.keys.clear();
  for (uint32_t partition = 0; partition < 3; ++partition) {
    f.groups.push_back(f.GroupOf(partition, 1, 1));
    f.keys.push_back(f.KeysIn(partition, 1)[0]);
  }
  f.values.assign(3 * o.dim, 1);
  const GroupsOutcome outcome = f.engine->PushRows(f.PushOf(0));
  CHECK_FALSE(outcome.no_room);
  CHECK(std::vector<Status>(outcome.group_status.begin(), outcome.group_status.end()) ==
        std::vector<Status>{Status::kOk, Status::kNotReady, Status::kOk});
  // The refused group has its turn when the partition goes on.
  f.engine->replicas().Unseal(1);
  CHECK(f.PushValue(0, 1, 1, f.KeysIn(1, 1), 1) == Status::kOk);
  CHECK(f.PushValue(0, 0, 1, f.KeysIn(0, 1), 1) == Status::kDuplicate);
}

TEST_CASE("failpoint: a planned move loses the pushes of a step that has begun") {
  Fixture f(OnePartition(v1::CONSISTENCY_SYNC));
  CHECK(StatusOf(f.Push(0, 0, 0, 1)) == Status::kOk);
  failpoints().seal_open_steps = true;
  const bool sealed = f.engine->replicas().Seal(0, true);
  failpoints().seal_open_steps = false;
  CHECK(sealed);
}

}  // namespace hand_over_test
}  // namespace verbena::shard
