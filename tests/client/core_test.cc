// The client core's protocol: its requests, their order, and when a call is done.
#include <catch2/catch.hpp>
#include <set>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace core_test {

constexpr uint32_t kChunkElements = 1024;  // of 4096-byte chunks

TEST_CASE("async pushes take sequences per partition in order, and each is applied once") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 6);
  cluster.Join();
  for (int i = 0; i < 3; ++i) {
    auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
    REQUIRE(cluster.Wait(push));
    REQUIRE(push->status.ok());
  }
  std::map<uint32_t, uint64_t> last;
  for (const Seen& s : cluster.servers[0]->Of(RecordType::kPush)) {
    CHECK(s.sequence == last[s.partition] + 1);
    last[s.partition] = s.sequence;
    CHECK(s.epoch == 1);
    CHECK(s.count == kChunkElements);
  }
  // 6 chunks in 4 partitions: two of them hold two chunks.
  std::multiset<uint64_t> lasts;
  for (const auto& [partition, sequence] : last) lasts.insert(sequence);
  CHECK(lasts == std::multiset<uint64_t>{3, 3, 6, 6});
  for (uint32_t c = 0; c < 6; ++c) CHECK(cluster.servers[0]->applied[{table, c}] == 3.0f);
}

TEST_CASE("an async end-step takes a sequence and counts the pushes since the last") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  auto memory = cluster.Memory(table, 1.0f);
  cluster.Push(table, memory);
  cluster.Push(table, memory);
  REQUIRE(cluster.Wait(cluster.EndStep(table)));
  REQUIRE(cluster.Wait(cluster.EndStep(table)));
  const auto ends = cluster.servers[0]->Of(RecordType::kEndStep);
  REQUIRE(ends.size() == 8);
  for (size_t i = 0; i < 4; ++i) {
    CHECK(ends[i].sequence == 3);
    CHECK(ends[i].count == 2);
    CHECK(ends[i + 4].sequence == 4);
    CHECK(ends[i + 4].count == 0);
  }
}

TEST_CASE("a sync push is done when its step is committed, not when it was read") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto push = cluster.Push(table, cluster.Memory(table, 2.0f));
  auto end = cluster.EndStep(table);
  cluster.RunFor(kSecond);
  CHECK_FALSE(push->done);
  CHECK_FALSE(end->done);
  CHECK(cluster.core->BufferReleased(push->id));  // read, so the buffer is free already
  cluster.servers[0]->hold_commits = false;
  REQUIRE(cluster.Wait(push));
  REQUIRE(cluster.Wait(end));
  CHECK(push->status.ok());
  CHECK(end->status.ok());
  const auto ends = cluster.servers[0]->Of(RecordType::kEndStep);
  REQUIRE(ends.size() == 4);
  for (const Seen& s : ends) {
    CHECK(s.sequence == 0);
    CHECK(s.count == 1);
  }
  const auto awaits = cluster.servers[0]->Of(RecordType::kAwait);
  REQUIRE(awaits.size() == 4);
  CHECK(awaits[0].min_version == 1);
}

TEST_CASE("pushes of the next step wait until the step before is committed") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(table, 1.0f);
  cluster.Push(table, memory);
  cluster.EndStep(table);
  auto next = cluster.Push(table, memory);
  auto end = cluster.EndStep(table);
  cluster.RunFor(kSecond);
  for (const Seen& s : cluster.servers[0]->Of(RecordType::kPush)) CHECK(s.sequence == 0);
  cluster.servers[0]->hold_commits = false;
  REQUIRE(cluster.Wait(next));
  REQUIRE(cluster.Wait(end));
  CHECK(cluster.servers[0]->Of(RecordType::kPush).size() == 8);
  CHECK(cluster.servers[0]->applied[{table, 3}] == 2.0f);
}

TEST_CASE("a table that waits for its step does not hold up another table") {
  FakeCluster cluster;
  const uint32_t slow = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  const uint32_t fast = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4, 4096, "other");
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  auto memory = cluster.Memory(slow, 1.0f);
  cluster.Push(slow, memory);
  cluster.EndStep(slow);
  auto waits = cluster.Push(slow, memory);
  auto push = cluster.Push(fast, cluster.Memory(fast, 1.0f));
  REQUIRE(cluster.Wait(push, kSecond));
  CHECK(push->status.ok());
  CHECK_FALSE(waits->done);
}

TEST_CASE("push-pull of a whole sync table ends its step and returns the new version") {
  FakeCluster::Options options;
  options.servers = 2;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 9);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  for (int step = 1; step <= 5; ++step) {
    auto call = cluster.PushPull(table, cluster.Memory(table, 1.0f), to);
    REQUIRE(cluster.Wait(call));
    REQUIRE(call->status.ok());
    for (uint64_t i = 0; i < to.count; ++i) {
      REQUIRE(reinterpret_cast<float*>(to.block->data())[i] == float(step));
    }
  }
  CHECK(cluster.servers[0]->Of(RecordType::kAwait).empty());
  CHECK(cluster.servers[0]->Of(RecordType::kPush).size() +
            cluster.servers[1]->Of(RecordType::kPush).size() ==
        45);
}

TEST_CASE(
    "an async push-pull pulls a version with its push, also when the lane is lost between them") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  FakeServer& server = *cluster.servers[0];
  SECTION("at once") {
    REQUIRE(cluster.Wait(cluster.Pull(table, to)));  // its lane is open
    server.seen.clear();
    server.silent = true;
    cluster.PushPull(table, cluster.Memory(table, 0.0f), to);
    cluster.RunFor(100 * kMilli);
    // As many as a lane's slots let go, each with its pull right behind it.
    CHECK(server.Of(RecordType::kPush).size() == 2);
    CHECK(server.Of(RecordType::kPull).size() == 2);
    server.silent = false;
  }
  SECTION("a push that is refused for a while") {
    server.refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
      const bool later = s.type == RecordType::kPush && cluster.now() < 50 * kMilli;
      return later ? std::optional(ReplyStatus::kNotReady) : std::nullopt;
    };
  }
  SECTION("a lane that is lost") {
    server.hold_pushes = true;
    cluster.PushPull(table, cluster.Memory(table, 0.0f), to);
    cluster.RunFor(100 * kMilli);
    server.CloseLanes("a test");
    server.hold_pushes = false;
  }
  auto call = cluster.PushPull(table, cluster.Memory(table, 5.0f), to);
  REQUIRE(cluster.Wait(call));
  REQUIRE(call->status.ok());
  CHECK(reinterpret_cast<float*>(to.block->data())[to.count - 1] == 5.0f);
}

TEST_CASE("a sync pull waits for the steps this worker has ended") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  auto to = cluster.Memory(table, -1.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  CHECK(cluster.servers[0]->Of(RecordType::kPull)[0].min_version == 0);
  cluster.Push(table, cluster.Memory(table, 3.0f));
  cluster.EndStep(table);
  REQUIRE(cluster.Wait(cluster.Pull(table, to)));
  CHECK(cluster.servers[0]->Of(RecordType::kPull).back().min_version == 1);
  CHECK(reinterpret_cast<float*>(to.block->data())[0] == 3.0f);
}

TEST_CASE("regression: counts of applies are not known where a server of version 10 answers") {
  const uint32_t version = GENERATE(10u, 11u);
  FakeCluster cluster;
  cluster.servers.back()->protocol = version;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 8);
  cluster.Join();
  const auto to = cluster.Memory(table, 0.0f);
  const auto pulled = std::make_shared<client::PulledState>();
  std::optional<absl::Status> ended;
  const auto done = [&](absl::Status status) { ended = std::move(status); };
  REQUIRE(cluster.core->Pull(table, to, {}, cluster.now() + 1'000'000'000, done, pulled).ok());
  REQUIRE(cluster.RunUntil([&] { return ended.has_value(); }));
  REQUIRE(ended->ok());
  CHECK(pulled->applies_known == (version == 11));
}

TEST_CASE("more chunks than slots and operations are all transferred") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 200);
  cluster.Join();
  auto to = cluster.Memory(table, 0.0f);
  auto call = cluster.PushPull(table, cluster.Memory(table, 1.0f), to);
  REQUIRE(cluster.Wait(call));
  REQUIRE(call->status.ok());
  CHECK(cluster.core->statistics().pushes == 200);
  CHECK(cluster.core->statistics().bytes_pulled == 200 * 4096);
  CHECK(cluster.core->BufferReleased(call->id));
}

TEST_CASE("a lane that is lost again and again loses no push and applies none twice") {
  FakeCluster cluster;
  const uint32_t async = cluster.AddTable(v1::CONSISTENCY_ASYNC, 7);
  const uint32_t sync = cluster.AddTable(v1::CONSISTENCY_SYNC, 7, 4096, "sync");
  cluster.Join();
  rdma::SimFaults faults;
  faults.connection_loss = 0.01;
  cluster.network.set_faults(faults);
  auto to = cluster.Memory(sync, 0.0f);
  for (int i = 1; i <= 20; ++i) {
    auto a = cluster.Push(async, cluster.Memory(async, 1.0f));
    auto s = cluster.PushPull(sync, cluster.Memory(sync, 1.0f), to);
    REQUIRE(cluster.Wait(a));
    REQUIRE(cluster.Wait(s));
    INFO(a->status << s->status);
    REQUIRE(a->status.ok());
    REQUIRE(s->status.ok());
  }
  CHECK(cluster.core->statistics().lanes_lost > 0);
  CHECK(cluster.core->statistics().records_resent > 0);
  for (uint32_t c = 0; c < 7; ++c) CHECK(cluster.servers[0]->applied[{async, c}] == 20.0f);
}

TEST_CASE("a record is sent again only after its lane is dead") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));  // opens the lane
  cluster.servers[0]->silent = true;
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  cluster.RunFor(5 * kSecond);
  // Unanswered for long, but the lane lives: nothing is sent a second time.
  CHECK_FALSE(push->done);
  CHECK(cluster.core->statistics().records_resent == 0);
  cluster.servers[0]->silent = false;
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(cluster.servers[0]->Of(RecordType::kPush).size() == 4);
}

TEST_CASE("wrong epoch: the view is fetched and the record goes to the partition's new server") {
  FakeCluster::Options options;
  options.servers = 2;
  options.partitions = 1;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 3);
  cluster.Join();
  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kWrongEpoch; };
  cluster.control.Serve("Heartbeat", [](auto&, auto&, auto*, int64_t) { return absl::OkStatus(); });
  auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
  auto end = cluster.EndStep(table);
  cluster.view.mutable_partitions(0)->set_primary(11);
  cluster.view.mutable_partitions(0)->set_epoch(2);
  cluster.Publish();
  REQUIRE(cluster.Wait(push));
  REQUIRE(cluster.Wait(end));
  CHECK(push->status.ok());
  CHECK(end->status.ok());
  const auto pushes = cluster.servers[1]->Of(RecordType::kPush);
  REQUIRE(pushes.size() == 3);
  for (size_t i = 0; i < 3; ++i) {
    CHECK(pushes[i].epoch == 2);
    CHECK(pushes[i].sequence == i + 1);
  }
}

TEST_CASE("requests queued for a server follow their partition to another one") {
  FakeCluster::Options options;
  options.servers = 2;
  options.partitions = 1;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 3);
  cluster.Join();
  cluster.servers[0]->open_status = absl::UnavailableError("a test");
  auto to = cluster.Memory(table, 0.0f);
  auto call = cluster.PushPull(table, cluster.Memory(table, 1.0f), to);
  auto end = cluster.EndStep(table);
  cluster.RunFor(kSecond);
  cluster.view.mutable_partitions(0)->set_primary(11);
  cluster.view.mutable_partitions(0)->set_epoch(2);
  cluster.Publish();
  REQUIRE(cluster.Wait(call, 5 * kSecond));
  REQUIRE(cluster.Wait(end, 5 * kSecond));
  CHECK(call->status.ok());
  CHECK(end->status.ok());
  CHECK(reinterpret_cast<float*>(to.block->data())[0] == 1.0f);
}

TEST_CASE("not ready and early answers are retried in order") {
  FakeCluster cluster;
  const uint32_t async = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4);
  const uint32_t sync = cluster.AddTable(v1::CONSISTENCY_SYNC, 4, 4096, "sync");
  cluster.Join();
  int refusals = 0;
  cluster.servers[0]->refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kEndStep && refusals < 3) {
      ++refusals;
      return ReplyStatus::kTooEarly;
    }
    if (refusals < 10) {
      ++refusals;
      return ReplyStatus::kNotReady;
    }
    return std::nullopt;
  };
  auto a = cluster.Push(async, cluster.Memory(async, 1.0f));
  auto b = cluster.Push(async, cluster.Memory(async, 1.0f));
  auto s = cluster.Push(sync, cluster.Memory(sync, 1.0f));
  auto e = cluster.EndStep(sync);
  auto to = cluster.Memory(sync, 0.0f);
  auto p = cluster.Pull(sync, to);
  for (const auto& call : {a, b, s, e, p}) {
    REQUIRE(cluster.Wait(call));
    INFO(call->status);
    CHECK(call->status.ok());
  }
  CHECK(refusals == 10);
  for (uint32_t c = 0; c < 4; ++c) CHECK(cluster.servers[0]->applied[{async, c}] == 2.0f);
  CHECK(reinterpret_cast<float*>(to.block->data())[0] == 1.0f);
}

}  // namespace core_test
}  // namespace verbena::test
