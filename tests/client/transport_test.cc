// Transports of a client: its offers, its fallbacks, and memory that a device refuses.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/core/failpoints.h"
#include "proto/wire/routing.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

// Two chunks, one of each server; their pulls go through staging buffers.
uint32_t AddStaged(FakeCluster* cluster) {
  v1::TableSpec spec;
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_pull_codec(v1::CODEC_BF16);
  spec.set_chunk_bytes(4096);
  return cluster->AddTyped(spec, 2 * 1024);
}

TEST_CASE("a server receives the transports that this worker lacks, with the reasons") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.endpoint->device_name = "mlx5_0:1";
  REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
  const v1::OpenLaneRequest& request = cluster.servers[0]->last_open;
  REQUIRE(request.offers_size() == 1);
  CHECK(request.offers(0).transport() == "sim");
  CHECK(request.offers(0).host() == "host");
  REQUIRE(request.missing_size() == 1);
  CHECK(request.missing(0).transport() == "verbs");
  CHECK(request.missing(0).reason() == "no RDMA device");
  const auto lanes = cluster.core->statistics().lanes;
  REQUIRE(lanes.size() == 1);
  CHECK(lanes[0].transport == "sim");
  CHECK(lanes[0].device == "mlx5_0:1");
  CHECK(lanes[0].reason == "a test");
}

TEST_CASE("a transport that does not open is replaced by the next one, and its error reported") {
  FakeCluster::Options options;
  options.broken_transport = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  auto pull = cluster.Pull(table, cluster.Memory(table, 0.0f));
  REQUIRE(cluster.Wait(pull));
  INFO(pull->status);
  CHECK(pull->status.ok());
  const v1::OpenLaneRequest& request = cluster.servers[0]->last_open;
  REQUIRE(request.offers_size() == 1);
  CHECK(request.offers(0).transport() == "sim");
  REQUIRE(request.missing_size() == 2);
  CHECK(request.missing(1).transport() == "broken");
  CHECK_THAT(request.missing(1).reason(), Contains("does not open") && Contains("nothing listens"));
  // Once that lane is lost the better one gets another chance.
  cluster.servers[0]->CloseLanes("a test");
  pull = cluster.Pull(table, cluster.Memory(table, 0.0f));
  REQUIRE(cluster.RunUntil(
      [&] { return cluster.servers[0]->last_open.offers(0).transport() == "broken"; }));
  REQUIRE(cluster.Wait(pull));
  CHECK(pull->status.ok());
}

// A transport's refusal is "not now".
TEST_CASE("memory that a transport refuses ends its call at the deadline, with the reason") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 2);
    cluster.Join();
    REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
    cluster.endpoint->register_status =
        absl::ResourceExhaustedError("RLIMIT_MEMLOCK is 65536 bytes");
    const int64_t start = cluster.now();
    auto push = cluster.Push(table, cluster.Memory(table, 1.0f), kSecond);
    REQUIRE(cluster.Wait(push));
    CHECK(push->ended_at - start >= kSecond);
    CHECK(absl::IsResourceExhausted(push->status));
    CHECK_THAT(std::string(push->status.message()),
               Contains("transport sim: RLIMIT_MEMLOCK is 65536 bytes"));
    CHECK(cluster.core->BufferReleased(push->id));
    CHECK(cluster.servers[0]->Of(RecordType::kPush).empty());
    CHECK(cluster.endpoint->registrations < 40);  // after a backoff each time

    cluster.endpoint->register_status = absl::OkStatus();
    push = cluster.Push(table, cluster.Memory(table, 1.0f));
    auto end = cluster.EndStep(table);
    REQUIRE(cluster.Wait(push));
    REQUIRE(cluster.Wait(end));
    INFO(push->status);
    CHECK(push->status.ok());
    CHECK(end->status.ok());
    CHECK(cluster.servers[0]->applied[{table, 1}] == 1.0f);
    CHECK(cluster.core->statistics().lanes_lost == 0);
  }
}

TEST_CASE("no call ends because a transport refuses memory a few times") {
  const bool planted = GENERATE(false, true);
  FakeCluster cluster;
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  const uint32_t rows = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  const auto gradients = FakeCluster::RowMemory(2, 4, 1.0f);
  const auto found = FakeCluster::RowMemory(2, 4, 0.0f);
  const auto result = std::make_shared<client::ScanResult>();
  const std::vector<std::function<FakeCluster::CallPtr()>> calls = {
      [&] { return cluster.Push(dense, cluster.Memory(dense, 1.0f)); },
      [&] { return cluster.Pull(dense, cluster.Memory(dense, 0.0f)); },
      [&] {
        return cluster.PushRows(rows, {1, 2}, gradients);
      },
      [&] {
        return cluster.Lookup(rows, {1, 2}, found);
      },
      [&] {
        return cluster.Prefetch(rows, {1, 2});
      },
      [&] { return cluster.Scan(rows, 0, 0, result); }};
  REQUIRE(cluster.Wait(calls[1]()));
  for (size_t i = 0; i < calls.size(); ++i) {
    client::failpoints().refusals_are_final = planted;
    cluster.endpoint->refusals = 7;
    const auto call = calls[i]();
    REQUIRE(cluster.Wait(call));
    client::failpoints() = {};
    INFO(i << ": " << call->status);
    // Memory that is registered already is not refused.
    if (cluster.endpoint->refusals == 7) continue;
    CHECK(call->status.ok() == !planted);
    if (!planted) CHECK(cluster.endpoint->refusals == 0);
    cluster.endpoint->refusals = 0;
  }
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

// Errors that retrying cannot remove.
TEST_CASE(
    "a transport that may not use memory at all ends a call at once, with the transport's error") {
  const bool early = GENERATE(true, false);
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
  cluster.endpoint->register_status =
      early ? absl::PermissionDeniedError("no access to /dev/infiniband/uverbs0")
            : absl::FailedPreconditionError("the device takes no such memory");
  const int64_t start = cluster.now();
  const auto memory = cluster.Memory(table, 1.0f);
  for (const auto& call : {cluster.Push(table, memory), cluster.Pull(table, memory)}) {
    REQUIRE(cluster.Wait(call));
    INFO(call->status);
    CHECK(call->status.code() == cluster.endpoint->register_status.code());
    CHECK(call->ended_at - start < kSecond);  // of 30, of the simulated clock
    CHECK_THAT(std::string(call->status.message()),
               Contains("chunk 0 of table 'weights'") && Contains("transport sim: "));
    CHECK(cluster.core->BufferReleased(call->id));
  }
  cluster.endpoint->register_status = absl::OkStatus();
  cluster.RunFor(kSecond);  // a refusal is remembered for as long as a backoff
  const auto push = cluster.Push(table, memory);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

TEST_CASE("the oldest record that waits for staging gets the last buffer") {
  FakeCluster::Options options;
  options.servers = 2;
  options.partitions = 2;
  options.staging_bytes = 8192;  // two buffers
  FakeCluster cluster(options);
  const uint32_t table = AddStaged(&cluster);
  cluster.Join();
  const auto whole = cluster.Memory(table, 0.0f);
  REQUIRE(cluster.Wait(cluster.Pull(table, whole)));
  for (const uint32_t busy : {0u, 1u}) {  // of one server
    const auto many = FakeCluster::Chunk(whole, busy, 1024);
    const auto one = FakeCluster::Chunk(whole, 1 - busy, 1024);
    std::vector<FakeCluster::CallPtr> before, after;
    for (int i = 0; i < 20; ++i) before.push_back(cluster.Pull(table, many));
    const auto call = cluster.Pull(table, one);
    for (int i = 0; i < 20; ++i) after.push_back(cluster.Pull(table, many));
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.ok());
    const auto ended =
        std::count_if(after.begin(), after.end(), [](const auto& c) { return c->done; });
    CHECK(ended <= 2);  // as many as there are buffers
    for (const auto& each : before) REQUIRE(cluster.Wait(each));
    for (const auto& each : after) REQUIRE(cluster.Wait(each));
  }
}

// Found by random_faults: scans through one buffer stood still after a partition had moved.
TEST_CASE("a record that waits for the last staging buffer behind others does not hold them up") {
  const auto chunk = GENERATE(0u, 1u);  // pulled first: of either server
  for (const uint32_t busy : {0u, 1u}) {
    FakeCluster::Options options;
    options.servers = 2;
    options.partitions = 2;
    options.staging_bytes = 4096;  // one buffer
    FakeCluster cluster(options);
    const uint32_t table = AddStaged(&cluster);
    cluster.Join();
    const auto whole = cluster.Memory(table, 0.0f);
    REQUIRE(cluster.Wait(cluster.Pull(table, whole)));
    const auto there = FakeCluster::Chunk(whole, chunk, 1024);
    const auto moved = FakeCluster::Chunk(whole, 1 - chunk, 1024);
    cluster.servers[busy]->silent = true;
    std::vector<FakeCluster::CallPtr> calls;
    calls.push_back(cluster.Pull(table, there));  // has the buffer
    calls.push_back(cluster.Pull(table, moved));  // waits for it
    calls.push_back(cluster.Pull(table, there));
    cluster.RunFor(kSecond / 10);
    cluster.Move(1 - busy, busy);  // behind the younger one, where it is the one that waits
    cluster.Publish();
    cluster.RunFor(kSecond / 10);
    cluster.servers[busy]->silent = false;
    for (const auto& call : calls) {
      REQUIRE(cluster.Wait(call));
      INFO(call->status);
      CHECK(call->status.ok());
    }
  }
}

// One buffer is with server 1; a push to server 0 waits for it, and cannot go for long.
TEST_CASE("regression: a push that cannot be sent leaves the last staging buffer to others") {
  const bool moved = GENERATE(false, true);
  INFO(moved);
  FakeCluster::Options options;
  options.servers = 2;
  options.partitions = 2;
  options.staging_bytes = moved ? 8192 : 4096;  // buffers: two, or one
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  const auto rows = FakeCluster::RowMemory(1, 4, 1.0f);
  std::vector<uint64_t> keys(2);  // by server
  for (uint64_t key = 1; keys[0] == 0 || keys[1] == 0; ++key) {
    keys[PartitionOfKey(table, key, 2)] = key;
  }
  for (const uint64_t key : keys) REQUIRE(cluster.Wait(cluster.PushRows(table, {key}, rows)));
  std::vector<FakeCluster::CallPtr> calls;
  const auto push = [&](size_t server) {
    calls.push_back(cluster.PushRows(table, {keys[server]}, rows, 20 * kSecond));
    cluster.RunFor(kSecond / 100);
  };
  for (auto& server : cluster.servers) server->silent = true;
  if (moved) push(0);  // has a buffer until its lane is dead
  push(1);             // has a buffer
  push(0);             // waits for one
  push(1);
  const auto here = calls.end()[-2], there = calls.end()[-1];
  if (moved) {
    cluster.endpoint->never_dead = true;
    cluster.Move(0, 1);
    cluster.Publish();
  } else {
    cluster.servers[0]->CloseLanes("a test");  // and it opens no other
  }
  cluster.RunFor(kSecond / 10);
  cluster.servers[1]->silent = false;
  REQUIRE(cluster.Wait(there, kSecond));
  INFO(there->status);
  CHECK(there->status.ok());
  CHECK_FALSE(here->done);
  // It is not forgotten.
  cluster.endpoint->never_dead = false;
  cluster.servers[0]->silent = false;
  REQUIRE(cluster.Wait(here));
  INFO(here->status);
  CHECK(here->status.ok());
}

TEST_CASE("a refused lane ends no call while the coordinator does not answer") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.coordinator_answers = false;
  cluster.servers[0]->open_status = absl::FailedPreconditionError("another incarnation lives here");
  auto pull = cluster.Pull(table, cluster.Memory(table, 0.0f));
  cluster.RunFor(5 * kSecond);
  CHECK_FALSE(pull->done);
  cluster.servers[0]->open_status = absl::OkStatus();
  REQUIRE(cluster.Wait(pull));
  INFO(pull->status);
  CHECK(pull->status.ok());
  // With a new view that names the server all the same, it is the server's last word.
  cluster.coordinator_answers = true;
  cluster.servers[0]->open_status = absl::FailedPreconditionError("no common protocol version");
  cluster.servers[0]->CloseLanes("a test");
  pull = cluster.Pull(table, cluster.Memory(table, 0.0f));
  const int64_t start = cluster.now();
  REQUIRE(cluster.Wait(pull));
  CHECK(absl::IsFailedPrecondition(pull->status));
  CHECK(pull->ended_at - start < 5 * kSecond);
}

TEST_CASE("a region that a transport refuses is staged") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 2);
    cluster.Join();
    const auto from = cluster.Memory(table, 3.0f), to = cluster.Memory(table, 0.0f);
    cluster.endpoint->refuse_block = from.block->id();
    const auto push = cluster.Push(table, from);
    const auto end = cluster.EndStep(table);
    REQUIRE(cluster.Wait(push));
    REQUIRE(cluster.Wait(end));
    INFO(push->status);
    CHECK(push->status.ok());
    CHECK(cluster.servers[0]->applied[{table, 1}] == 3.0f);
    CHECK(cluster.core->BufferReleased(push->id));
    cluster.endpoint->refuse_block = to.block->id();
    const auto pull = cluster.Pull(table, to);
    REQUIRE(cluster.Wait(pull));
    INFO(pull->status);
    CHECK(pull->status.ok());
    CHECK(reinterpret_cast<const float*>(to.block->data())[1024] == 3.0f);
    CHECK(cluster.core->statistics().lanes_lost == 0);
  }
}

}  // namespace
}  // namespace verbena::test
