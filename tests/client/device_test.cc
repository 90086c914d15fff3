// Pushes from and pulls to memory of a device: the order of copies, and the events that each waits
// for.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/client/device_calls.h"

namespace verbena::test {
namespace {

using Direction = rdma::Device::Direction;

TEST_CASE(
    "device: pushes and pulls transfer the right numbers, and the host reads neither memory") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 5);
    cluster.Join();
    PushCounting(&cluster, table, 5);
    PullCounting(&cluster, table, 5);
    CHECK(cluster.core->statistics().staged_bytes == 2 * 5 * kChunkElements * 4);
  }
}

TEST_CASE("device: a push returns before anything is copied, and is posted when it is") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.device->holds[0] = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  CHECK(cluster.device->started[0] == 1);  // it was started by the call itself
  cluster.RunFor(50 * kMilli);
  CHECK(cluster.servers[0]->Of(RecordType::kPush).empty());
  CHECK_FALSE(push->done);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.device->holds[0] = false;
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(cluster.core->BufferReleased(push->id));
  CHECK(cluster.servers[0]->applied[{table, 0}] == 1.0f);
}

TEST_CASE("device: nothing is copied, and no buffer held, before the caller's stream has passed") {
  FakeCluster cluster;
  const uint32_t first = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4, 4096, "a");
  const uint32_t second = cluster.AddTable(v1::CONSISTENCY_ASYNC, 4, 4096, "b");
  cluster.Join();
  OpenLane(&cluster, first);
  cluster.device->busy[7] = true;
  auto memory = cluster.DeviceMemory(first, 1.0f, 7);
  auto waits = cluster.Push(first, memory);
  cluster.RunFor(20 * kMilli);
  CHECK(cluster.device->started[0] == 0);
  CHECK(cluster.device->pinned == 0);
  // Another stream's does not wait behind it.
  auto goes = cluster.Push(second, cluster.DeviceMemory(second, 1.0f, 8));
  REQUIRE(cluster.Wait(goes, kSecond));
  CHECK(goes->status.ok());
  CHECK(cluster.device->started[0] == 4);
  // The push carries the numbers that the stream writes meanwhile.
  std::fill_n(cluster.Numbers(memory), 4 * kChunkElements, 5.0f);
  cluster.device->busy[7] = false;
  REQUIRE(cluster.Wait(waits, kSecond));
  CHECK(cluster.servers[0]->applied[{first, 0}] == 5.0f);
}

TEST_CASE(
    "device: a pull waits for readers on the stream, and is done after its copy to the device") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 3);
  cluster.Join();
  Store(&cluster, table, 3, 2.0f);
  cluster.device->busy[7] = true;
  auto memory = cluster.DeviceMemory(table, 1.0f, 7);
  auto pull = cluster.Pull(table, memory);
  cluster.RunFor(50 * kMilli);
  CHECK_FALSE(pull->done);
  CHECK(cluster.device->started[1] == 0);
  cluster.device->busy[7] = false;
  cluster.device->holds[1] = true;
  cluster.RunFor(50 * kMilli);
  CHECK_FALSE(pull->done);
  CHECK(cluster.device->started[1] == 3);
  CHECK(All(cluster.Numbers(memory), 3 * kChunkElements, 1.0f));
  cluster.device->holds[1] = false;
  REQUIRE(cluster.Wait(pull, kSecond));
  CHECK(pull->status.ok());
  CHECK(All(cluster.Numbers(memory), 3 * kChunkElements, 2.0f));
}

TEST_CASE("device: push-pulls in place, step after step") {
  FakeCluster::Options options;
  options.staging_bytes = 2 * 4096;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 6);
  cluster.Join();
  auto memory = cluster.DeviceMemory(table, 0.0f);
  for (int step = 1; step <= 5; ++step) {
    std::fill_n(cluster.Numbers(memory), 6 * kChunkElements, 1.0f);
    Store(&cluster, table, 6, float(10 * step));
    memory.after = *cluster.device->MarkStream(0);
    auto call = cluster.PushPull(table, memory, memory);
    REQUIRE(cluster.Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
    CHECK(All(cluster.Numbers(memory), 6 * kChunkElements, float(10 * step)));
    CHECK(cluster.servers[0]->applied[{table, 5}] == float(step));
  }
}

TEST_CASE("device: copies run ahead of the records, but not far") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 40);
  cluster.servers[0]->config.large_slots = 3;
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  cluster.RunFor(100 * kMilli);
  const size_t posted = cluster.servers[0]->Of(RecordType::kPush).size();
  CHECK(posted < 40);
  CHECK(cluster.device->started[0] > posted);
  CHECK(cluster.device->started[0] <= posted + 3 + 2);
  cluster.servers[0]->hold_pushes = false;
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(cluster.device->started[0] == 40);
}

TEST_CASE("regression: one server's pulls leave buffers to the others") {
  FakeCluster::Options options;
  options.servers = 4;
  options.staging_bytes = 16 * 4096;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 400);
  cluster.Join();
  auto open = cluster.Pull(table, cluster.DeviceMemory(table, 0.0f));
  REQUIRE(cluster.Wait(open));
  std::vector<size_t> before;
  for (const auto& server : cluster.servers) {
    server->silent = true;
    before.push_back(server->Of(RecordType::kPull).size());
  }
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
  cluster.RunFor(50 * kMilli);
  for (size_t i = 0; i < cluster.servers.size(); ++i) {
    CHECK(cluster.servers[i]->Of(RecordType::kPull).size() >= before[i] + 2);
    cluster.servers[i]->silent = false;
  }
  REQUIRE(cluster.Wait(pull));
  CHECK(pull->status.ok());
}

TEST_CASE("device: the last buffer is left to the push that was made first") {
  FakeCluster::Options options;
  options.staging_bytes = 4 * 4096;
  FakeCluster cluster(options);
  const uint32_t first = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1, 4096, "a");
  const uint32_t second = cluster.AddTable(v1::CONSISTENCY_ASYNC, 20, 4096, "b");
  cluster.Join();
  OpenLane(&cluster, first);
  OpenLane(&cluster, second);
  cluster.device->busy[7] = true;
  cluster.servers[0]->hold_pushes = true;
  auto old = cluster.Push(first, cluster.DeviceMemory(first, 1.0f, 7));
  auto young = cluster.Push(second, cluster.DeviceMemory(second, 1.0f));
  cluster.RunFor(50 * kMilli);
  CHECK(cluster.device->started[0] == 3);
  cluster.device->busy[7] = false;
  cluster.RunFor(50 * kMilli);
  CHECK(cluster.device->started[0] == 4);
  const auto pushes = cluster.servers[0]->Of(RecordType::kPush);
  CHECK(std::any_of(pushes.begin(), pushes.end(), [&](const Seen& s) { return s.table == first; }));
  cluster.servers[0]->hold_pushes = false;
  REQUIRE(cluster.Wait(young));
  CHECK(young->status.ok());
  CHECK(cluster.Wait(old));
  CHECK(cluster.device->most_pinned <= 2 * 4 * 4096);
}

TEST_CASE("device: chunks that a new primary needs again are copied again") {
  FakeCluster::Options options;
  options.servers = 2;
  options.replicas = 2;
  FakeCluster cluster(options);
  for (const auto& server : cluster.servers) server->knows = &cluster.view;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_SYNC, 4);
  cluster.Join();
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 3.0f));
  cluster.RunUntil([&] { return cluster.servers[0]->Of(RecordType::kPush).size() == 4; });
  cluster.RunFor(10 * kMilli);  // answered
  CHECK(cluster.device->started[0] == 4);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  for (uint32_t p = 0; p < 4; ++p) cluster.Move(p, 1);
  cluster.Publish();
  auto end = cluster.EndStep(table);
  REQUIRE(cluster.Wait(end));
  INFO(end->status);
  REQUIRE(end->status.ok());
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.ok());
  CHECK(cluster.device->started[0] == 8);
  for (uint32_t c = 0; c < 4; ++c) CHECK(cluster.servers[1]->applied[{table, c}] == 3.0f);
  CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
}

}  // namespace
}  // namespace verbena::test
