#include "shard/optimizer/schedule.h"

#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace schedule_test {

v1::Schedule Kind(v1::Schedule::Kind kind, uint64_t period = 0) {
  v1::Schedule spec;
  spec.set_kind(kind);
  spec.set_period(period);
  return spec;
}

v1::Schedule Step() {
  v1::Schedule spec = Kind(v1::Schedule::STEP, 10);
  spec.set_factor(0.5);
  return spec;
}

v1::Schedule Cosine() {
  v1::Schedule spec = Kind(v1::Schedule::COSINE, 100);
  spec.set_floor(0.1);
  return spec;
}

v1::Schedule Piecewise() {
  v1::Schedule spec = Kind(v1::Schedule::PIECEWISE);
  for (const uint64_t b : {5, 7, 20}) spec.add_boundaries(b);
  for (const double r : {0.5, 2.0, 0.0}) spec.add_rates(r);
  return spec;
}

TEST_CASE("a constant rate, given or not") {
  for (const v1::Schedule& spec : {v1::Schedule(), Kind(v1::Schedule::CONSTANT)}) {
    const Schedule schedule(0.3, spec);
    CHECK(schedule.RateAt(1) == 0.3);
    CHECK(schedule.RateAt(UINT64_MAX) == 0.3);
  }
}

TEST_CASE("steps: a drop by the factor after every period") {
  const Schedule schedule(0.8, Step());
  CHECK(schedule.RateAt(1) == 0.8);
  CHECK(schedule.RateAt(10) == 0.8);
  CHECK(schedule.RateAt(11) == 0.4);
  CHECK(schedule.RateAt(20) == 0.4);
  CHECK(schedule.RateAt(31) == 0.1);
  CHECK(schedule.RateAt(UINT64_MAX) == 0);
}

TEST_CASE("a cosine falls from the rate to the floor, and stays there") {
  const Schedule schedule(1.1, Cosine());
  CHECK(schedule.RateAt(1) == 1.1);
  CHECK(schedule.RateAt(26) == Approx(0.1 + 0.5 * (1 + std::sqrt(0.5))));
  CHECK(schedule.RateAt(51) == Approx(0.6));
  CHECK(schedule.RateAt(101) == 0.1);
  CHECK(schedule.RateAt(1000000) == 0.1);
  for (uint64_t t = 1; t < 110; ++t) CHECK(schedule.RateAt(t + 1) <= schedule.RateAt(t));
}

TEST_CASE("piecewise: each rate from its boundary on") {
  const Schedule schedule(1, Piecewise());
  CHECK(schedule.RateAt(1) == 1);
  CHECK(schedule.RateAt(5) == 1);
  CHECK(schedule.RateAt(6) == 0.5);
  CHECK(schedule.RateAt(7) == 0.5);
  CHECK(schedule.RateAt(8) == 2);
  CHECK(schedule.RateAt(20) == 2);
  CHECK(schedule.RateAt(21) == 0);
}

TEST_CASE("a warm-up rises linearly to the schedule's rate, for each kind") {
  for (v1::Schedule spec : {Kind(v1::Schedule::CONSTANT), Step(), Cosine(), Piecewise()}) {
    const Schedule without(0.6, spec);
    spec.set_warmup_steps(8);
    const Schedule with(0.6, spec);
    for (uint64_t t = 1; t <= 8; ++t) {
      CHECK(with.RateAt(t) == Approx(without.RateAt(t) * static_cast<double>(t) / 8));
    }
    CHECK(with.RateAt(8) == without.RateAt(8));
    for (uint64_t t = 9; t < 120; ++t) CHECK(with.RateAt(t) == without.RateAt(t));
  }
}

TEST_CASE("a start at any step has the rates of that step") {
  for (v1::Schedule spec : {Step(), Cosine(), Piecewise()}) {
    spec.set_warmup_steps(3);
    const Schedule one(0.7, spec);
    std::vector<double> rates;
    for (uint64_t t = 1; t <= 150; ++t) rates.push_back(one.RateAt(t));
    for (uint64_t from : {1, 4, 77, 150}) {
      const Schedule again(0.7, spec);
      for (uint64_t t = from; t <= 150; ++t) CHECK(again.RateAt(t) == rates[t - 1]);
    }
  }
}

// sgd on gradients of one: each apply takes the rate off.
FixtureOptions Scheduled(v1::Consistency consistency) {
  FixtureOptions o;
  o.workers = 1;
  o.chunks = 2;
  o.partitions = 1;
  o.consistency = consistency;
  o.rate = 1;
  *o.more.mutable_schedule() = Step();
  o.more.mutable_schedule()->set_period(2);
  return o;
}

TEST_CASE("a table's rate follows its applies, over a new generation of the job too") {
  Fixture f(Scheduled(v1::CONSISTENCY_SYNC));
  REQUIRE(f.applied.ok());
  float expected = 0;
  const float rates[] = {1, 1, 0.5f, 0.5f, 0.25f, 0.25f};
  for (uint64_t t = 0; t < 6; ++t) {
    if (t == 3) {
      f.job()->set_generation(2);
      REQUIRE(f.Apply().ok());
    }
    f.Push(0, 0, t % 3, 1);
    expected -= rates[t];
    CHECK(f.Read(0) == Filled(16, expected));
  }
}

TEST_CASE("async: each chunk counts its own applies; sync: a step without pushes counts") {
  Fixture async(Scheduled(v1::CONSISTENCY_ASYNC));
  async.Push(0, 0, 1, 1);
  async.Push(0, 0, 2, 1);
  async.Push(0, 0, 3, 1);
  async.Push(0, 1, 4, 1);
  CHECK(async.Read(0) == Filled(16, -2.5));
  CHECK(async.Read(1) == Filled(16, -1));

  Fixture sync(Scheduled(v1::CONSISTENCY_SYNC));
  sync.Push(0, 0, 0, 1);
  CHECK(sync.EndStep(0, 0, 0, 1).answer.status == ReplyStatus::kOk);
  sync.Push(0, 0, 1, 1);
  CHECK(sync.EndStep(0, 0, 1, 1).answer.status == ReplyStatus::kOk);
  sync.Push(0, 1, 2, 1);
  CHECK(sync.Read(1) == Filled(16, -0.5));
}

}  // namespace schedule_test
}  // namespace verbena::shard
