// Rows of embedding tables through a shard executor.
#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

std::vector<float> Pulled(TestWorker& worker, size_t rows, size_t first = 0) {
  return {worker.pulled() + first * kDim, worker.pulled() + (first + rows) * kDim};
}

TEST_CASE("rows that are pushed can be looked up, others have their initial values") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.Lookup({3, 5}, 0, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  CHECK(worker.Answer(1)->status == ReplyStatus::kOk);
  const std::vector<float> initial = Pulled(worker, 2);
  CHECK(initial[0] != initial[kDim]);
  for (const float value : initial) {
    CHECK(value >= 0);
    CHECK(value < 1);
  }

  for (uint32_t i = 0; i < kDim; ++i) worker.values()[i] = 1;
  REQUIRE(worker.PushRows(1, {5}, 2).ok());
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kOk);
  CHECK(worker.Answer(2)->group_status[0] == ReplyStatus::kOk);
  REQUIRE(worker.PushRows(1, {5}, 3).ok());
  REQUIRE(fixture.Answered(worker, 3));
  CHECK(worker.Answer(3)->group_status[0] == ReplyStatus::kDuplicate);

  REQUIRE(worker.Lookup({3, 5}, 0, 4).ok());
  REQUIRE(fixture.Answered(worker, 4));
  const std::vector<float> now = Pulled(worker, 2);
  for (uint32_t i = 0; i < kDim; ++i) {
    CHECK(now[i] == initial[i]);
    CHECK(now[kDim + i] == initial[kDim + i] - 1);
  }
  const ShardSnapshot snapshot = fixture.shard().Snapshot();
  REQUIRE(snapshot.tables.size() == 2);
  CHECK(snapshot.tables[1].rows == 1);
  CHECK(snapshot.counters.push_latency.count == 2);
  CHECK(snapshot.counters.pull_latency.count == 2);
}

TEST_CASE("a scan gives the rows there are, and then none") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.PushRows(1, {2, 4, 8}, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  std::vector<uint64_t> keys;
  uint64_t cursor = 0;
  uint64_t cookie = 2;
  for (;; ++cookie) {
    REQUIRE(worker.Scan(cursor, 2, cookie).ok());
    REQUIRE(fixture.Answered(worker, cookie));
    const Reply& reply = *worker.Answer(cookie);
    REQUIRE(reply.status == ReplyStatus::kOk);
    if (reply.detail == 0) break;
    for (uint32_t i = 0; i < reply.detail; ++i) {
      uint64_t key = 0;
      std::memcpy(&key, reinterpret_cast<std::byte*>(worker.pulled()) + i * 8, 8);
      keys.push_back(key);
    }
    cursor = reply.version;
  }
  CHECK(cookie == 4);
  CHECK(keys == std::vector<uint64_t>{2, 4, 8});
}

TEST_CASE("a lookup of a step to come is deferred, and answered when the step is committed") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  worker.values()[0] = 2;
  REQUIRE(worker.Lookup({5}, 0, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  const float initial = worker.pulled()[0];
  REQUIRE(worker.PushRows(0, {5}, 2).ok());
  REQUIRE(worker.Lookup({5}, 1, 3).ok());
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.deferred == 1; }));
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(3) == nullptr);
  REQUIRE(worker.EndStepOfRows(0, 1, 4).ok());
  REQUIRE(fixture.Answered(worker, 3));
  CHECK(worker.Answer(3)->status == ReplyStatus::kOk);
  CHECK(worker.Answer(3)->version == 1);
  CHECK(worker.pulled()[0] == initial - 2);
}

TEST_CASE("a row that was not pushed for long goes by the server's clock") {
  uint32_t seconds = 5000;
  ShardExecutorOptions options;
  options.wall_seconds = [&] { return seconds; };
  ShardFixture fixture(options);
  v1::Eviction eviction;
  eviction.set_kind(v1::Eviction::TTL_SECONDS);
  eviction.set_ttl(100);
  fixture.SetEviction(eviction);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  const auto rows = [&] { return fixture.shard().Snapshot().tables[1].rows; };
  uint64_t sequence = 0;
  const auto push = [&](const std::vector<uint64_t>& keys) {
    ++sequence;
    REQUIRE(worker.PushRows(sequence, keys, sequence).ok());
    REQUIRE(fixture.Answered(worker, sequence));
    REQUIRE(worker.Answer(sequence)->status == ReplyStatus::kOk);
  };
  push({2, 4, 8});
  CHECK(rows() == 3);
  seconds += 90;
  fixture.Pass(absl::Seconds(1));
  push({4});
  CHECK(rows() == 3);
  seconds += 30;
  fixture.Pass(absl::Seconds(1));
  push({16});
  CHECK(rows() == 2);
}

TEST_CASE("a lookup of bags is answered with as many sums as there are bags") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.Lookup({3, 5}, 0, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  const std::vector<float> rows = Pulled(worker, 2);
  std::fill_n(worker.pulled(), 4 * kDim, -1.0f);
  REQUIRE(worker.LookupBags({3, 3, 5}, {{2, 1}, {0, 1}, {2, 0.5f}}, 3, 0, 2).ok());
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kOk);
  const std::vector<float> sums = Pulled(worker, 4);
  for (uint32_t i = 0; i < kDim; ++i) {
    CHECK(sums[i] == rows[i]);
    CHECK(sums[kDim + i] == 0);
    CHECK(sums[2 * kDim + i] == rows[i] + 0.5f * rows[kDim + i]);
    CHECK(sums[3 * kDim + i] == -1);
  }
  CHECK(fixture.counters().pull_latency.count == 2);
  CHECK(fixture.shard().Snapshot().tables[1].rows == 0);
}

TEST_CASE("a lookup of bags of a step to come is deferred, and answered when it is committed") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  worker.values()[0] = 2;
  REQUIRE(worker.Lookup({5}, 0, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  const float initial = worker.pulled()[0];
  REQUIRE(worker.PushRows(0, {5}, 2).ok());
  REQUIRE(worker.LookupBags({5, 5}, {{1, 1}, {1, 1}}, 2, 1, 3).ok());
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.deferred == 1; }));
  REQUIRE(fixture.Answered(worker, 2));
  REQUIRE(worker.EndStepOfRows(0, 1, 4).ok());
  REQUIRE(fixture.Answered(worker, 3));
  CHECK(worker.Answer(3)->status == ReplyStatus::kOk);
  CHECK(worker.Answer(3)->version == 1);
  CHECK(Pulled(worker, 1) == std::vector<float>(kDim, 0.0f));
  CHECK(worker.pulled()[kDim] == 2 * (initial - 2));
}

TEST_CASE("bags that break the rules cost the worker its lane, too many of them the answer") {
  for (const bool descends : {true, false}) {
    ShardFixture fixture;
    fixture.SetWorkers({100});
    TestWorker& worker = fixture.Connected("a", 100);
    // More than fit an answer, for rows of this length.
    const auto most = static_cast<uint32_t>(kMaxRowsBytes / (kDim * sizeof(float)));
    REQUIRE(worker.LookupBags({4, 5}, {{0, 1}, {1, 1}}, most + 1, 0, 1).ok());
    REQUIRE(fixture.Answered(worker, 1));
    CHECK(worker.Answer(1)->status == ReplyStatus::kOutOfRange);
    const std::vector<uint64_t> keys = {descends ? 6u : 5u, 5};
    REQUIRE(worker.LookupBags(keys, {{0, 1}, {descends ? 1u : 2u, 1}}, 2, 0, 2).ok());
    CHECK(fixture.Until([&] { return worker.dead(); }));
    CHECK(fixture.counters().lanes_lost == 1);
  }
}

TEST_CASE(
    "prefetches are answered at once and give their slots back, also of a step that is open") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  // More than the lane has slots and operations.
  for (uint64_t cookie = 1; cookie <= 100; ++cookie) {
    REQUIRE(fixture.Until([&] { return worker.Prefetch({3, 5, cookie + 5}, cookie).ok(); }));
    REQUIRE(fixture.Answered(worker, cookie));
    CHECK(worker.Answer(cookie)->status == ReplyStatus::kOk);
  }
  CHECK(fixture.counters().engine.deferred == 0);
  CHECK(fixture.shard().Snapshot().tables[1].rows == 0);
  REQUIRE(worker.Prefetch({5, 4}, 101).ok());
  CHECK(fixture.Until([&] { return worker.dead(); }));
}

TEST_CASE("a deferred lookup of a worker that has left costs nothing") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.Lookup({5}, 1, 1).ok());
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.deferred == 1; }));
  fixture.SetWorkers({});
  CHECK(fixture.Until([&] { return fixture.counters().lanes_open == 0; }));
  CHECK(fixture.counters().engine.deferred == 0);
}

TEST_CASE("keys out of order cost the worker its lane") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.PushRows(1, {5, 5}, 1).ok());
  CHECK(fixture.Until([&] { return worker.dead(); }));
  CHECK(fixture.counters().lanes_lost == 1);
  CHECK(fixture.shard().Snapshot().tables[1].rows == 0);
}

TEST_CASE("a full server refuses new rows, and serves those it has") {
  ShardExecutorOptions options;
  options.memory_budget = std::make_shared<MemoryBudget>(uint64_t{4} << 20);
  ShardFixture fixture(options);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  worker.values()[0] = 1;
  REQUIRE(worker.PushRows(1, {7}, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  uint64_t sequence = 2;
  ReplyStatus status = ReplyStatus::kOk;
  for (uint64_t first = 100; status == ReplyStatus::kOk && first < 10'000'000; first += 30) {
    std::vector<uint64_t> keys;
    for (uint64_t key = first; key < first + 30; ++key) keys.push_back(key);
    const uint64_t cookie = sequence;
    REQUIRE(worker.PushRows(sequence++, keys, cookie).ok());
    REQUIRE(fixture.Answered(worker, cookie));
    status = worker.Answer(cookie)->status;
    if (status != ReplyStatus::kOk) CHECK(worker.Answer(cookie)->detail == 4);
  }
  CHECK(status == ReplyStatus::kMemoryLimit);
  CHECK(options.memory_budget->reserved() <= options.memory_budget->limit());

  worker.values()[0] = 1;
  // The refused push has not taken its sequence.
  REQUIRE(worker.PushRows(sequence - 1, {7}, 1'000'000'000).ok());
  REQUIRE(fixture.Answered(worker, 1'000'000'000));
  CHECK(worker.Answer(1'000'000'000)->status == ReplyStatus::kOk);
  REQUIRE(worker.Lookup({7, uint64_t{1} << 60}, 0, 1'000'000'001).ok());
  REQUIRE(fixture.Answered(worker, 1'000'000'001));
  CHECK(worker.Answer(1'000'000'001)->status == ReplyStatus::kOk);
  CHECK(fixture.shard().Snapshot().tables[1].rows > 10'000);
}

}  // namespace
}  // namespace verbena::server
