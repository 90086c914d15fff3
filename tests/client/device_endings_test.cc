// How calls on memory of a device end: deadlines, memory that goes away, a device that fails.
#include <catch2/catch.hpp>

#include "tests/client/device_calls.h"

namespace verbena::test {
namespace device_endings_test {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("device: after a deadline the memory stays in use until the copy is over") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 2);
    cluster.Join();
    OpenLane(&cluster, table);
    cluster.device->holds[0] = true;
    auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), 50 * kMilli);
    REQUIRE(cluster.Wait(push));
    CHECK(push->status.code() == Code::kDeadlineExceeded);
    CHECK_THAT(Text(push->status), Contains("chunk 0 is being copied from fake:0"));
    CHECK(cluster.device->running(rdma::Device::Direction::kToHost) == 2);
    CHECK_FALSE(cluster.core->BufferReleased(push->id));
    CHECK(cluster.device->allocations() == 1);
    cluster.device->holds[0] = false;
    CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
    CHECK(cluster.device->allocations() == 0);
    // It was never posted: the step, or the next push, goes on without it.
    auto end = cluster.EndStep(table);
    REQUIRE(cluster.Wait(end));
    CHECK(end->status.ok());
    CHECK(cluster.servers[0]->applied[{table, 0}] == 0.0f);
  }
}

TEST_CASE("device: a deadline error names the caller's stream that has not reached the call") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.device->busy[7] = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f, 7), 50 * kMilli);
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f, 7), {}, 50 * kMilli);
  for (const auto& call : {push, pull}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kDeadlineExceeded);
    CHECK_THAT(Text(call->status), Contains("the stream of fake:0"));
    CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(call->id); }, kSecond));
  }
}

TEST_CASE("device: a posted push whose call is over no longer uses the memory") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), 50 * kMilli);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kDeadlineExceeded);
  CHECK(cluster.core->BufferReleased(push->id));
  CHECK(cluster.device->allocations() == 0);
  // The lane closes: posted pushes are settled by empty records.
  cluster.servers[0]->CloseLanes("a test");
  cluster.servers[0]->hold_pushes = false;
  auto next = cluster.Push(table, cluster.DeviceMemory(table, 4.0f));
  REQUIRE(cluster.Wait(next));
  INFO(next->status);
  CHECK(next->status.ok());
  CHECK(cluster.servers[0]->applied[{table, 0}] == 4.0f);
}

TEST_CASE("device: a push that is copied again when its call ends is settled all the same") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  cluster.Join();
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  cluster.RunUntil([&] { return !cluster.servers[0]->Of(RecordType::kPush).empty(); });
  cluster.device->holds[0] = true;
  cluster.servers[0]->CloseLanes("a test");
  cluster.RunUntil([&] { return cluster.device->started[0] == 2; });
  REQUIRE(cluster.device->started[0] == 2);
  cluster.core->Cancel(push->id);
  cluster.servers[0]->hold_pushes = false;
  // Its sequence is settled while the copy goes on.
  REQUIRE(cluster.RunUntil([&] { return cluster.servers[0]->Of(RecordType::kPush).size() == 2; }));
  CHECK(cluster.servers[0]->Of(RecordType::kPush)[1].count == 0);
  CHECK(push->status.code() == Code::kCancelled);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.device->holds[0] = false;
  CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(push->id); }, kSecond));
  auto next = cluster.Push(table, cluster.DeviceMemory(table, 2.0f));
  REQUIRE(cluster.Wait(next));
  CHECK(next->status.ok());
  CHECK(cluster.servers[0]->applied[{table, 0}] == 2.0f);
}

TEST_CASE("device: a freed region stays in use until its copies are over") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  const uint64_t opened = cluster.core->statistics().lanes_opened;
  cluster.device->holds[0] = cluster.device->holds[1] = true;
  auto from = cluster.DeviceMemory(table, 1.0f);
  auto to = cluster.DeviceMemory(table, 1.0f);
  auto push = cluster.Push(table, from);
  auto pull = cluster.Pull(table, to);
  cluster.RunUntil([&] { return cluster.device->started[1] == 2; });
  for (const auto& slice : {from, to}) {
    cluster.core->ReleaseBlock(slice.block->id());
    CHECK(cluster.core->InUse(slice.block->id()));
  }
  cluster.RunFor(0);
  CHECK(push->status.code() == Code::kCancelled);
  CHECK(pull->status.code() == Code::kCancelled);
  cluster.device->holds[0] = cluster.device->holds[1] = false;
  for (const auto& slice : {from, to}) {
    CHECK(cluster.RunUntil([&] { return !cluster.core->InUse(slice.block->id()); }, kSecond));
  }
  // No lane had it.
  CHECK(cluster.core->statistics().lanes_lost == 0);
  CHECK(cluster.core->statistics().lanes_opened == opened);
}

TEST_CASE("device: a client's destructor waits for running copies") {
  std::shared_ptr<FakeDevice> device;
  for (const int direction : {0, 1}) {
    FakeCluster cluster;
    device = cluster.device;
    const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
    cluster.Join();
    OpenLane(&cluster, table);
    device->copy_nanos = 10 * kSecond;
    if (direction == 0) cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
    if (direction == 1) cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
    REQUIRE(cluster.RunUntil([&] { return device->started[direction] == 2; }));
    // FakeDevice throws when memory is freed that a copy uses, or was not pinned.
    cluster.core.reset();
    CHECK(device->running(static_cast<rdma::Device::Direction>(direction)) == 0);
    CHECK(device->pinned == 0);
    CHECK(device->allocations() == 0);
    CHECK(device->marks == 0);
  }
}

TEST_CASE("device: each failure ends its calls with the cause, and nothing else") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  const auto push = [&] {
    auto call = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), kSecond);
    REQUIRE(cluster.Wait(call));
    return call->status;
  };
  const auto pull = [&] {
    auto call = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f), {}, kSecond);
    REQUIRE(cluster.Wait(call));
    return call->status;
  };
  cluster.device->pinnable = 4096;
  CHECK(push().code() == Code::kResourceExhausted);
  CHECK(pull().code() == Code::kResourceExhausted);
  CHECK_THAT(Text(pull()), Contains("cannot pin"));
  cluster.device->pinnable = SIZE_MAX;
  cluster.device->refuse_copy = absl::InvalidArgumentError("the driver does not know the address");
  const absl::Status freed = push();
  CHECK(freed.code() == Code::kInvalidArgument);
  CHECK_THAT(Text(freed),
             Contains("push") && Contains("'weights'") && Contains("does not know the address"));
  cluster.device->refuse_copy = absl::InvalidArgumentError("the driver does not know the address");
  CHECK(pull().code() == Code::kInvalidArgument);
  CHECK(push().ok());
  CHECK(pull().ok());
  CHECK(cluster.servers[0]->applied[{table, 0}] == 1.0f);
  CHECK(cluster.device->allocations() == 0);
}

TEST_CASE(
    "device: copies that arrive while it is busy start together, and a refused one ends alone") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  // Two batches keep it busy; requests that arrive meanwhile are gathered.
  cluster.device->holds[0] = true;
  std::vector<std::shared_ptr<FakeCluster::Call>> calls;
  for (int i = 0; i < 2; ++i) {
    calls.push_back(cluster.Push(table, cluster.DeviceMemory(table, 1.0f)));
    cluster.RunFor(kMilli);
  }
  const size_t busy = cluster.device->started[0];
  CHECK(cluster.device->together[0] == 2);
  auto bad = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), kSecond);
  auto good = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), kSecond);
  cluster.RunFor(kMilli);
  CHECK(cluster.device->started[0] == busy);
  cluster.device->refuse_copy = absl::InvalidArgumentError("the driver does not know the address");
  cluster.device->holds[0] = false;
  REQUIRE(cluster.Wait(bad));
  CHECK(bad->status.code() == Code::kInvalidArgument);
  calls.push_back(good);
  for (const auto& call : calls) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.ok());
  }
  CHECK(cluster.servers[0]->applied[{table, 0}] == 3.0f);
}

TEST_CASE(
    "device: a lost device ends the calls that need a copy, and calls with host memory go on") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.device->holds[0] = cluster.device->holds[1] = true;
  cluster.device->busy[7] = true;
  auto from = cluster.DeviceMemory(table, 1.0f), to = cluster.DeviceMemory(table, 1.0f);
  auto later = cluster.DeviceMemory(table, 1.0f, 7);
  auto push = cluster.Push(table, from);
  auto pull = cluster.Pull(table, to);
  auto waits = cluster.Pull(table, later);
  cluster.RunUntil([&] { return cluster.device->started[1] == 2; });
  cluster.RunFor(10 * kMilli);
  cluster.device->lost = absl::UnavailableError("fake:0 is lost: a test");
  for (const auto& call : {push, pull, waits}) {
    REQUIRE(cluster.Wait(call, kSecond));
    CHECK(call->status.code() == Code::kUnavailable);
    CHECK_THAT(Text(call->status), Contains("fake:0 is lost"));
    CHECK(cluster.core->BufferReleased(call->id));
  }
  auto host = cluster.Push(table, cluster.Memory(table, 2.0f));
  REQUIRE(cluster.Wait(host));
  CHECK(host->status.ok());
  CHECK(cluster.servers[0]->applied[{table, 0}] == 2.0f);
}

TEST_CASE("device: rows travel only from and to host memory, and the error names it") {
  FakeCluster cluster;
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 4);
  cluster.Join();
  const client::ClientCore::Rows rows{cluster.DeviceMemory(dense, 1.0f).block, 0};
  for (const auto& call :
       {cluster.PushRows(table, {1, 2}, rows), cluster.Lookup(table, {1, 2}, rows)}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kInvalidArgument);
    CHECK_THAT(Text(call->status), Contains("memory of fake:0") && Contains("host or pinned"));
  }
}

}  // namespace device_endings_test
}  // namespace verbena::test
