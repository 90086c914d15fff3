// Clipping and weight decay as a table's user sees them, and that neither the cut into chunks nor
// the number of servers shows in the result.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shard/allocator.h"
#include "shard/table/dense_table.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace clipping_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST_CASE("clipping by value bounds each element of the reduced gradient, not of each push") {
  FixtureOptions o;
  o.chunk_elements = 64;
  o.last_elements = 4;
  o.chunks = 1;
  o.more.set_clip_value(1);
  Fixture f(o);
  REQUIRE(f.applied.ok());
  f.Push(0, 0, 0, {5, 0.25f, -3, 1});
  f.Push(1, 0, 0, {-5, 0.25f, -3, 0});
  CHECK(f.Read(0) == std::vector<float>{0, -0.5f, 1, -1});
}

TEST_CASE(
    "clipping by norm scales a chunk's reduced gradient down to the norm, but not a smaller one") {
  FixtureOptions o;
  o.chunks = 2;
  o.chunk_elements = 64;
  o.last_elements = 2;
  o.reduction = v1::REDUCTION_MEAN;
  o.more.set_clip_chunk_norm(1);
  Fixture f(o);
  REQUIRE(f.applied.ok());
  // The mean is (3, 4), of norm 5.
  f.Push(0, 1, 0, {6, 0});
  f.Push(1, 1, 0, {0, 8});
  CHECK(f.Read(1)[0] == Approx(-0.6));
  CHECK(f.Read(1)[1] == Approx(-0.8));
  // The other chunk's norm is 8 * 0.125 = 1, which is allowed.
  f.Push(0, 0, 0, 0.125f);
  f.Push(1, 0, 0, 0.125f);
  CHECK(f.Read(0) == Filled(64, -0.125f));
}

TEST_CASE("norms are clipped in async too, and a gradient of zero stays zero") {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_ASYNC;
  o.chunks = 1;
  o.chunk_elements = o.last_elements = 64;
  o.more.set_clip_chunk_norm(2);
  Fixture f(o);
  f.Push(0, 0, 1, 0);
  CHECK(f.Read(0) == Filled(64, 0));
  f.Push(0, 0, 2, 1e30f);  // squares that no f32 holds
  CHECK(f.Read(0)[63] == Approx(-0.25));
}

TEST_CASE("under apply, clipping keeps a NaN visible and bounds an infinity") {
  FixtureOptions o;
  o.chunks = 1;
  o.chunk_elements = 64;
  o.last_elements = 3;
  o.workers = 1;
  o.non_finite = v1::NON_FINITE_APPLY;
  o.more.set_clip_value(2);
  Fixture f(o);
  f.Push(0, 0, 0, {kNan, kInfinity, -kInfinity});
  CHECK(std::isnan(f.Read(0)[0]));
  CHECK(f.Read(0)[1] == -2);
  CHECK(f.Read(0)[2] == 2);
}

TEST_CASE("the gradient is clipped without the weight decay") {
  FixtureOptions o;
  o.chunks = 1;
  o.chunk_elements = o.last_elements = 16;
  o.workers = 1;
  o.initial = 8;
  o.more.set_clip_value(1);
  (*o.more.mutable_parameters())["weight_decay"] = 0.5;
  Fixture f(o);
  f.Push(0, 0, 0, 100);
  CHECK(f.Read(0) == Filled(16, 8 - (1 + 4)));
}

TEST_CASE("weights decay in a step without pushes") {
  FixtureOptions o;
  o.chunks = 2;
  o.partitions = 1;
  o.workers = 1;
  o.initial = 8;
  (*o.more.mutable_parameters())["weight_decay"] = 0.25;
  Fixture f(o);
  f.Push(0, 0, 0, 0);
  CHECK(f.EndStep(0, 0, 0, 1).answer.status == ReplyStatus::kOk);
  CHECK(f.Read(0) == Filled(16, 6));
  CHECK(f.Read(1) == Filled(16, 6));
}

constexpr size_t kElements = 3000;
constexpr uint32_t kPartitions = 8;

v1::Table TableOf(const v1::Optimizer& optimizer, uint32_t chunk_bytes) {
  v1::Table table;
  table.set_id(7);
  v1::TableSpec* spec = table.mutable_spec();
  spec->set_name("table");
  spec->add_shape(kElements);
  spec->set_dtype(v1::DTYPE_F32);
  spec->set_consistency(v1::CONSISTENCY_SYNC);
  spec->mutable_initializer()->set_kind(v1::Initializer::NORMAL);
  spec->mutable_initializer()->set_b(1);
  *spec->mutable_optimizer() = optimizer;
  spec->set_chunk_bytes(chunk_bytes);
  return table;
}

// The parameters after 30 steps of mean gradients of three, from `servers` that share the chunks.
std::vector<float> Train(const v1::Optimizer& optimizer, uint32_t chunk_bytes, uint32_t servers) {
  HeapAllocator heap;
  std::vector<float> result(kElements);
  for (uint32_t server = 0; server < servers; ++server) {
    uint64_t resident = 0;
    BufferPool pool(&heap, 1, &resident);
    std::vector<Placement> placement(kPartitions);
    for (uint32_t p = 0; p < kPartitions; ++p) placement[p].ours = p % servers == server;
    auto table = *DenseTable::Create(TableOf(optimizer, chunk_bytes), kPartitions, &pool);
    REQUIRE(table->Acquire(placement).ok());
    std::mt19937 random(5);
    std::normal_distribution<float> normal(0, 1);
    std::vector<std::vector<float>> gradients(3, std::vector<float>(kElements));
    for (int step = 0; step < 30; ++step) {
      for (auto& g : gradients) {
        for (float& x : g) x = normal(random);
      }
      for (uint32_t i = 0; i < table->chunks(); ++i) {
        const uint64_t first = table->layout().first_element(table->chunk(i).id);
        const Source sources[3] = {&gradients[0][first], &gradients[1][first],
                                   &gradients[2][first]};
        REQUIRE(table->Apply(i, sources, 3));
      }
    }
    for (uint32_t i = 0; i < table->chunks(); ++i) {
      const ChunkView view = table->Pin(i);
      std::memcpy(&result[table->layout().first_element(table->chunk(i).id)], view.buffer.data,
                  view.bytes);
      pool.Unpin(view.pin);
    }
  }
  return result;
}

v1::Optimizer Full(const std::string& name) {
  v1::Optimizer spec;
  spec.set_name(name);
  spec.set_rate(0.05);
  spec.mutable_schedule()->set_kind(v1::Schedule::COSINE);
  spec.mutable_schedule()->set_period(25);
  spec.mutable_schedule()->set_warmup_steps(4);
  if (name != "ftrl") (*spec.mutable_parameters())["weight_decay"] = 0.01;
  return spec;
}

TEST_CASE("any number of servers and chunks gives the same bits") {
  for (const char* name :
       {"adagrad", "adam", "adamw", "ftrl", "momentum", "nesterov", "rmsprop", "sgd"}) {
    INFO(name);
    v1::Optimizer spec = Full(name);
    const std::vector<float> whole = Train(spec, 16384, 1);
    for (const uint32_t chunk_bytes : {256, 4096}) {
      for (const uint32_t servers : {1, 2, 5}) {
        CHECK(SameBits(Train(spec, chunk_bytes, servers), whole));
      }
    }
    spec.set_clip_value(0.4);
    const std::vector<float> clipped = Train(spec, 16384, 1);
    CHECK_FALSE(SameBits(clipped, whole));
    CHECK(SameBits(Train(spec, 256, 5), clipped));
    // The norm is a chunk's, so the cut shows; the number of servers does not.
    spec.set_clip_value(0);
    spec.set_clip_chunk_norm(2);
    const std::vector<float> norms = Train(spec, 256, 1);
    CHECK_FALSE(SameBits(norms, whole));
    for (const uint32_t servers : {2, 5}) CHECK(SameBits(Train(spec, 256, servers), norms));
  }
}

}  // namespace clipping_test
}  // namespace verbena::shard
