// Embedding tables at the memory limit.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace rows_memory_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

RowOptions Options(v1::Consistency consistency) {
  RowOptions o;
  o.consistency = consistency;
  o.workers = 1;
  o.dim = 64;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  o.optimizer.set_name("adagrad");
  return o;
}

// Pushes new rows until there is no room. How many rows there are.
size_t Fill(RowFixture* f, const std::vector<uint64_t>& keys, uint64_t* sequence) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const Status status = f->PushValue(0, 0, ++*sequence, {keys[i]}, 1);
    if (status == Status::kMemoryLimit) {
      --*sequence;  // which a refused push does not take
      return i;
    }
    REQUIRE(status == Status::kOk);
  }
  FAIL("the limit was not reached");
  return 0;
}

TEST_CASE("at the memory limit existing rows are updated, and new ones are refused") {
  RowFixture f(Options(v1::CONSISTENCY_ASYNC));
  f.allocator.limit = size_t{3} << 20;
  const std::vector<uint64_t> keys = f.KeysIn(0, 10000);
  uint64_t sequence = 0;
  const size_t rows = Fill(&f, keys, &sequence);
  CHECK(rows > 2000);  // of 516 bytes each
  CHECK(f.allocator.used <= f.allocator.limit);
  CHECK(f.engine->counters().resident_bytes == f.allocator.used);

  const GroupsOutcome refused = f.Push(0, 0, ++sequence, {{keys[rows], f.Filled(1)}});
  CHECK(refused.group_status[0] == Status::kMemoryLimit);
  CHECK(refused.answer.status == Status::kMemoryLimit);
  CHECK(refused.answer.detail == 3);  // MiB
  // Its answer may have been lost.
  CHECK(f.PushValue(0, 0, sequence, {keys[rows]}, 1) == Status::kMemoryLimit);
  CHECK(f.PushStatus(0, 0, sequence, {}) == Status::kOk);
  CHECK(f.PushValue(0, 0, sequence, {keys[rows]}, 1) == Status::kDuplicate);

  // All of a group or nothing.
  const Row first = f.ReadRow(keys[0]);
  CHECK(f.PushValue(0, 0, ++sequence, {keys[0], keys[rows]}, 1) == Status::kMemoryLimit);
  CHECK(SameBits(f.ReadRow(keys[0]), first));
  CHECK(f.engine->tables()[0].rows == rows);

  CHECK(f.PushValue(0, 0, sequence, {keys[0], keys[1]}, 1) == Status::kOk);
  CHECK_FALSE(SameBits(f.ReadRow(keys[0]), first));
  CHECK(f.ReadRow(keys[rows]) == f.Filled(0));
  CHECK(f.Scan(0, 100).size() == rows);

  f.allocator.limit *= 2;
  CHECK(f.PushValue(0, 0, ++sequence, {keys[rows]}, 1) == Status::kOk);
  CHECK(f.engine->tables()[0].rows == rows + 1);
}

TEST_CASE("rows stay unchanged wherever memory runs out") {
  RowFixture whole(Options(v1::CONSISTENCY_ASYNC));
  const std::vector<uint64_t> keys = whole.KeysIn(0, 600);
  const std::vector<uint64_t> some(keys.begin(), keys.begin() + 100);
  CHECK(whole.PushValue(0, 0, 1, keys, 1) == Status::kOk);
  const size_t enough = whole.allocator.used;
  size_t refusals = 0;
  for (size_t limit = 0; limit <= enough + 4096; limit += 4096) {
    RowFixture f(Options(v1::CONSISTENCY_ASYNC));
    f.PushValue(0, 0, 1, some, 1);
    const Rows before = f.Scan(0, 1000);
    const size_t used = f.allocator.used;
    f.allocator.limit = limit;
    const Status status = f.PushValue(0, 0, 2, keys, 1);
    if (status == Status::kMemoryLimit) {
      ++refusals;
      CHECK(f.allocator.used == used);
      CHECK(SameRows(f.Scan(0, 1000), before));
      f.allocator.limit = SIZE_MAX;
      CHECK(f.PushValue(0, 0, 2, keys, 1) == Status::kOk);
    } else {
      CHECK(status == Status::kOk);
    }
    CHECK(f.Scan(0, 1000).size() == 600);
  }
  CHECK(refusals > 5);
}

TEST_CASE("regression: a sync push without room counts as pushed once an empty one settles it") {
  RowFixture f(Options(v1::CONSISTENCY_SYNC));
  const std::vector<uint64_t> keys = f.KeysIn(0, 2);
  CHECK(f.PushValue(0, 0, 0, {keys[0]}, 1) == Status::kOk);
  f.allocator.limit = 0;
  const std::vector<uint64_t> more = f.KeysIn(0, 100, keys[1]);
  CHECK(f.PushValue(0, 0, 0, more, 1, 1) == Status::kMemoryLimit);
  CHECK(f.PushValue(0, 0, 0, more, 1, 1) == Status::kMemoryLimit);
  CHECK(f.PushValue(0, 0, 0, {keys[0]}, 1, 2) == Status::kOk);
  CHECK(f.EndStatus(0, 0, 0, 3) == Status::kTooEarly);
  CHECK(f.PushStatus(0, 0, 0, {}, 1) == Status::kOk);
  CHECK(f.EndStatus(0, 0, 0, 3) == Status::kOk);
  CHECK(f.commits.size() == 1);
  CHECK(f.ReadRow(keys[0]) != f.Filled(0));
  CHECK(f.engine->tables()[0].rows == 1);
}

TEST_CASE("without memory a sync push must be sent again and a lookup is refused") {
  RowFixture f(Options(v1::CONSISTENCY_SYNC));
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.allocator.scratch_limit = 0;
  CHECK(f.PushValue(0, 0, 0, {key}, 1) == Status::kResourceExhausted);
  const PullOutcome out = f.Lookup(kFirstWorker, {key}, 0);
  CHECK(out.kind == Kind::kAnswer);
  CHECK(out.answer.status == Status::kResourceExhausted);
  CHECK(out.group_status[0] == Status::kResourceExhausted);
  f.allocator.scratch_limit = SIZE_MAX;
  CHECK(f.EndStep(0, 0, 0, 1).group_status[0] == Status::kTooEarly);
  CHECK(f.PushValue(0, 0, 0, {key}, 1) == Status::kOk);
  CHECK(f.EndStatus(0, 0, 0, 1) == Status::kOk);
}

TEST_CASE("lookups use their memory again, and idle memory stays within bounds") {
  RowOptions o;
  o.dim = 1024;
  o.partitions = 1;
  RowFixture f(o);
  std::vector<uint64_t> keys(1024);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<uint64_t> pins;
  for (int i = 0; i < 20; ++i) pins.push_back(f.Lookup(kFirstWorker, keys, 0).view.pin);
  const size_t most = f.allocator.used;
  CHECK(most >= 20 * keys.size() * 4096);
  for (const uint64_t pin : pins) f.engine->Unpin(pin);
  CHECK(f.allocator.used <= size_t{32} << 20);
  const size_t idle = f.allocator.used;
  for (int i = 0; i < 20; ++i) f.engine->Unpin(f.Lookup(kFirstWorker, keys, 0).view.pin);
  CHECK(f.allocator.used == idle);
}

}  // namespace rows_memory_test
}  // namespace verbena::shard
