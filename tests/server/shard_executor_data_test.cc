// Pushes, pulls and steps through a shard executor.
#include <algorithm>

#include "tests/server/shard_executor_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("pushed values can be pulled") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  for (uint32_t i = 0; i < kElements; ++i) worker.values()[i] = static_cast<float>(i);
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  CHECK(worker.Answer(1)->status == ReplyStatus::kOk);
  REQUIRE(worker.Pull(0, 2).ok());
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kOk);
  CHECK(worker.Answer(2)->version == 1);
  for (uint32_t i = 0; i < kElements; ++i) CHECK(worker.pulled()[i] == -static_cast<float>(i));
  const ShardCounters counters = fixture.counters();
  CHECK(counters.engine.push_bytes == kBytes);
  CHECK(counters.engine.pull_bytes == kBytes);
  CHECK(counters.push_latency.count == 1);
  CHECK(counters.pull_latency.count == 1);
  CHECK(counters.queue_depth == 0);
}

TEST_CASE("the answers to requests of one batch wake their worker once") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  auto& woken = fixture.endpoint().woken;
  woken.clear();
  REQUIRE(worker.Push(0, 1).ok());
  REQUIRE(worker.EndStep(0, 1, 2).ok());
  fixture.network().Advance(fixture.network().clock().NowNanos() + 10'000'000);  // all is there
  REQUIRE(fixture.Answered(worker, 1));
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kOk);
  CHECK(woken == std::vector<rdma::Wakes>{rdma::Wakes::kPeerAtLast});
}

TEST_CASE("a repeated push is acknowledged and not applied") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  worker.values()[0] = 1;
  REQUIRE(worker.Push(1, 1).ok());
  REQUIRE(worker.Push(1, 2).ok());
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kDuplicate);
  REQUIRE(worker.Pull(0, 3).ok());
  REQUIRE(fixture.Answered(worker, 3));
  CHECK(worker.pulled()[0] == -1);
}

TEST_CASE("an impossible push is refused and the lane lives on") {
  ShardFixture fixture;
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  REQUIRE(worker.Push(1, 1, kElements - 1).ok());
  REQUIRE(fixture.Answered(worker, 1));
  CHECK(worker.Answer(1)->status == ReplyStatus::kOutOfRange);
  REQUIRE(worker.Push(1, 2).ok());
  REQUIRE(fixture.Answered(worker, 2));
  CHECK(worker.Answer(2)->status == ReplyStatus::kOk);
}

TEST_CASE("a sync step waits for every worker, then answers pulls and awaits") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.set_expected_workers(2);
  fixture.SetWorkers({100, 101});
  TestWorker& a = fixture.Connected("a", 100);
  TestWorker& b = fixture.Connected("b", 101);
  b.values()[0] = 2;
  // The higher rank first: its contribution is held in its slot until the lower has come.
  REQUIRE(b.Push(0, 1).ok());
  REQUIRE(b.Pull(1, 2).ok());
  REQUIRE(b.Await(1, 3).ok());
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.deferred == 2; }));
  CHECK(b.Answer(1) == nullptr);
  CHECK(fixture.counters().queue_depth == 3);
  CHECK(fixture.counters().engine.held == 1);
  a.values()[0] = 3;
  REQUIRE(a.Push(0, 1).ok());
  REQUIRE(fixture.Answered(b, 1));
  REQUIRE(fixture.Answered(b, 2));
  REQUIRE(fixture.Answered(b, 3));
  CHECK(b.Answer(1)->status == ReplyStatus::kOk);
  CHECK(b.Answer(2)->status == ReplyStatus::kOk);
  CHECK(b.Answer(2)->version == 1);
  CHECK(b.Answer(3)->status == ReplyStatus::kOk);
  CHECK(b.pulled()[0] == -5);
  REQUIRE(fixture.Answered(a, 1));
  REQUIRE(a.EndStep(0, 1, 4).ok());
  REQUIRE(fixture.Answered(a, 4));
  CHECK(
      (a.Answer(4)->status == ReplyStatus::kOk || a.Answer(4)->status == ReplyStatus::kDuplicate));
  CHECK(fixture.counters().queue_depth == 0);
}

TEST_CASE("a lane defers at most half of its operations, without their slots") {
  ShardExecutorOptions options;
  options.lane.operations = 8;
  options.lane.small_slots = 4;
  ShardFixture fixture(options, v1::CONSISTENCY_SYNC);
  fixture.SetWorkers({100});
  TestWorker& worker = fixture.Connected("a", 100);
  for (uint64_t cookie = 1; cookie <= 5; ++cookie) {
    REQUIRE(fixture.Until([&] { return worker.lane().CanPost(1, 0); }));
    REQUIRE(worker.Pull(1, cookie).ok());
  }
  REQUIRE(fixture.Answered(worker, 5));
  CHECK(worker.Answer(5)->status == ReplyStatus::kResourceExhausted);
  CHECK(fixture.counters().engine.deferred == 4);
  // A request that need not wait is answered all the same.
  REQUIRE(worker.Pull(0, 8).ok());
  REQUIRE(fixture.Answered(worker, 8));
  CHECK(worker.Answer(8)->status == ReplyStatus::kOk);
  // The pulls wait for this push, which still finds an operation and a slot.
  worker.values()[0] = 1;
  REQUIRE(worker.Push(0, 6).ok());
  for (uint64_t cookie : {1, 2, 3, 4, 6}) {
    REQUIRE(fixture.Answered(worker, cookie));
    CHECK(worker.Answer(cookie)->status == ReplyStatus::kOk);
  }
  REQUIRE(worker.Pull(1, 7).ok());
  REQUIRE(fixture.Answered(worker, 7));
  CHECK(worker.Answer(7)->status == ReplyStatus::kOk);
}

TEST_CASE("a chunk is free again when the lane it was written to dies") {
  ShardExecutorOptions options;
  options.spare_buffers = 1;
  ShardFixture fixture(options);
  fixture.SetWorkers({100, 1, 2, 3});
  TestWorker& pusher = fixture.Connected("pusher", 100);
  for (uint64_t round = 1; round <= 3; ++round) {
    const std::string host = "puller-" + std::to_string(round);
    TestWorker& puller = fixture.Connected(host, round);
    // The data is on its way for a second, during which its reader's process ends.
    rdma::SimFaults slow;
    slow.max_delay_ns = slow.min_delay_ns = absl::ToInt64Nanoseconds(absl::Seconds(1));
    const uint64_t pulls = fixture.counters().engine.pulls;
    REQUIRE(puller.Pull(0, 1).ok());
    fixture.network().set_faults(slow);
    REQUIRE(fixture.Until([&] { return fixture.counters().engine.pulls > pulls; }));
    fixture.network().set_faults({});
    fixture.network().Crash(host);
    REQUIRE(fixture.Until([&] { return fixture.counters().lanes_open == 1; }));
    pusher.values()[0] = 1;
    REQUIRE(pusher.Push(round, round).ok());
    REQUIRE(fixture.Answered(pusher, round));
    CHECK(pusher.Answer(round)->status == ReplyStatus::kOk);
  }
  // With a pin left behind, the one spare would be gone and the second push would still wait.
  CHECK(fixture.counters().engine.spare_exhausted == 0);
}

TEST_CASE("a lane whose reader does not take its data is closed after write_timeout") {
  ShardExecutorOptions options;
  options.write_timeout = absl::Seconds(5);
  ShardFixture fixture(options);
  fixture.SetWorkers({100, 101});
  TestWorker& stuck = fixture.Connected("a", 100);
  TestWorker& other = fixture.Connected("b", 101);
  REQUIRE(stuck.Pull(0, 1).ok());
  rdma::SimFaults slow;
  slow.max_delay_ns = slow.min_delay_ns = absl::ToInt64Nanoseconds(absl::Seconds(60));
  fixture.network().set_faults(slow);
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.pulls == 1; }));
  fixture.network().set_faults({});
  CHECK_FALSE(
      fixture.Until([&] { return fixture.counters().write_timeouts > 0; }, absl::Seconds(4)));
  CHECK(fixture.Until([&] { return fixture.counters().write_timeouts > 0; }, absl::Seconds(2)));
  CHECK(fixture.Until([&] { return stuck.dead(); }));
  REQUIRE(other.Push(1, 1).ok());
  CHECK(fixture.Answered(other, 1));
}

TEST_CASE("a contribution of a worker that dies is forgotten with its lane") {
  ShardFixture fixture({}, v1::CONSISTENCY_SYNC);
  fixture.set_expected_workers(2);
  fixture.SetWorkers({100, 101});
  TestWorker& a = fixture.Connected("a", 100);
  TestWorker& b = fixture.Connected("b", 101);
  b.values()[0] = 2;
  REQUIRE(b.Push(0, 1).ok());
  REQUIRE(fixture.Until([&] { return fixture.counters().engine.held == 1; }));
  fixture.network().Crash("b");
  REQUIRE(fixture.Until([&] { return fixture.counters().lanes_open == 1; }));
  CHECK(fixture.counters().engine.held == 0);
  // It comes back on a new lane, perhaps of the same id, and sends again.
  TestWorker& again = fixture.Connected("b2", 101);
  again.values()[0] = 4;
  REQUIRE(again.Push(0, 2).ok());
  a.values()[0] = 1;
  REQUIRE(a.Push(0, 1).ok());
  REQUIRE(a.Pull(1, 2).ok());
  REQUIRE(fixture.Answered(a, 2));
  CHECK(a.pulled()[0] == -5);
}

}  // namespace
}  // namespace verbena::server
