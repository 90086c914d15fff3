// Limits of a job: how they are set and kept, and which tables they refuse.
#include <set>

#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

v1::JobLimits Limits(uint64_t memory, uint32_t tables, uint32_t lanes) {
  v1::JobLimits limits;
  limits.set_memory_bytes(memory);
  limits.set_tables(tables);
  limits.set_lanes(lanes);
  return limits;
}

v1::SetJobLimitsRequest Request(TestCoordinator* c, const std::string& job,
                                const v1::JobLimits& limits) {
  v1::SetJobLimitsRequest request;
  request.set_request_id(c->NewId());
  request.set_job(job);
  *request.mutable_limits() = limits;
  return request;
}

uint64_t Set(TestCoordinator* c, const std::string& job, const v1::JobLimits& limits) {
  auto response = c->Call(&Coordinator::SetJobLimits, Request(c, job, limits));
  REQUIRE(response.ok());
  CHECK(response->revision() == c->view().revision());
  return response->revision();
}

bool Same(const v1::JobLimits& a, const v1::JobLimits& b) {
  return a.SerializeAsString() == b.SerializeAsString();
}

TEST_CASE("limits are set as a whole, and watchers see them") {
  TestCoordinator c;
  REQUIRE(c.JoinWorker("job", 1).ok());
  const Answer<v1::GetViewResponse> watch = c.Poll(c.view().revision(), 10000);
  Set(&c, "job", Limits(1 << 30, 3, 8));
  CHECK(Same(c.Job("job").limits(), Limits(1 << 30, 3, 8)));
  REQUIRE(watch->has_value());
  CHECK(Same((**watch)->view().jobs(0).limits(), Limits(1 << 30, 3, 8)));
  Set(&c, "job", Limits(0, 4, 0));
  CHECK(Same(c.Job("job").limits(), Limits(0, 4, 0)));

  SECTION("the same again changes nothing") {
    const uint64_t revision = c.view().revision();
    CHECK(Set(&c, "job", Limits(0, 4, 0)) == revision);
  }
  SECTION("none at all") {
    Set(&c, "job", {});
    CHECK_FALSE(c.Job("job").has_limits());
    CHECK(c.Job("job").members_size() == 1);
  }
  SECTION("a name that no job can have") {
    REQUIRE_STATUS(c.Call(&Coordinator::SetJobLimits, Request(&c, "", Limits(1, 1, 1))).status(),
                   kInvalidArgument, "job is empty");
    REQUIRE_STATUS(
        c.Call(&Coordinator::SetJobLimits, Request(&c, "a\nb", Limits(1, 1, 1))).status(),
        kInvalidArgument, "control character");
  }
}

TEST_CASE("regression: a new table is judged without adding up those of its job") {
  int counted = 0;
  CoordinatorOptions options;
  options.chunk_memory = [&](const v1::TableSpec&) {
    ++counted;
    return uint64_t{256};
  };
  TestCoordinator c(options);
  const uint64_t server = c.JoinServer("a");
  Set(&c, "job", Limits(uint64_t{256} * 100 * 16 / 15, 60, 8));
  const auto create = [&](int i) {
    return c.CreateTable(
        TestCoordinator::Spec("table" + std::to_string(i), 64, v1::CONSISTENCY_ASYNC));
  };
  for (int i = 0; i < 50; ++i) REQUIRE(create(i).ok());
  counted = 0;
  REQUIRE(create(50).ok());
  CHECK(counted <= 4);  // by its limits, by its server, and for the sums of its job and of all
  // The sums follow drops, failures and restarts.
  for (int i = 0; i < 25; ++i) REQUIRE(c.DropTable("table" + std::to_string(i)).ok());
  REQUIRE(c.DropTable("table30").ok());
  REQUIRE(create(30).ok());
  const v1::ClusterView seen = c.view();
  c.Restart();
  REQUIRE(c.Heartbeat(server, &seen, true).ok());
  for (int i = 0; i < 25; ++i) REQUIRE(create(i).ok());
  for (int i = 51; i < 60; ++i) REQUIRE(create(i).ok());
  REQUIRE_STATUS(create(60).status(), kResourceExhausted, "it has 60, allowed are 60");
  // Of 100 chunks 60 are taken.
  Set(&c, "job", Limits(uint64_t{256} * 100 * 16 / 15, 100, 8));
  v1::TableSpec large = TestCoordinator::Spec("large", 64 * 41, v1::CONSISTENCY_ASYNC);
  REQUIRE_STATUS(c.CreateTable(large).status(), kResourceExhausted, "does not fit");
  large.set_shape(0, 64 * 40);
  REQUIRE(c.CreateTable(large).ok());
}

TEST_CASE("regression: a table that no server has memory for is refused when it is made") {
  CoordinatorOptions options;
  options.chunk_memory = [](const v1::TableSpec&) { return uint64_t{256}; };
  TestCoordinator c(options);
  v1::JoinServerRequest server = c.ServerRequest("a");
  server.set_memory_bytes(256 * 100 * 16 / 15);
  REQUIRE(c.Call(&Coordinator::JoinServer, server).ok());
  const auto create = [&](const std::string& name, uint64_t chunks) {
    return c.CreateTable(TestCoordinator::Spec(name, 64 * chunks, v1::CONSISTENCY_ASYNC, name))
        .status();
  };
  REQUIRE_STATUS(create("large", 101), kResourceExhausted,
                 "table 'large' does not fit server 'a': its chunks there would take 25856 bytes "
                 "beside 0 bytes of other dense tables; allowed: 25600, which is 15/16 of its "
                 "--memory-limit of 27306");
  REQUIRE(c.view().tables().empty());
  REQUIRE(create("most", 90).ok());
  REQUIRE_STATUS(create("other", 11), kResourceExhausted, "would take 2816 bytes beside 23040");
  REQUIRE(create("other", 10).ok());
  REQUIRE_STATUS(create("more", 1), kResourceExhausted, "does not fit");
  REQUIRE(c.DropTable("other").ok());
  REQUIRE(create("more", 10).ok());
  // One that replaces another counts instead of it.
  v1::CreateTableRequest replacing;
  replacing.set_request_id(c.NewId());
  *replacing.mutable_spec() =
      TestCoordinator::Spec("most", uint64_t{64} * 90, v1::CONSISTENCY_ASYNC, "most");
  replacing.set_restoring(true);
  replacing.set_replace(true);
  REQUIRE(c.Call(&Coordinator::CreateTable, replacing).ok());
}

TEST_CASE("regression: a table that servers have no memory for with its copies is refused") {
  CoordinatorOptions options;
  options.chunk_memory = [](const v1::TableSpec&) { return uint64_t{256}; };
  options.replicas = 2;
  options.expected_servers = 2;
  TestCoordinator c(options);
  for (const char* name : {"a", "b"}) {
    v1::JoinServerRequest server = c.ServerRequest(name);
    server.set_memory_bytes(256 * 100 * 8 / 7);
    REQUIRE(c.Call(&Coordinator::JoinServer, server).ok());
  }
  const auto create = [&](const std::string& name, uint64_t chunks) {
    return c.CreateTable(TestCoordinator::Spec(name, 64 * chunks, v1::CONSISTENCY_ASYNC, name))
        .status();
  };
  REQUIRE_STATUS(create("large", 101), kResourceExhausted,
                 "its chunks there, with copies, would take 25856 bytes beside 0 bytes of other "
                 "dense tables; allowed: 25600, which is 7/8 of its --memory-limit of 29257");
  REQUIRE(create("most", 60).ok());
  REQUIRE_STATUS(create("other", 41), kResourceExhausted, "beside 15360 bytes");
  REQUIRE(create("other", 40).ok());
}

TEST_CASE("limits may be set before the job exists, and survive its runs and a restart") {
  TestCoordinator c;
  Set(&c, "job", Limits(1 << 30, 3, 8));
  CHECK(c.Job("job").generation() == 1);
  c.Restart();
  CHECK(Same(c.Job("job").limits(), Limits(1 << 30, 3, 8)));
  // Another number of workers than none: the entry stands for no run yet.
  const auto first = c.JoinWorker("job", 2);
  REQUIRE(first.ok());
  CHECK(c.Job("job").generation() == 1);
  CHECK(c.Job("job").expected_workers() == 2);
  REQUIRE(c.Leave(first->incarnation()).ok());
  REQUIRE(c.JoinWorker("job", 1).ok());
  CHECK(c.Job("job").generation() == 2);
  CHECK(Same(c.Job("job").limits(), Limits(1 << 30, 3, 8)));
  // A job that has run stays without them.
  Set(&c, "job", {});
  CHECK(c.view().jobs_size() == 1);
}

TEST_CASE("a job that has only limits is removed with them") {
  TestCoordinator c;
  Set(&c, "typo", Limits(0, 1, 0));
  Set(&c, "other", Limits(0, 1, 0));
  Set(&c, "typo", {});
  REQUIRE(c.view().jobs_size() == 1);
  CHECK(c.view().jobs(0).name() == "other");
  const uint64_t revision = c.view().revision();
  Set(&c, "typo", {});
  CHECK(c.view().revision() == revision);
}

TEST_CASE("a repeated request sets limits once") {
  TestCoordinator c;
  const v1::SetJobLimitsRequest request = Request(&c, "job", Limits(0, 2, 0));
  const auto first = c.Call(&Coordinator::SetJobLimits, request);
  REQUIRE(first.ok());
  Set(&c, "job", Limits(0, 5, 0));
  if (GENERATE(false, true)) c.Restart();
  const auto again = c.Call(&Coordinator::SetJobLimits, request);
  REQUIRE(again.ok());
  CHECK(again->revision() == first->revision());
  CHECK(c.Job("job").limits().tables() == 5);
  v1::SetJobLimitsRequest other = request;
  other.mutable_limits()->set_tables(7);
  REQUIRE_STATUS(c.Call(&Coordinator::SetJobLimits, other).status(), kInvalidArgument,
                 "request_id was used before");
}

TEST_CASE("a limit that cannot be saved is not set") {
  FaultyStore store;
  TestCoordinator c({}, &store);
  store.full = true;
  const auto failed = c.Call(&Coordinator::SetJobLimits, Request(&c, "job", Limits(0, 2, 0)));
  REQUIRE_STATUS(failed.status(), kUnavailable, "disk is full");
  CHECK(c.view().jobs_size() == 0);
}

TEST_CASE("tables beyond the job's limit are refused, and those of other jobs are not") {
  TestCoordinator c;
  c.JoinServer("a");
  Set(&c, "job", Limits(0, 2, 0));
  REQUIRE(c.CreateTable(c.Spec("t0", 64)).ok());
  REQUIRE(c.CreateTable(c.Spec("t1", 64)).ok());
  const uint64_t revision = c.view().revision();
  const absl::Status refused = c.CreateTable(c.Spec("t2", 64)).status();
  REQUIRE_STATUS(refused, kResourceExhausted,
                 "job 'job' is at its limit of tables: it has 2, allowed are 2");
  REQUIRE_STATUS(refused, kResourceExhausted, "verbena limits job --tables 3");
  CHECK(c.view().revision() == revision);
  // One that is there is no further one.
  CHECK(c.CreateTable(c.Spec("t1", 64)).ok());
  CHECK(c.CreateTable(c.Spec("u0", 64, v1::CONSISTENCY_SYNC, "other")).ok());
  REQUIRE(c.DropTable("t0").ok());
  CHECK(c.CreateTable(c.Spec("t2", 64)).ok());

  SECTION("a limit below the present use drops no table") {
    Set(&c, "job", Limits(0, 1, 0));
    CHECK(c.view().tables_size() == 3);
    REQUIRE_STATUS(c.CreateTable(c.Spec("t3", 64)).status(), kResourceExhausted,
                   "it has 2, allowed are 1");
  }
  SECTION("raised, it lets more in") {
    Set(&c, "job", Limits(0, 3, 0));
    CHECK(c.CreateTable(c.Spec("t3", 64)).ok());
  }
}

// Servers take 1,000 bytes a chunk here, and chunks have 64 elements.
CoordinatorOptions ChunksOfAThousand() {
  CoordinatorOptions options;
  options.partitions = 4;
  options.expected_servers = 2;
  options.chunk_memory = [](const v1::TableSpec&) { return uint64_t{1000}; };
  return options;
}

TEST_CASE("a dense table that cannot fit its job's memory is refused") {
  TestCoordinator c(ChunksOfAThousand());
  c.JoinServer("a");
  c.JoinServer("b");
  // 15/16 of it is for tables: 15,000 bytes on each of two servers.
  Set(&c, "job", Limits(32000, 0, 0));
  const auto spec = [&](const std::string& name, uint64_t chunks, const std::string& job = "job") {
    return c.Spec(name, chunks * 64, v1::CONSISTENCY_ASYNC, job);
  };
  const absl::Status refused = c.CreateTable(spec("big", 32)).status();
  for (const char* part :
       {"'big' does not fit job 'job'", "would take 16000 bytes", "allowed: 15000",
        "(16000, by partitions)", "limit of 32000 bytes", "verbena limits job --memory"}) {
    REQUIRE_STATUS(refused, kResourceExhausted, part);
  }
  CHECK(c.view().tables_size() == 0);
  CHECK(c.CreateTable(spec("big", 32, "other")).ok());
  REQUIRE(c.CreateTable(spec("half", 16)).ok());
  REQUIRE(c.CreateTable(spec("rest", 14)).ok());
  REQUIRE_STATUS(c.CreateTable(spec("one", 1)).status(), kResourceExhausted,
                 "would take 16000 bytes");
  // Rows are the servers' to refuse.
  v1::TableSpec rows = spec("rows", 1);
  rows.clear_shape();
  rows.set_dim(4);
  CHECK(c.CreateTable(rows).ok());
  REQUIRE(c.DropTable("rest").ok());
  CHECK(c.CreateTable(spec("one", 1)).ok());
  Set(&c, "job", Limits(1000, 0, 0));
  CHECK(c.view().tables_size() == 4);
  REQUIRE_STATUS(c.CreateTable(spec("two", 1)).status(), kResourceExhausted, "allowed: 469");
}

TEST_CASE("a server without chunks of a table does not limit it") {
  TestCoordinator c(ChunksOfAThousand());
  c.JoinServer("a");
  c.JoinServer("b");
  // Both have a chunk; then room for one more on each.
  REQUIRE(c.CreateTable(c.Spec("t0", 4 * 64)).ok());
  Set(&c, "job", Limits(2 * 3400, 0, 0));
  std::set<std::string> refused;
  for (const std::string name : {"t1", "t2", "t3", "t4"}) {
    const absl::Status status = c.CreateTable(c.Spec(name, 64)).status();
    if (status.ok()) continue;
    const std::string message(status.message());
    refused.insert(message.find("server 'a'") != std::string::npos ? "a" : "b");
  }
  // One chunk each got in wherever there was room, whatever the other server has.
  CHECK(c.view().tables_size() >= 2);
  CHECK(c.view().tables_size() <= 3);
  CHECK_FALSE(refused.empty());
}

TEST_CASE("before servers report their memory per chunk, the limit counts parameters alone") {
  TestCoordinator c({.partitions = 4});
  c.JoinServer("a");
  Set(&c, "job", Limits(1024 + 64, 0, 0));  // of which 15/16 is 1020
  CHECK(c.CreateTable(c.Spec("t0", 3 * 64)).ok());
  REQUIRE_STATUS(c.CreateTable(c.Spec("t1", 64)).status(), kResourceExhausted,
                 "would take 1024 bytes");
}

}  // namespace
}  // namespace verbena::server
