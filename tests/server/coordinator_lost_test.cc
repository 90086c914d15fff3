// Servers that an operator removes, and tables that start again where they lost something.
#include <algorithm>
#include <set>

#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

std::set<uint32_t> LostOf(const TestCoordinator& c, const std::string& table) {
  for (const v1::Table& t : c.view().tables()) {
    if (t.spec().name() == table) return {t.lost_partitions().begin(), t.lost_partitions().end()};
  }
  FAIL("no table " << table);
  return {};
}

// Partitions whose primary it is.
std::set<uint32_t> Of(const TestCoordinator& c, uint64_t server) {
  std::set<uint32_t> partitions;
  for (const v1::Partition& p : c.view().partitions()) {
    if (p.primary() == server) partitions.insert(p.id());
  }
  return partitions;
}

v1::TableSpec Rows(const std::string& name, const std::string& job) {
  v1::TableSpec spec = TestCoordinator::Spec(name, 0, v1::CONSISTENCY_ASYNC, job);
  spec.clear_shape();
  spec.clear_chunk_bytes();
  spec.set_dim(4);
  return spec;
}

TEST_CASE("removing a server that does not return loses the data that it alone had") {
  TestCoordinator c({.partitions = 12});
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b"), d = c.JoinServer("d", 2);
  REQUIRE(c.CreateTable(Rows("t", "job")).ok());
  const v1::Table small = *c.CreateTable(c.Spec("small", 64));  // one chunk
  const std::set<uint32_t> had = Of(c, a);
  REQUIRE(had.size() == 3);
  REQUIRE_STATUS(c.RemoveServer("x").status(), kNotFound, "there is no server 'x'");
  REQUIRE_STATUS(c.RemoveServer("").status(), kInvalidArgument, "server name is empty");
  REQUIRE_STATUS(c.RemoveServer("a").status(), kFailedPrecondition,
                 "server 'a' at a:7000 is alive");
  REQUIRE(c.Leave(a).ok());
  const std::vector<uint64_t> epochs = [&] {
    std::vector<uint64_t> all;
    for (const v1::Partition& p : c.view().partitions()) all.push_back(p.epoch());
    return all;
  }();
  v1::RemoveServerRequest request;
  request.set_request_id(c.NewId());
  request.set_name("a");
  const auto removed = c.Call(&Coordinator::RemoveServer, request);
  REQUIRE(removed.ok());
  REQUIRE(removed->revision() == c.view().revision());
  REQUIRE(removed->lost_tables(0) == (removed->lost_tables_size() == 2 ? "small" : "t"));
  REQUIRE(LostOf(c, "t") == had);
  REQUIRE(LostOf(c, "small").empty() == (removed->lost_tables_size() == 1));
  REQUIRE(c.view().servers_size() == 2);
  REQUIRE(Of(c, a).empty());
  // Evenly: shards of the others have four each.
  REQUIRE(Of(c, b).size() == 4);
  REQUIRE(Of(c, d).size() == 8);
  for (const v1::Partition& p : c.view().partitions()) {
    // Content that is lost skips an epoch.
    REQUIRE(p.epoch() == epochs[p.id()] + (had.contains(p.id()) ? 2 : 0));
  }
  const auto again = c.Call(&Coordinator::RemoveServer, request);
  REQUIRE(again->SerializeAsString() == removed->SerializeAsString());
  REQUIRE_STATUS(c.Heartbeat(a).status(), kNotFound, "an operator has removed it");
  // Its name is free, and new tables have all partitions.
  REQUIRE(c.JoinServer("a") > d);
  REQUIRE(c.CreateTable(Rows("u", "job")).ok());
  REQUIRE(LostOf(c, "u").empty());
}

TEST_CASE("a server is not removed while no other server could take its partitions") {
  TestCoordinator c({.partitions = 4});
  const uint64_t a = c.JoinServer("a");
  SECTION("without tables there is nothing to take") {
    REQUIRE(c.Leave(a).ok());
    REQUIRE(c.RemoveServer("a")->lost_tables().empty());
    REQUIRE(c.view().servers().empty());
    c.JoinServer("b");
    REQUIRE(c.CreateTable(Rows("t", "job")).ok());
    return;
  }
  REQUIRE(c.CreateTable(Rows("t", "job")).ok());
  REQUIRE(c.Leave(a).ok());
  REQUIRE_STATUS(c.RemoveServer("a").status(), kFailedPrecondition,
                 "server 'a': no server is alive that could take its 4 partitions");
  REQUIRE(Of(c, a).size() == 4);
  REQUIRE(LostOf(c, "t").empty());
  c.JoinServer("b");
  REQUIRE(c.RemoveServer("a")->lost_tables(0) == "t");
}

TEST_CASE("removing a server loses no partition that has a replica elsewhere") {
  TestCoordinator c({.partitions = 6, .replicas = 2});
  const uint64_t a = c.JoinServer("a");
  c.JoinServer("b");
  c.JoinServer("d");
  REQUIRE(c.CreateTable(Rows("t", "job")).ok());
  REQUIRE(c.Leave(a).ok());
  REQUIRE(Of(c, a).empty());
  REQUIRE(c.RemoveServer("a")->lost_tables().empty());
  REQUIRE(LostOf(c, "t").empty());
}

TEST_CASE("a table starts again where it lost something, with a new generation of its job") {
  TestCoordinator c({.partitions = 4});
  c.JoinServer("a");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(Rows("t", "job")).ok());
  REQUIRE(c.CreateTable(Rows("other", "other")).ok());
  const uint64_t worker = c.JoinWorker("job", 2)->incarnation();
  REQUIRE(c.JoinWorker("other", 1).ok());
  REQUIRE(c.JoinServer("a") > 2);
  REQUIRE(LostOf(c, "t") == std::set<uint32_t>{0, 2});
  REQUIRE_STATUS(c.ResetTable("x").status(), kNotFound, "there is no table 'x'");
  REQUIRE_STATUS(c.ResetTable("t").status(), kFailedPrecondition,
                 "job 'job' of table 't' has workers");
  REQUIRE(c.JoinWorker("job", 0, -1, /*observer=*/true).ok());
  REQUIRE(c.Leave(worker).ok());
  REQUIRE_STATUS(c.ResetTable("t", {0, 1}).status(), kFailedPrecondition,
                 "partition 1 of table 't' is not lost; lost are: 0, 2");
  REQUIRE_STATUS(c.ResetTable("t", {9}).status(), kFailedPrecondition, "partition 9");
  REQUIRE(LostOf(c, "t") == std::set<uint32_t>{0, 2});
  REQUIRE(c.Job("job").generation() == 1);

  v1::ResetTableRequest request;
  request.set_request_id(c.NewId());
  request.set_name("t");
  request.add_partitions(2);
  request.add_partitions(2);
  const auto reset = c.Call(&Coordinator::ResetTable, request);
  REQUIRE(reset->partitions_size() == 1);
  REQUIRE(reset->partitions(0) == 2);
  REQUIRE(reset->revision() == c.view().revision());
  REQUIRE(LostOf(c, "t") == std::set<uint32_t>{0});
  REQUIRE(c.Job("job").generation() == 2);
  REQUIRE(c.Job("job").departed_ranks().empty());
  REQUIRE(c.Job("job").members_size() == 1);
  REQUIRE(c.Call(&Coordinator::ResetTable, request)->SerializeAsString() ==
          reset->SerializeAsString());
  REQUIRE(c.Job("job").generation() == 2);

  REQUIRE(c.ResetTable("t")->partitions(0) == 0);
  REQUIRE(LostOf(c, "t").empty());
  REQUIRE(c.Job("job").generation() == 3);
  // Nothing lost: nothing happens.
  const uint64_t revision = c.view().revision();
  const auto nothing = c.ResetTable("t");
  REQUIRE(nothing->partitions().empty());
  REQUIRE(nothing->revision() == revision);
  REQUIRE(c.view().revision() == revision);
  REQUIRE_STATUS(c.ResetTable("t", {0}).status(), kFailedPrecondition, "lost are: none");
  // The next run may have another number of workers; other jobs' tables are as they were.
  REQUIRE(c.JoinWorker("job", 3, 2)->rank() == 2);
  REQUIRE(c.Job("job").generation() == 3);
  REQUIRE(LostOf(c, "other") == std::set<uint32_t>{0, 2});
  REQUIRE(c.Job("other").generation() == 1);
}

}  // namespace
}  // namespace verbena::server
