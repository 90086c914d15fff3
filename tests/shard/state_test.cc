// Reads and assignments of the optimizer's state of dense tables: in a step of a sync table, in the
// order of a worker's pushes, and of 16-bit tables. Replicas: assign_test.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace state_test {

constexpr auto kOk = ReplyStatus::kOk;

FixtureOptions Momentum(v1::Consistency consistency = v1::CONSISTENCY_SYNC) {
  FixtureOptions o;
  o.workers = 1;
  o.consistency = consistency;
  o.optimizer = "momentum";
  o.more.mutable_parameters()->insert({"momentum", 0.5});
  return o;
}

PushOutcome AssignState(Fixture* f, uint32_t rank, uint32_t chunk, uint64_t sequence, uint8_t array,
                        float value, uint64_t applies) {
  const std::vector<float> values = Filled(f->elements(chunk), value);
  PushRequest request = f->PushOf(kFirstWorker + rank, chunk, sequence, values, rank);
  request.dtype = ElementType::kF32;
  request.assigns = true;
  request.array = array;
  request.applies = applies;
  return f->engine->Push(request);
}

PullOutcome PullState(Fixture* f, uint32_t chunk, uint8_t array, uint64_t min_version = 0) {
  PullRequest request;
  request.worker = kFirstWorker;
  request.table = kTable;
  request.group = f->GroupOf(chunk, 0);
  request.dtype = ElementType::kF32;
  request.array = array;
  request.min_version = min_version;
  return f->engine->Pull(request);
}

std::vector<float> ReadState(Fixture* f, uint32_t chunk, uint8_t array, uint64_t* applies) {
  const PullOutcome out = PullState(f, chunk, array);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  *applies = out.answer.applies;
  std::vector<float> values = Fixture::Values(out.view);
  f->engine->Unpin(out.view.pin);
  return values;
}

TEST_CASE("sync: state is read at a version, and assigned in place of the step's gradients") {
  FixtureOptions o = Momentum();
  o.workers = 2;
  const bool first = GENERATE(false, true);
  Fixture f(o);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  uint64_t applies = 0;
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, 2));
  CHECK(applies == 1);
  CHECK(PullState(&f, 0, 1, 2).kind == PullOutcome::Kind::kDeferred);
  const std::vector<float> parameters = f.Read(0);
  if (first) AssignState(&f, 1, 0, 1, 1, 8, 40);
  f.Push(0, 0, 1, 100);
  if (!first) AssignState(&f, 1, 0, 1, 1, 8, 40);
  CHECK(f.Version(0) == 2);
  CHECK(f.Read(0) == parameters);
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, 8));
  CHECK(applies == 40);
  std::vector<Event> events;
  f.engine->TakeEvents(&events);
  const auto ready = std::find_if(events.begin(), events.end(),
                                  [](const Event& e) { return e.kind == Event::Kind::kPullReady; });
  REQUIRE(ready != events.end());  // the pull that waited for version 2
  CHECK(Fixture::Values(ready->view) == Filled(16, 8));
  CHECK(ready->answer.applies == 40);
  f.engine->Unpin(ready->view.pin);
  CHECK(AssignState(&f, 1, 0, 1, 1, 9, 1).answer.status == ReplyStatus::kDuplicate);
  f.Push(0, 0, 2, 1);
  f.Push(1, 0, 2, 1);
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, 6));  // 0.5 * 8 + 2
  CHECK(applies == 41);
}

TEST_CASE("sync: of two assignments in a step that of the highest rank counts, whatever they are") {
  FixtureOptions o = Momentum();
  o.workers = 2;
  const bool state_last = GENERATE(false, true);
  Fixture f(o);
  const std::vector<float> values = Filled(16, 5);
  PushRequest parameters = f.PushOf(kFirstWorker + (state_last ? 0 : 1), 0, 0, values, 0);
  parameters.assigns = true;
  AssignState(&f, state_last ? 1 : 0, 0, 0, 1, 8, 7);
  f.engine->Push(parameters);
  uint64_t applies = 0;
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, state_last ? 8 : 0));
  CHECK(applies == (state_last ? 7 : 0));
  CHECK(f.Read(0) == Filled(16, state_last ? 0 : 5));
}

TEST_CASE("async: state is assigned in the order of a worker's pushes, once") {
  Fixture f(Momentum(GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP)));
  CHECK(f.Push(0, 0, 1, 1).answer.status == kOk);
  CHECK(AssignState(&f, 0, 0, 2, 1, 8, 9).answer.status == kOk);
  CHECK(f.Push(0, 0, 3, 1).answer.status == kOk);
  CHECK(AssignState(&f, 0, 0, 2, 1, 8, 9).answer.status == ReplyStatus::kDuplicate);
  CHECK(AssignState(&f, 0, 0, 5, 1, 8, 9).answer.status == ReplyStatus::kSequenceGap);
  uint64_t applies = 0;
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, 5));
  CHECK(applies == 10);
  CHECK(f.Read(0) == Filled(16, -6));
}

TEST_CASE("a pull of state that is being written out keeps no apply waiting, and its content") {
  FixtureOptions o = Momentum(v1::CONSISTENCY_ASYNC);
  o.spares = 0;
  Fixture f(o);
  f.Push(0, 0, 1, 1);
  const PullOutcome out = PullState(&f, 0, 1);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK_FALSE(f.Push(0, 0, 2, 7).held);
  CHECK(Fixture::Values(out.view) == Filled(16, 1));
  f.engine->Unpin(out.view.pin);
  CHECK(f.engine->counters().spare_exhausted == 0);
}

TEST_CASE("an array that the optimizer lacks is refused, and changes nothing") {
  Fixture f(Momentum(v1::CONSISTENCY_ASYNC));
  CHECK(PullState(&f, 0, 2).answer.status == ReplyStatus::kOutOfRange);
  CHECK(AssignState(&f, 0, 0, 1, 2, 1, 1).answer.status == ReplyStatus::kOutOfRange);
  CHECK(AssignState(&f, 0, 0, 1, 255, 1, 1).answer.status == ReplyStatus::kOutOfRange);
  CHECK(f.Push(0, 0, 1, 1).answer.status == kOk);
}

TEST_CASE("the master copy of a 16-bit table is its last array, and gives the parameters") {
  FixtureOptions o = Momentum(v1::CONSISTENCY_ASYNC);
  o.dtype = v1::DTYPE_BF16;
  Fixture f(o);
  const float value = 1 + 0x1p-12f;
  CHECK(AssignState(&f, 0, 0, 1, 2, value, 3).answer.status == kOk);
  uint64_t applies = 0;
  CHECK(ReadState(&f, 0, 2, &applies) == Filled(16, value));
  CHECK(applies == 3);
  const PullOutcome out = f.Pull(kFirstWorker, 0, 0);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(Fixture::Halves(out.view) == std::vector<uint16_t>(16, 0x3f80));
  f.engine->Unpin(out.view.pin);
  CHECK(AssignState(&f, 0, 0, 2, 1, 4, 5).answer.status == kOk);
  CHECK(ReadState(&f, 0, 2, &applies) == Filled(16, value));
  CHECK(ReadState(&f, 0, 1, &applies) == Filled(16, 4));
}

TEST_CASE("a NaN in assigned state is refused where the table rejects these") {
  Fixture f(Momentum(v1::CONSISTENCY_ASYNC));
  CHECK(AssignState(&f, 0, 0, 1, 1, NAN, 1).answer.status == ReplyStatus::kNonFinite);
}

}  // namespace state_test
}  // namespace verbena::shard
