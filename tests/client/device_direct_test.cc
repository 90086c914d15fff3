// Memory of a device that the transport reaches itself: no copies, and all else as with the host's.
#include <catch2/catch.hpp>
#include <random>

#include "tests/client/device_calls.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;

FakeCluster::Options Reaching() {
  FakeCluster::Options options;
  options.reaches_device = true;
  return options;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST_CASE("direct: chunks travel without a copy, and a pull flushes the device once") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster(Reaching());
    const uint32_t table = cluster.AddTable(consistency, 5);
    cluster.Join();
    PushCounting(&cluster, table, 5);
    CHECK(cluster.device->flushes == 0);
    PullCounting(&cluster, table, 5);
    CHECK(cluster.device->flushes == 1);
    CHECK(cluster.device->started[0] + cluster.device->started[1] == 0);
    CHECK(cluster.device->most_pinned == 0);
    const client::CoreStatistics statistics = cluster.core->statistics();
    CHECK(statistics.staged_bytes == 0);
    CHECK(statistics.direct_bytes == 2 * 5 * kChunkElements * 4);
    REQUIRE(statistics.device_paths.size() == 1);
    CHECK(statistics.device_paths[0].memory == "fake:0");
    CHECK(statistics.device_paths[0].transport == "sim");
    CHECK(statistics.device_paths[0].path.direct());
  }
}

TEST_CASE("direct: a push waits for its stream, a pull whose destination is busy is staged") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  Store(&cluster, table, 2, 3.0f);
  cluster.device->busy[7] = true;
  auto from = cluster.DeviceMemory(table, 1.0f, 7);
  auto to = cluster.DeviceMemory(table, 1.0f, 7);
  auto pull = cluster.Pull(table, to);
  cluster.RunFor(20 * kMilli);
  auto push = cluster.Push(table, from);
  cluster.RunFor(20 * kMilli);
  CHECK(cluster.servers[0]->Of(RecordType::kPull).size() == 2);
  CHECK(cluster.servers[0]->Of(RecordType::kPush).empty());
  CHECK_FALSE(pull->done);
  CHECK(All(cluster.Numbers(to), 2 * kChunkElements, 1.0f));
  // A deadline error names the stream that the call waited for.
  auto late = cluster.Push(table, cluster.DeviceMemory(table, 1.0f, 7), 50 * kMilli);
  REQUIRE(cluster.Wait(late));
  CHECK_THAT(Message(late->status), Contains("the stream of fake:0"));
  std::fill_n(cluster.Numbers(from), 2 * kChunkElements, 5.0f);
  cluster.device->busy[7] = false;
  REQUIRE(cluster.Wait(push, kSecond));
  REQUIRE(cluster.Wait(pull, kSecond));
  CHECK(push->status.ok());
  CHECK(pull->status.ok());
  CHECK(cluster.servers[0]->applied[{table, 0}] == 5.0f);
  CHECK(All(cluster.Numbers(to), 2 * kChunkElements, 3.0f));
  CHECK(cluster.device->started[0] == 0);
  CHECK(cluster.device->started[1] == 2);
}

TEST_CASE("direct: after a deadline the memory stays in use until the server has answered") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.servers[0]->silent = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f), 50 * kMilli);
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f), {}, 50 * kMilli);
  for (const auto& call : {push, pull}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kDeadlineExceeded);
    CHECK_FALSE(cluster.core->BufferReleased(call->id));
  }
  CHECK(cluster.device->allocations() == 2);
  cluster.servers[0]->silent = false;
  for (const auto& call : {push, pull}) {
    CHECK(cluster.RunUntil([&] { return cluster.core->BufferReleased(call->id); }, kSecond));
  }
  cluster.RunFor(kSecond);
  CHECK(cluster.core->statistics().lanes_lost == 0);
}

TEST_CASE("direct: freeing a region closes the lanes that use it") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.servers[0]->silent = true;
  uint64_t id = 0;
  {
    auto memory = cluster.DeviceMemory(table, 1.0f);
    id = memory.block->id();
    auto push = cluster.Push(table, memory);
    cluster.RunFor(20 * kMilli);
    CHECK(cluster.core->InUse(id));
    cluster.core->ReleaseBlock(id);
    REQUIRE(cluster.Wait(push, kSecond));
    CHECK(push->status.code() == Code::kCancelled);
  }
  CHECK(cluster.RunUntil([&] { return !cluster.core->InUse(id); }, kSecond));
  CHECK(cluster.RunUntil([&] { return cluster.device->allocations() == 0; }, kSecond));
  cluster.servers[0]->silent = false;
  auto next = cluster.Push(table, cluster.DeviceMemory(table, 2.0f));
  REQUIRE(cluster.Wait(next));
  CHECK(next->status.ok());
}

TEST_CASE("direct: unreachable memory is staged and the reason reported, or the call fails") {
  for (const bool direct_only : {false, true}) {
    for (const bool reaches : {false, true}) {
      CAPTURE(direct_only, reaches);
      FakeCluster::Options options;
      options.reaches_device = reaches;
      options.direct_only = direct_only;
      FakeCluster cluster(options);
      const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
      cluster.Join();
      cluster.endpoint->refuse_kind = rdma::MemoryKind::kCuda;
      auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
      auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
      REQUIRE(cluster.Wait(push));
      REQUIRE(cluster.Wait(pull));
      const auto statistics = cluster.core->statistics();
      REQUIRE(statistics.device_paths.size() == 1);
      const auto& path = statistics.device_paths[0];
      CHECK(path.path.direct() == reaches);
      CHECK_THAT(path.path.reason, Contains(reaches ? "simulated" : "memory of the host only"));
      CHECK(path.refusal.ok() != reaches);
      CHECK(push->status.ok() != direct_only);
      CHECK(pull->status.ok() != direct_only);
      CHECK(cluster.device->started[0] == (direct_only ? 0 : 2));
      CHECK(cluster.device->started[1] == (direct_only ? 0 : 2));
      if (!direct_only) continue;
      for (const auto& call : {push, pull}) {
        CHECK(call->status.code() == Code::kFailedPrecondition);
        CHECK_THAT(Message(call->status),
                   Contains("rdma.gpu_direct is required") && Contains("fake:0") &&
                       Contains(reaches ? "this kind is refused" : "memory of the host only"));
      }
      // Memory of the host goes on.
      auto host = cluster.Push(table, cluster.Memory(table, 4.0f));
      REQUIRE(cluster.Wait(host));
      CHECK(host->status.ok());
    }
  }
}

TEST_CASE("direct: memory that is refused temporarily ends no call where staging is not allowed") {
  FakeCluster::Options options;
  options.reaches_device = true;
  options.direct_only = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.endpoint->refuse_kind = rdma::MemoryKind::kCuda;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
  cluster.RunFor(2 * kSecond);
  CHECK_FALSE(push->done);
  CHECK_FALSE(pull->done);
  cluster.endpoint->refuse_kind.reset();
  REQUIRE(cluster.Wait(push));
  REQUIRE(cluster.Wait(pull));
  INFO(push->status << " " << pull->status);
  CHECK(push->status.ok());
  CHECK(pull->status.ok());
  CHECK(cluster.device->started[0] + cluster.device->started[1] == 0);
}

TEST_CASE("direct: memory that no retry can register ends its call at once") {
  FakeCluster::Options options;
  options.reaches_device = true;
  options.direct_only = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.endpoint->register_status = absl::FailedPreconditionError("the driver does not share it");
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 1.0f));
  REQUIRE(cluster.Wait(push, kSecond));
  CHECK(push->status.code() == Code::kFailedPrecondition);
  CHECK_THAT(Message(push->status),
             Contains("rdma.gpu_direct is required") && Contains("does not share it"));
}

TEST_CASE("direct: a lane that cannot reach the memory sends a copy of a lost lane's request") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 3);
  cluster.Join();
  OpenLane(&cluster, table);
  cluster.servers[0]->silent = true;
  auto push = cluster.Push(table, cluster.DeviceMemory(table, 6.0f));
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
  cluster.RunFor(20 * kMilli);
  CHECK(cluster.device->started[0] == 0);
  // Once, so that the staging itself can be registered.
  cluster.endpoint->refuse_kind = rdma::MemoryKind::kCuda;
  cluster.servers[0]->CloseLanes("a test");
  cluster.servers[0]->silent = false;
  REQUIRE(cluster.Wait(push));
  REQUIRE(cluster.Wait(pull));
  INFO(push->status << " " << pull->status);
  CHECK(push->status.ok());
  CHECK(pull->status.ok());
  CHECK(cluster.device->started[0] == 3);
  CHECK(cluster.device->started[1] == 3);
  for (uint32_t c = 0; c < 3; ++c) CHECK(cluster.servers[0]->applied[{table, c}] == 6.0f);
  // The same memory is tried again by the next lane.
  auto memory = cluster.DeviceMemory(table, 1.0f);
  REQUIRE(cluster.Wait(cluster.Push(table, memory)));
  CHECK(cluster.device->started[0] == 6);
  cluster.endpoint->refuse_kind.reset();
  REQUIRE(cluster.Wait(cluster.Push(table, memory)));
  CHECK(cluster.device->started[0] == 9);
  cluster.servers[0]->CloseLanes("a test");
  cluster.RunFor(kSecond);
  REQUIRE(cluster.Wait(cluster.Push(table, memory)));
  CHECK(cluster.device->started[0] == 9);
}

TEST_CASE("direct: memory that was freed ends its own call, with the cause, and no other") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  cluster.Join();
  const size_t bytes = kChunkElements * sizeof(float);
  std::byte* const tensor = cluster.device->Allocate(bytes).value();
  client::ClientCore::Slice slice;
  slice.block = rdma::MemoryBlock::RegisterOn(cluster.device, tensor, bytes).value();
  slice.count = kChunkElements;
  for (const bool push : {true, false}) {
    const uint64_t lost = cluster.core->statistics().lanes_lost;
    if (push) cluster.device->Free(tensor);
    auto call = push ? cluster.Push(table, slice) : cluster.Pull(table, slice);
    auto other = cluster.Push(table, cluster.DeviceMemory(table, 2.0f));
    REQUIRE(cluster.Wait(call, 10 * kSecond));
    CHECK(call->status.code() == Code::kInvalidArgument);
    CHECK_THAT(Message(call->status), Contains("not memory of fake:0"));
    REQUIRE(cluster.Wait(other, 10 * kSecond));
    CHECK(other->status.ok());
    CHECK(cluster.core->statistics().lanes_lost <= lost + 2);
  }
  CHECK(cluster.servers[0]->applied[{table, 0}] == 4.0f);
}

TEST_CASE("direct: a flush that fails ends the pull") {
  FakeCluster cluster(Reaching());
  const uint32_t table = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  cluster.device->refuse_flush = absl::UnavailableError("fake:0 is lost");
  auto pull = cluster.Pull(table, cluster.DeviceMemory(table, 1.0f));
  REQUIRE(cluster.Wait(pull));
  CHECK(pull->status.code() == Code::kUnavailable);
}

// While lanes are lost each push counts once, and each pull returns the values of all pushes before
// it.
TEST_CASE("direct: lost lanes, refusals and busy streams change nothing", "[seeds]") {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    FakeCluster::Options options = Reaching();
    options.servers = 2;
    options.faults.connection_loss = 0.02;
    options.staging_bytes = 3 * 4096;
    FakeCluster cluster(options);
    const auto consistency = random() % 2 == 0 ? v1::CONSISTENCY_ASYNC : v1::CONSISTENCY_SYNC;
    const uint32_t table = cluster.AddTable(consistency, 8);
    cluster.Join();
    for (int step = 1; step <= 12; ++step) {
      // Other memory each time, because a refused block stays refused.
      auto gradient = cluster.DeviceMemory(table, 1.0f, 7);
      auto parameters = cluster.DeviceMemory(table, 0.0f);
      cluster.endpoint->refuse_kind = step > 1 && random() % 3 == 0
                                          ? std::optional<rdma::MemoryKind>(rdma::MemoryKind::kCuda)
                                          : std::nullopt;
      cluster.device->busy[7] = random() % 2 == 0;
      Store(&cluster, table, 8, float(step));
      gradient.after = *cluster.device->MarkStream(7);
      auto call = cluster.PushPull(table, gradient, parameters, 100 * kSecond);
      cluster.RunFor(int64_t(random() % 20) * kMilli);
      cluster.device->busy[7] = false;
      REQUIRE(cluster.Wait(call, 100 * kSecond));
      INFO(call->status);
      REQUIRE(call->status.ok());
      REQUIRE(All(cluster.Numbers(parameters), 8 * kChunkElements, float(step)));
    }
    for (uint32_t c = 0; c < 8; ++c) {
      float applied = 0;
      for (const auto& server : cluster.servers) applied += server->applied[{table, c}];
      CHECK(applied == 12.0f);
    }
    CHECK(cluster.core->statistics().direct_bytes > 0);
    CHECK(cluster.core->statistics().lanes_lost > 0);
  }
}

}  // namespace
}  // namespace verbena::test
