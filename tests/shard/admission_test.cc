// Admission: the keys of an embedding table that get a row, in any order of workers, and the pushes
// of the other keys.
#include "shard/table/admission.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

RowOptions MinCount(uint32_t count, v1::Consistency consistency) {
  RowOptions o;
  o.consistency = consistency;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  o.admission.set_kind(v1::Admission::MIN_COUNT);
  o.admission.set_min_count(count);
  o.admission.set_sketch_bytes(uint64_t{1} << 20);
  return o;
}

uint64_t Refused(const RowFixture& f) { return f.engine->tables()[0].counters.refused_keys; }

TEST_CASE("a key gets a row with its third push, and its earlier pushes are dropped") {
  RowFixture f(MinCount(3, v1::CONSISTENCY_ASYNC));
  const std::vector<uint64_t> keys = f.KeysIn(1, 3);
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) {
    INFO("push " << sequence);
    const std::vector<uint64_t> named = sequence == 4 ? keys : std::vector{keys[0]};
    REQUIRE(f.PushValue(0, 1, sequence, named, 1) == ReplyStatus::kOk);
    CHECK(f.ReadRow(keys[0]) == f.Filled(sequence < 3 ? 0.0f : -static_cast<float>(sequence - 2)));
    CHECK(f.ReadRow(keys[1]) == f.Filled(0));
    CHECK(f.engine->tables()[0].rows == (sequence < 3 ? 0 : 1));
  }
  CHECK(Refused(f) == 4);
  // One that was sent twice is counted once.
  REQUIRE(f.PushValue(0, 1, 6, {keys[1]}, 1) == ReplyStatus::kOk);
  REQUIRE(f.PushValue(0, 1, 6, {keys[1]}, 1) == ReplyStatus::kDuplicate);
  CHECK(f.engine->tables()[0].rows == 1);
  REQUIRE(f.PushValue(0, 1, 7, {keys[1]}, 1) == ReplyStatus::kOk);
  CHECK(f.ReadRow(keys[1]) == f.Filled(-1));
}

TEST_CASE(
    "within a step the order of workers does not matter, and all gradients of a new key count") {
  const bool turned = GENERATE(false, true);
  RowFixture f(MinCount(4, v1::CONSISTENCY_SYNC));
  const uint64_t key = f.KeysIn(0, 1)[0];
  const uint64_t lonely = f.KeysIn(0, 2)[1];
  for (uint64_t step = 0; step < 4; ++step) {
    for (const uint32_t rank : {turned ? 1u : 0u, turned ? 0u : 1u}) {
      Rows rows = {{key, f.Filled(rank + 1.0f)}};
      if (rank == 0) rows[lonely] = f.Filled(8);
      REQUIRE(f.PushStatus(rank, 0, step, rows) == ReplyStatus::kOk);
    }
    for (const uint32_t rank : {0u, 1u}) f.EndStep(rank, 0, step, 1);
    INFO("step " << step);
    // Two pushes a step: with the third step it had four.
    CHECK(f.ReadRow(key) == f.Filled(step < 2 ? 0.0f : -3.0f * static_cast<float>(step - 1)));
    CHECK(f.ReadRow(lonely) == f.Filled(step < 3 ? 0 : -8));
  }
}

TEST_CASE("with space for all keys counts are exact, and every key gets its row at its count") {
  const uint64_t sketch = GENERATE(uint64_t{1} << 20, uint64_t{4096});
  RowOptions o = MinCount(5, v1::CONSISTENCY_ASYNC);
  o.admission.set_sketch_bytes(sketch);
  RowFixture f(o);
  std::mt19937_64 random(7);
  std::map<uint64_t, uint32_t> pushed;
  std::vector<uint64_t> sequence(o.partitions, 0);
  for (int i = 0; i < 3000; ++i) {
    const uint64_t key = random() % 300 + (random() % 4 == 0 ? 100'000 + random() % 100'000 : 0);
    const uint32_t p = f.PartitionOf(key);
    REQUIRE(f.PushValue(0, p, ++sequence[p], {key}, 1) == ReplyStatus::kOk);
    ++pushed[key];
  }
  size_t exact = 0;
  for (const auto& [key, count] : pushed) {
    const float applied = -f.ReadRow(key)[0];
    const float least = count < 5 ? 0.0f : static_cast<float>(count - 4);
    CHECK(applied <= static_cast<float>(count));
    if (sketch > 4096) CHECK(applied >= least);
    if (applied == least) ++exact;
  }
  if (sketch > 4096) {
    CHECK(exact == pushed.size());
  } else {
    CHECK(exact < pushed.size());  // four lines a partition: they share counters
  }
}

TEST_CASE("any number of keys that are pushed only once get no rows") {
  RowOptions o = MinCount(4, v1::CONSISTENCY_ASYNC);
  o.partitions = 1;
  o.admission.set_sketch_bytes(4096);
  RowFixture f(o);
  constexpr size_t kPush = 500;
  std::vector<uint64_t> keys(kPush);
  for (uint64_t i = 0; i < 200; ++i) {
    for (size_t k = 0; k < kPush; ++k) keys[k] = i * kPush + k;
    REQUIRE(f.PushValue(0, 0, i + 1, keys, 1) == ReplyStatus::kOk);
  }
  // 100,000 keys, 4096 counters: never halved, all would get one.
  CHECK(f.engine->tables()[0].rows < 40'000);
  CHECK(Refused(f) + f.engine->tables()[0].rows == 200 * kPush);
}

TEST_CASE("probability: about the configured share of keys gets a row with each push") {
  RowOptions o;
  o.partitions = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  o.consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC);
  o.admission.set_kind(v1::Admission::PROBABILITY);
  o.admission.set_probability(0.25);
  o.admission.set_seed(3);
  RowFixture f(o);
  const bool sync = o.consistency == v1::CONSISTENCY_SYNC;
  const std::vector<uint64_t> keys = f.KeysIn(0, 2000);
  double rest = 1;
  for (uint64_t i = 0; i < 3; ++i) {
    for (const uint32_t rank : {0u, 1u}) {
      if (rank == 1 && !sync) continue;
      REQUIRE(f.PushValue(rank, 0, sync ? i : i + 1, keys, 1) == ReplyStatus::kOk);
    }
    if (sync) {
      for (const uint32_t rank : {0u, 1u}) f.EndStep(rank, 0, i, 1);
    }
    rest *= 0.75;
    const auto rows = static_cast<double>(f.engine->tables()[0].rows);
    CHECK(rows == Approx(2000 * (1 - rest)).margin(120));
  }
  // All gradients of a key in a step count, or none.
  for (const uint64_t key : keys) {
    const float applied = -f.ReadRow(key)[0];
    CHECK(std::set<float>{0, 1, 2, 3}.contains(sync ? applied / 2 : applied));
  }
}

TEST_CASE("without memory for a sketch pushes go on, and no key gets a row") {
  RowFixture f(MinCount(2, v1::CONSISTENCY_ASYNC));
  const std::vector<uint64_t> keys = f.KeysIn(0, 10);
  f.allocator.limit = f.allocator.used;
  for (uint64_t i = 1; i < 4; ++i) {
    REQUIRE(f.PushValue(0, 0, i, keys, 1) == ReplyStatus::kOk);
    CHECK(f.engine->tables()[0].rows == 0);
  }
  f.allocator.limit = SIZE_MAX;
  REQUIRE(f.PushValue(0, 0, 4, keys, 1) == ReplyStatus::kOk);
  REQUIRE(f.PushValue(0, 0, 5, keys, 1) == ReplyStatus::kOk);
  CHECK(f.engine->tables()[0].rows == 10);
}

TEST_CASE("an invalid admission in a view does not crash the engine") {
  RowOptions o = MinCount(0, v1::CONSISTENCY_ASYNC);
  SECTION("a count of 0") {}
  SECTION("a probability that is a NaN") {
    o.admission.set_kind(v1::Admission::PROBABILITY);
    o.admission.set_probability(std::numeric_limits<double>::quiet_NaN());
  }
  SECTION("a probability above 1") {
    o.admission.set_kind(v1::Admission::PROBABILITY);
    o.admission.set_probability(1e30);
  }
  SECTION("a sketch larger than memory") {
    o.admission.set_min_count(300);
    o.admission.set_sketch_bytes(UINT64_MAX);
  }
  RowFixture f(o);
  f.allocator.limit = 1 << 20;
  REQUIRE(f.PushValue(0, 0, 1, f.KeysIn(0, 5), 1) == ReplyStatus::kOk);
}

}  // namespace
}  // namespace verbena::shard
