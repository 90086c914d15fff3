// A table that skips NaN and Inf: the push counts as zero, and only a counter reports it.
#include <catch2/catch.hpp>
#include <limits>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

TEST_CASE("sync: a skipped push is answered OK and contributes zero, and its worker counts") {
  FixtureOptions o;
  o.reduction = v1::REDUCTION_MEAN;
  o.non_finite = v1::NON_FINITE_SKIP;
  Fixture f(o);
  std::vector<float> bad = Filled(16, 1);
  bad[15] = kNan;
  CHECK(f.Push(1, 0, 0, bad).answer.status == Status::kOk);         // at once, not held
  CHECK(f.Push(1, 0, 0, bad).answer.status == Status::kDuplicate);  // its lost reply, again
  f.Push(0, 0, 0, 6);
  CHECK(f.Read(0) == Filled(16, -3));
  CHECK(f.commits[0].contributors == std::vector<uint64_t>{kFirstWorker});
  CHECK(f.commits[0].divisor == 2);
  // In the middle of a step that has an accumulator, as the last to arrive.
  f.Push(0, 0, 1, 2);
  bad[15] = std::numeric_limits<float>::infinity();
  const PushOutcome last = f.Push(1, 0, 1, bad);
  CHECK(last.answer.status == Status::kOk);
  CHECK(last.answer.version == 2);
  CHECK(f.Read(0) == Filled(16, -4));
  CHECK(f.engine->counters().non_finite == 2);
  CHECK(f.engine->counters().refused == 0);
  const std::vector<TableStatistics> tables = f.engine->tables();
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].id == kTable);
  CHECK(tables[0].name == "table");
  CHECK(tables[0].counters.non_finite == 2);
  CHECK(tables[0].counters.pushes == f.engine->counters().pushes);
  CHECK(tables[0].counters.push_bytes == f.engine->counters().push_bytes);
  CHECK(tables[0].counters.pulls == f.engine->counters().pulls);
  CHECK(tables[0].parameter_bytes == 4 * 64);
  CHECK(f.EndStep(1, 0, 1, 1).answer.status == Status::kOk);
}

TEST_CASE("sync: a step of skipped pushes alone commits and changes nothing") {
  FixtureOptions o;
  o.non_finite = v1::NON_FINITE_SKIP;
  o.initial = 3;
  Fixture f(o);
  f.Push(0, 0, 0, kNan);
  f.Push(1, 0, 0, kNan);
  CHECK(f.Version(0) == 1);
  CHECK(f.Read(0) == Filled(16, 3));
}

TEST_CASE("async: a skipped push consumes its sequence and changes nothing") {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_ASYNC;
  o.non_finite = v1::NON_FINITE_SKIP;
  Fixture f(o);
  CHECK(f.Push(0, 0, 1, kNan).answer.status == Status::kOk);
  CHECK(f.Push(0, 0, 1, kNan).answer.status == Status::kDuplicate);
  CHECK(f.Version(0) == 0);
  CHECK(f.Push(0, 0, 2, 1).answer.version == 1);
  CHECK(f.Read(0) == Filled(16, -1));
  CHECK(f.engine->counters().non_finite == 1);
}

TEST_CASE("the apply policy applies a NaN and counts none") {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_ASYNC;
  o.non_finite = v1::NON_FINITE_APPLY;
  Fixture f(o);
  CHECK(f.Push(0, 0, 1, kNan).answer.status == Status::kOk);
  CHECK(std::isnan(f.Read(0)[0]));
  CHECK(f.engine->counters().non_finite == 0);
}

}  // namespace
}  // namespace verbena::shard
