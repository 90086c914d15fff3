// Parameters that a worker writes as they are: in a step of a sync table, or in the order of its
// pushes; their rows, memory, replicas and the optimizer's state.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/failpoints.h"
#include "tests/shard/replica_cluster.h"
#include "tests/shard/row_fixture.h"
#include "verbena/half.h"

namespace verbena::shard {
namespace assign_test {

constexpr auto kOk = ReplyStatus::kOk;

PushRequest AssignOf(Fixture* f, uint32_t rank, uint32_t chunk, uint64_t sequence,
                     const std::vector<float>& values) {
  PushRequest request = f->PushOf(kFirstWorker + rank, chunk, sequence, values, rank);
  request.assigns = true;
  return request;
}
PushOutcome Assign(Fixture* f, uint32_t rank, uint32_t chunk, uint64_t sequence, float value) {
  return f->engine->Push(AssignOf(f, rank, chunk, sequence, Filled(f->elements(chunk), value)));
}

TEST_CASE("sync: an assignment replaces the gradients of its step, in any order of arrival") {
  FixtureOptions o;
  o.workers = 3;
  o.initial = 1;
  const std::vector<uint32_t> order =
      GENERATE(std::vector<uint32_t>{0, 1, 2}, std::vector<uint32_t>{2, 1, 0},
               std::vector<uint32_t>{1, 2, 0});
  Fixture f(o);
  for (const uint32_t rank : order) {
    CHECK(f.Read(0) == Filled(16, 1));  // nothing of an open step is read
    if (rank == 1) {
      Assign(&f, 1, 0, 0, 7);
    } else {
      f.Push(rank, 0, 0, 100);
    }
  }
  CHECK(f.Read(0) == Filled(16, 7));
  CHECK(f.Version(0) == 1);
  CHECK(Assign(&f, 1, 0, 0, 8).answer.status == ReplyStatus::kDuplicate);
  // The next step begins there.
  for (uint32_t rank = 0; rank < 3; ++rank) f.Push(rank, 0, 1, 1);
  CHECK(f.Read(0) == Filled(16, 4));
}

TEST_CASE("sync: the assignment of the highest rank in a step counts") {
  FixtureOptions o;
  o.workers = 3;
  const std::vector<uint32_t> order =
      GENERATE(std::vector<uint32_t>{0, 1, 2}, std::vector<uint32_t>{2, 0, 1});
  Fixture f(o);
  for (const uint32_t rank : order) {
    if (rank < 2) {
      Assign(&f, rank, 0, 0, 10.0f + static_cast<float>(rank));
    } else {
      CHECK(f.EndStep(2, 0, 0, 0).answer.status == kOk);
    }
  }
  CHECK(f.Read(0) == Filled(16, 11));
}

TEST_CASE("async: assignments and pushes of a worker are applied in its order, once") {
  FixtureOptions o;
  o.consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  o.staleness = 2;
  Fixture f(o);
  CHECK(f.Push(0, 0, 1, 1).answer.status == kOk);
  CHECK(Assign(&f, 0, 0, 2, 5).answer.status == kOk);
  CHECK(f.Push(0, 0, 3, 1).answer.status == kOk);
  CHECK(Assign(&f, 0, 0, 2, 5).answer.status == ReplyStatus::kDuplicate);
  CHECK(Assign(&f, 0, 0, 5, 5).answer.status == ReplyStatus::kSequenceGap);
  CHECK(f.Read(0) == Filled(16, 4));
}

TEST_CASE("an assignment keeps the optimizer's state") {
  FixtureOptions o;
  o.workers = 1;
  o.optimizer = "momentum";
  o.more.mutable_parameters()->insert({"momentum", 0.5});
  Fixture f(o);
  f.Push(0, 0, 0, 2);  // velocity 2
  Assign(&f, 0, 0, 1, 10);
  CHECK(f.Read(0) == Filled(16, 10));
  f.Push(0, 0, 2, 1);  // velocity 0.5 * 2 + 1
  CHECK(f.Read(0) == Filled(16, 8));
}

// Its parameters are a function of its state.
TEST_CASE("regression: ftrl goes on from parameters that were assigned") {
  FixtureOptions o;
  o.workers = 1;
  o.consistency = v1::CONSISTENCY_ASYNC;
  o.optimizer = "ftrl";
  o.rate = 0.5;
  o.dtype = GENERATE(v1::DTYPE_F32, v1::DTYPE_BF16);
  o.more.mutable_parameters()->insert({{"l1", 0.5}, {"l2", 0.25}});
  if (GENERATE(false, true)) {  // another kernel
    o.more.mutable_schedule()->set_kind(v1::Schedule::STEP);
    o.more.mutable_schedule()->set_period(1);
    o.more.mutable_schedule()->set_factor(0.5);
  }
  const bool fresh = GENERATE(false, true);
  const float value = GENERATE(5.0f, -3.0f, 0.0f);
  Fixture f(o);
  const auto read = [&] {
    const PullOutcome out = f.Pull(kFirstWorker, 0, 0);
    REQUIRE(out.kind == PullOutcome::Kind::kReady);
    const float first = o.dtype == v1::DTYPE_F32 ? Fixture::Values(out.view)[0]
                                                 : FloatFromBFloat16(Fixture::Halves(out.view)[0]);
    f.engine->Unpin(out.view.pin);
    return first;
  };
  f.Push(0, 0, 1, fresh ? 0 : 2);
  PushRequest assign = AssignOf(&f, 0, 0, 2, Filled(16, value));
  const std::vector<uint16_t> halves(16, BFloat16FromFloat(value));
  if (o.dtype == v1::DTYPE_BF16) {
    assign.dtype = ElementType::kBf16;
    assign.payload = {reinterpret_cast<const std::byte*>(halves.data()), 32};
  }
  CHECK(f.engine->Push(assign).answer.status == kOk);
  f.Push(0, 0, 3, 0);
  CHECK(read() == Approx(value).margin(1e-6));
  f.Push(0, 0, 4, -1);
  CHECK(read() > value);
}

TEST_CASE("the first gradient of an assigned chunk is its optimizer's first") {
  FixtureOptions o;
  o.workers = 1;
  o.consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  o.optimizer = "adam";
  uint64_t next = o.consistency == v1::CONSISTENCY_SYNC ? 0 : 1, fresh_next = next;
  Fixture assigned(o), fresh(o);
  for (int i = 0; i < 2; ++i) CHECK(Assign(&assigned, 0, 0, next++, 0).answer.status == kOk);
  for (const float gradient : {3.0f, 1.0f}) {
    assigned.Push(0, 0, next++, gradient);
    fresh.Push(0, 0, fresh_next++, gradient);
    CHECK(assigned.Read(0) == fresh.Read(0));
  }
  // After the first gradient an assignment counts, as a gradient would.
  Assign(&assigned, 0, 0, next++, 0);
  assigned.Push(0, 0, next++, 1);
  const float without = fresh.Read(0)[0];
  fresh.Push(0, 0, fresh_next++, 1);
  CHECK(assigned.Read(0)[0] != fresh.Read(0)[0] - without);
}

TEST_CASE("16 bits: assigned values are pulled bit for bit, and trained on in f32") {
  FixtureOptions o;
  o.workers = 1;
  o.chunk_elements = o.last_elements = 32;
  o.dtype = GENERATE(v1::DTYPE_BF16, v1::DTYPE_F16);
  o.gradient_dtype = o.dtype == v1::DTYPE_BF16 ? v1::DTYPE_BF16 : v1::DTYPE_F32;
  Fixture f(o);
  std::vector<uint16_t> halves(32);
  for (uint16_t i = 0; i < 32; ++i) halves[i] = static_cast<uint16_t>(0x3c00 + i * 37);
  PushRequest request = f.PushOf(kFirstWorker, 0, 0, Filled(32, 0), 0);
  request.payload = {reinterpret_cast<const std::byte*>(halves.data()), 64};
  request.dtype = static_cast<ElementType>(o.dtype);
  request.assigns = true;
  CHECK(f.engine->Push(request).answer.status == kOk);
  const PullOutcome out = f.Pull(kFirstWorker, 0, 1);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(Fixture::Halves(out.view) == halves);
  f.engine->Unpin(out.view.pin);
  // Gradients have another type than parameters.
  request.dtype = ElementType::kF32;
  request.group.sequence = 1;
  CHECK(f.engine->Push(request).answer.status == ReplyStatus::kMalformed);
}

TEST_CASE("an assignment with a NaN is refused, and an empty one settles its sequence") {
  FixtureOptions o;
  o.workers = 1;
  o.initial = 3;
  Fixture f(o);
  CHECK(Assign(&f, 0, 0, 0, kNan).answer.status == ReplyStatus::kNonFinite);
  CHECK(f.engine->Push(AssignOf(&f, 0, 0, 0, {})).answer.status == kOk);
  CHECK(f.Read(0) == Filled(16, 3));
  CHECK(f.Version(0) == 1);
}

TEST_CASE("a pull that is being written out keeps its values") {
  FixtureOptions o;
  o.workers = 1;
  o.consistency = v1::CONSISTENCY_ASYNC;
  Fixture f(o);
  const PullOutcome out = f.Pull(kFirstWorker, 0, 0);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(Assign(&f, 0, 0, 1, 5).answer.status == kOk);
  CHECK(Fixture::Values(out.view) == Filled(16, 0));
  f.engine->Unpin(out.view.pin);
  CHECK(f.Read(0) == Filled(16, 5));
}

// ---- rows ---------------------------------------------------------------------------------------

ReplyStatus AssignRows(RowFixture* f, uint32_t rank, uint32_t partition, uint64_t sequence,
                       const std::vector<uint64_t>& of, float value, uint32_t index = 0) {
  f->keys = of;
  f->values.assign(of.size() * f->options.dim, value);
  f->groups = {f->GroupOf(partition, sequence, of.size(), index)};
  PushRowsRequest request = f->PushOf(rank);
  request.assigns = true;
  request.dtype = ElementType::kF32;
  request.rows = {reinterpret_cast<const std::byte*>(f->values.data()),
                  f->values.size() * sizeof(float)};
  return f->engine->PushRows(request).group_status[0];
}

TEST_CASE("rows: an assignment creates its rows, also where admission refuses pushes") {
  RowOptions o;
  o.workers = 1;
  o.admission.set_kind(v1::Admission::MIN_COUNT);
  o.admission.set_min_count(3);
  o.push_codec = GENERATE(v1::CODEC_NONE, v1::CODEC_INT8);
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(1, 3);
  CHECK(AssignRows(&f, 0, 1, 1, keys, 5) == kOk);
  for (const uint64_t key : keys) CHECK(f.ReadRow(key) == f.Filled(5));
  CHECK(f.Scan(1, 10).size() == 3);
  CHECK(f.PushValue(0, 1, 2, keys, 1) == kOk);
  CHECK(f.ReadRow(keys[0])[0] == Approx(4));
  CHECK(AssignRows(&f, 0, 1, 1, keys, 9) == ReplyStatus::kDuplicate);
}

TEST_CASE("rows: without memory for new rows nothing is assigned") {
  RowOptions o;
  o.workers = 1;
  RowFixture f(o);
  CHECK(AssignRows(&f, 0, 0, 1, f.KeysIn(0, 1), 1) == kOk);
  f.allocator.limit = f.allocator.used;
  CHECK(AssignRows(&f, 0, 0, 2, f.KeysIn(0, 4000), 2) == ReplyStatus::kMemoryLimit);
  CHECK(f.ReadRow(f.KeysIn(0, 1)[0]) == f.Filled(1));
}

TEST_CASE("rows: the first gradient of an assigned row is its optimizer's first") {
  RowOptions o;
  o.workers = 1;
  o.optimizer.set_name("adam");
  o.optimizer.set_rate(0.5);
  RowFixture assigned(o), fresh(o);
  const std::vector<uint64_t> keys = assigned.KeysIn(0, 1);
  const Row initial = assigned.ReadRow(keys[0]);
  assigned.keys = keys;
  CHECK(AssignRows(&assigned, 0, 0, 1, keys, 0) == kOk);
  CHECK(assigned.PushValue(0, 0, 2, keys, 1) == kOk);
  CHECK(fresh.PushValue(0, 0, 1, keys, 1) == kOk);
  const Row row = fresh.ReadRow(keys[0]);
  for (size_t d = 0; d < row.size(); ++d) {
    CHECK(assigned.ReadRow(keys[0])[d] == Approx(row[d] - initial[d]).epsilon(1e-5));
  }
}

TEST_CASE("regression: rows: ftrl goes on from rows that were assigned") {
  RowOptions o;
  o.workers = 1;
  o.optimizer.set_name("ftrl");
  o.optimizer.set_rate(0.5);
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  CHECK(f.PushValue(0, 0, 1, {keys[0]}, 2) == kOk);
  CHECK(AssignRows(&f, 0, 0, 2, keys, 5) == kOk);
  CHECK(f.PushValue(0, 0, 3, keys, 0) == kOk);
  for (const uint64_t key : keys) CHECK(f.ReadRow(key)[0] == Approx(5));
}

TEST_CASE("rows, sync: a row takes the last assignment of the step, or else all gradients") {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.initializer.Clear();
  o.initializer.set_kind(v1::Initializer::ZEROS);
  const bool reverse = GENERATE(false, true);
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(2, 3);
  const auto zero = [&] {
    CHECK(f.PushValue(0, 2, 0, {keys[0], keys[1]}, 1) == kOk);
    CHECK(AssignRows(&f, 0, 2, 0, {keys[0]}, 6, 1) == kOk);
    CHECK(f.EndStatus(0, 2, 0, 2) == kOk);
  };
  if (!reverse) zero();
  CHECK(f.PushValue(1, 2, 0, {keys[0], keys[1]}, 1) == kOk);
  CHECK(AssignRows(&f, 1, 2, 0, {keys[2]}, 7, 1) == kOk);
  CHECK(f.EndStatus(1, 2, 0, 2) == kOk);
  if (reverse) zero();
  CHECK(f.ReadRow(keys[0]) == f.Filled(6));
  CHECK(f.ReadRow(keys[1]) == f.Filled(-2));
  CHECK(f.ReadRow(keys[2]) == f.Filled(7));
}

// ---- replicas -----------------------------------------------------------------------------------

using Contents = std::map<uint64_t, std::vector<float>>;

std::string Finding(const ReplicaPlan& plan) {
  ReplicaPlan calm = plan;
  calm.replicas = 1;
  calm.faults = false;
  ReplicaCluster reference(calm);
  REQUIRE(reference.Run());
  const Contents expected = reference.Contents();
  ReplicaCluster cluster(plan);
  const bool ended = cluster.Run();
  if (!cluster.error.empty()) return cluster.error;
  if (!ended) return "workers did not go on";
  if (cluster.Contents() != expected) return "primaries have something else";
  cluster.PromoteAll();
  return cluster.Contents() != expected ? "replicas have something else" : cluster.error;
}

TEST_CASE("failpoint: a replica that takes assigned parameters for gradients is detected") {
  const bool rows = GENERATE(false, true);
  std::string found;
  failpoints().replicate_as_gradients = true;
  for (uint32_t seed = 1; seed <= 10 && found.empty(); ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, rows, v1::CONSISTENCY_ASYNC);
    plan.assigns = true;
    found = Finding(plan);
  }
  failpoints().replicate_as_gradients = false;
  CHECK(found != "");
}

TEST_CASE(
    "failpoint: a replica that keeps its state where the primary's was assigned is detected") {
  std::string found;
  failpoints().replicate_no_state = true;
  for (uint32_t seed = 2; seed <= 20 && found.empty(); seed += 2) {
    ReplicaPlan plan = MakeReplicaPlan(seed, false, v1::CONSISTENCY_SYNC);
    plan.assigns = true;
    found = Finding(plan);
  }
  failpoints().replicate_no_state = false;
  CHECK(found != "");
}

TEST_CASE("replicas: each assignment is applied once and in order under failures") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const bool cold = rows && GENERATE(false, true);
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, rows, consistency);
    plan.assigns = true;
    plan.cold = cold;
    CAPTURE(seed, rows, static_cast<int>(consistency), cold);
    REQUIRE(Finding(plan) == "");
  }
}

}  // namespace assign_test
}  // namespace verbena::shard
