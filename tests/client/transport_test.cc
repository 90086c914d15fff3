// Transports as a client sees them: what it offers, what it falls back to, memory that a device
// does not take.
#include <algorithm>
#include <catch2/catch.hpp>

#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a server is told which transports this worker lacks, and why") {
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

TEST_CASE("a transport that does not open gives way to the next one, which is said") {
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

TEST_CASE("memory that the device does not take ends the call that uses it, not the lane") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddTable(consistency, 2);
    cluster.Join();
    REQUIRE(cluster.Wait(cluster.Pull(table, cluster.Memory(table, 0.0f))));
    cluster.endpoint->register_status =
        absl::ResourceExhaustedError("RLIMIT_MEMLOCK is 65536 bytes");
    auto push = cluster.Push(table, cluster.Memory(table, 1.0f));
    REQUIRE(cluster.Wait(push));
    CHECK(absl::IsResourceExhausted(push->status));
    CHECK(push->status.message() == "transport sim: RLIMIT_MEMLOCK is 65536 bytes");
    CHECK(cluster.core->BufferReleased(push->id));
    CHECK(cluster.servers[0]->Of(RecordType::kPush).empty());

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
    // Ready once: every chunk of a region lies in the same memory.
    CHECK(cluster.endpoint->registrations == 2);
  }
}

}  // namespace
}  // namespace verbena::test
