// Servers, workers, leases, ranks and generations.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/coordinator/jobs.h"
#include "server/coordinator/turns.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

std::vector<int> Ranks(const v1::Job& job) {
  std::vector<int> ranks;
  for (const v1::Worker& member : job.members()) ranks.push_back(member.rank());
  return ranks;
}

TEST_CASE("a server that stops sending heartbeats is silent and comes back as itself") {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a");
  const uint64_t b = c.JoinServer("b");
  REQUIRE(b > a);
  c.clock.AdvanceMs(kLeaseMs - 1);
  REQUIRE_FALSE(c->RunOnce());
  REQUIRE(c.Heartbeat(b).ok());
  REQUIRE(c->NextTimerNanos() == c.clock.NowNanos() + 1000000);
  c.clock.AdvanceMs(1);
  REQUIRE(c->RunOnce());
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  REQUIRE(c.Server("b").state() == v1::Server::ALIVE);
  const uint64_t revision = c.view().revision();
  REQUIRE(c.Heartbeat(a)->revision() == revision + 1);
  REQUIRE(c.Server("a").state() == v1::Server::ALIVE);
  REQUIRE(c.Server("a").incarnation() == a);
}

TEST_CASE("a heartbeat changes nothing that is saved") {
  FaultyStore store;
  TestCoordinator c({}, &store);
  const uint64_t a = c.JoinServer("a");
  const int saves = store.saves;
  for (int i = 0; i < 100; ++i) {
    c.clock.AdvanceMs(1000);
    REQUIRE(c.Heartbeat(a).ok());
    REQUIRE_FALSE(c->RunOnce());
  }
  REQUIRE(store.saves == saves);
}

TEST_CASE("heartbeats of unknown and retired incarnations are NOT_FOUND") {
  TestCoordinator c;
  REQUIRE_STATUS(c.Heartbeat(7).status(), kNotFound, "incarnation 7");
  const uint64_t first = c.JoinServer("a");
  const uint64_t second = c.JoinServer("a");
  REQUIRE_STATUS(c.Heartbeat(first).status(), kNotFound, "newer incarnation");
  REQUIRE(c.Heartbeat(second).ok());
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  c.clock.AdvanceMs(kLeaseMs);
  c->RunOnce();
  REQUIRE_STATUS(c.Heartbeat(worker).status(), kNotFound, "lease has ended");
}

TEST_CASE("a server that leaves is silent at once and a late heartbeat does not revive it") {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.Leave(a).ok());
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  REQUIRE(c.Heartbeat(a).status().code() == absl::StatusCode::kNotFound);
  REQUIRE(c.Leave(a).ok());
  REQUIRE(c.JoinServer("a") > a);
  REQUIRE(c.Server("a").state() == v1::Server::ALIVE);
  REQUIRE_STATUS(c.Leave(1000), kNotFound, "never given out");
}

TEST_CASE("the name of a server that is alive elsewhere cannot be taken") {
  TestCoordinator c;
  c.JoinServer("a");
  const auto other = c.ServerRequest("a", 1, "elsewhere:7000");
  REQUIRE_STATUS(c.Call(&Coordinator::JoinServer, other).status(), kAlreadyExists,
                 "server 'a' is alive at a:7000");
  c.clock.AdvanceMs(kLeaseMs);
  c->RunOnce();
  REQUIRE(c.Call(&Coordinator::JoinServer, other).ok());
  REQUIRE(c.Server("a").address() == "elsewhere:7000");
  REQUIRE(c.view().servers_size() == 1);
}

TEST_CASE("a server's request is checked") {
  TestCoordinator c;
  const auto refused = [&](auto change) {
    v1::JoinServerRequest request = c.ServerRequest("a");
    change(&request);
    return c.Call(&Coordinator::JoinServer, request).status();
  };
  REQUIRE_STATUS(refused([](auto* r) { r->set_request_id("short"); }), kInvalidArgument,
                 "request_id has 5 bytes");
  REQUIRE_STATUS(refused([](auto* r) { r->set_name(""); }), kInvalidArgument, "name is empty");
  REQUIRE_STATUS(refused([](auto* r) { r->set_name("a\nb"); }), kInvalidArgument, "control");
  REQUIRE_STATUS(refused([](auto* r) { r->set_address("host"); }), kInvalidArgument, "host:port");
  REQUIRE_STATUS(refused([](auto* r) { r->set_address("host:70000"); }), kInvalidArgument, "host");
  REQUIRE_STATUS(refused([](auto* r) { r->set_shards(0); }), kInvalidArgument, "0 shards");
  REQUIRE(c.view().servers_size() == 0);
}

TEST_CASE("options are checked") {
  ManualClock clock;
  MemoryStore store;
  const auto code = [&](CoordinatorOptions options) {
    return Coordinator::Create(options, &clock, &store).status().code();
  };
  REQUIRE(code({.partitions = 0}) == absl::StatusCode::kInvalidArgument);
  REQUIRE(code({.lease_ms = 1}) == absl::StatusCode::kInvalidArgument);
}

TEST_CASE("ranks: named, lowest free, taken, out of range") {
  TestCoordinator c;
  REQUIRE(c.JoinWorker("job", 3, 1)->rank() == 1);
  REQUIRE(c.JoinWorker("job", 3)->rank() == 0);
  REQUIRE_STATUS(c.JoinWorker("job", 3, 1).status(), kAlreadyExists, "rank 1 of job 'job'");
  REQUIRE_STATUS(c.JoinWorker("job", 3, 3).status(), kInvalidArgument, "ranks are 0 to 2");
  REQUIRE_STATUS(c.JoinWorker("job", 4).status(), kInvalidArgument,
                 "expected_workers is 4, but job 'job' was started with 3");
  REQUIRE_STATUS(c.JoinWorker("other", 0).status(), kInvalidArgument, "expected_workers");
  REQUIRE(c.JoinWorker("job", 3)->rank() == 2);
  REQUIRE_STATUS(c.JoinWorker("job", 3).status(), kAlreadyExists, "job 'job' has its 3");
  REQUIRE(c.view().jobs_size() == 1);
  REQUIRE(Ranks(c.Job("job")) == std::vector<int>{1, 0, 2});
}

TEST_CASE("a departed rank stays departed until the run is over") {
  TestCoordinator c;
  const uint64_t w0 = c.JoinWorker("job", 2)->incarnation();
  const uint64_t w1 = c.JoinWorker("job", 2)->incarnation();
  REQUIRE(c.Leave(w1).ok());
  REQUIRE(c.Job("job").departed_ranks_size() == 1);
  REQUIRE(c.Job("job").departed_ranks(0) == 1);
  REQUIRE_STATUS(c.JoinWorker("job", 2, 1).status(), kFailedPrecondition, "rank 1 of job 'job'");
  REQUIRE_STATUS(c.JoinWorker("job", 2).status(), kFailedPrecondition, "job 'job' has its 2");
  c.clock.AdvanceMs(kLeaseMs);
  c->RunOnce();
  REQUIRE(c.Heartbeat(w0).status().code() == absl::StatusCode::kNotFound);
  REQUIRE(c.view().jobs_size() == 0);
  // A new run, with its own number of workers.
  const auto next = c.JoinWorker("job", 3, 1);
  REQUIRE(next.ok());
  REQUIRE(c.Job("job").generation() == 2);
  REQUIRE(c.Job("job").expected_workers() == 3);
  REQUIRE(c.Job("job").departed_ranks_size() == 0);
}

TEST_CASE("regression: a worker of a run that was killed waits for the end of the run's leases") {
  const int named = GENERATE(0, -1);
  TestCoordinator c;
  for (int rank = 0; rank < 3; ++rank) {
    c.clock.AdvanceMs(100);  // so that leases end one after another
    REQUIRE(c.JoinWorker("job", 3, rank).ok());
  }
  const auto join = [&] { return c.JoinWorker("job", 3, named).status(); };
  REQUIRE_STATUS(join(), kAlreadyExists, "job 'job'");
  SECTION("all of it was killed") {
    // The first lease has ended.
    c.clock.AdvanceMs(kLeaseMs - 150);
    c->RunOnce();
    REQUIRE(c.Job("job").departed_ranks_size() == 1);
    REQUIRE_STATUS(join(), kAlreadyExists, "no worker of this run has been heard for 2500 ms");
    c.clock.AdvanceMs(200);
    c->RunOnce();
    REQUIRE(join().ok());
    REQUIRE(c.Job("job").generation() == 2);
  }
  SECTION("one of it goes on") {
    const uint64_t last = c.Job("job").members(2).incarnation();
    c.clock.AdvanceMs(kLeaseMs - 150);
    REQUIRE(c.Heartbeat(last).ok());
    c->RunOnce();
    REQUIRE(c.Job("job").departed_ranks_size() == 1);
    c.clock.AdvanceMs(kLeaseMs / 2 - 100);
    c->RunOnce();
    REQUIRE_STATUS(join(), kFailedPrecondition, "job 'job'");
  }
}

TEST_CASE("regression: a job that has ended leaves the view, and no generation comes again") {
  FaultyStore store;
  TestCoordinator c({}, &store);
  c.JoinServer("a");
  for (uint32_t run = 1; run <= 3; ++run) {
    const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
    CHECK(c.Job("job").generation() == run);
    REQUIRE(c.Leave(worker).ok());
    CHECK(c.view().jobs_size() == 0);
    if (run == 2) c.Restart();
  }
  // Also of a name that the coordinator has forgotten.
  const uint64_t other = c.JoinWorker("other", 1)->incarnation();
  CHECK(c.Job("other").generation() == 4);
  REQUIRE(c.Leave(other).ok());
  // Its tables have steps of its generation: it stays with them.
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
  const uint32_t generation = c.Job("job").generation();
  REQUIRE(c.Leave(worker).ok());
  CHECK(c.Job("job").generation() == generation);
  CHECK(c.Job("job").departed_ranks_size() == 1);
  store.full = true;
  REQUIRE(!c.DropTable("t").ok());
  CHECK(c.Job("job").generation() == generation);
  store.full = false;
  REQUIRE(c.DropTable("t").ok());
  CHECK(c.view().jobs_size() == 0);
  // One that only observers have joined.
  for (int i = 0; i < 100; ++i) {
    const auto reader = c.JoinWorker(absl::StrCat("read-", i), 0, -1, /*observer=*/true);
    REQUIRE(c.Leave(reader->incarnation()).ok());
  }
  CHECK(c.view().jobs_size() == 0);
}

TEST_CASE("observers have no rank, no limit, and keep no run going") {
  TestCoordinator c;
  REQUIRE(c.JoinWorker("job", 0, -1, true)->rank() == -1);
  const uint64_t w = c.JoinWorker("job", 1)->incarnation();
  REQUIRE(c.Job("job").generation() == 1);
  for (int i = 0; i < 5; ++i) REQUIRE(c.JoinWorker("job", 9, -1, true).ok());
  const uint64_t observer = c.JoinWorker("job", 9, -1, true)->incarnation();
  REQUIRE(c.Leave(observer).ok());
  REQUIRE(c.Job("job").departed_ranks_size() == 0);
  REQUIRE(c.Leave(w).ok());
  REQUIRE(c.JoinWorker("job", 2)->rank() == 0);
  REQUIRE(c.Job("job").generation() == 2);
  REQUIRE(c.Job("job").members_size() == 7);
}

TEST_CASE("a job whose tables are all async takes more workers than expected") {
  TestCoordinator c;
  c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 64, v1::CONSISTENCY_ASYNC)).ok());
  const uint64_t w0 = c.JoinWorker("job", 1)->incarnation();
  REQUIRE(c.JoinWorker("job", 1)->rank() == 1);
  REQUIRE(c.JoinWorker("job", 1)->rank() == 2);
  REQUIRE(c.Leave(w0).ok());
  REQUIRE(c.JoinWorker("job", 1)->rank() == 3);
  REQUIRE_STATUS(c.CreateTable(c.Spec("s", 64)).status(), kFailedPrecondition,
                 "beyond expected_workers (1)");
  REQUIRE(c.JoinWorker("sync", 1).ok());
  REQUIRE(c.CreateTable(c.Spec("s", 64, v1::CONSISTENCY_SYNC, "sync")).ok());
  REQUIRE_STATUS(c.JoinWorker("sync", 1).status(), kAlreadyExists, "job 'sync' has its 1");
}

// A run of such a job need not end, however often its workers are replaced.
TEST_CASE("regression: workers beyond the expected ones come and go without end") {
  TestCoordinator c;
  c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 64, v1::CONSISTENCY_ASYNC)).ok());
  REQUIRE(c.JoinWorker("job", 1)->rank() == 0);
  REQUIRE(c.JoinWorker("job", 1)->rank() == 1);
  for (int i = 0; i < 20; ++i) {
    const auto joined = c.JoinWorker("job", 1);
    REQUIRE(joined->rank() == 2);
    REQUIRE(c.Leave(joined->incarnation()).ok());
  }
  CHECK(c.Job("job").departed_ranks().empty());
  CHECK(c.Job("job").generation() == 1);

  // A state in which they were kept: all ranks there are.
  v1::ClusterView view = c.view();
  v1::Job* job = view.mutable_jobs(0);
  for (int32_t rank = 2; rank < static_cast<int32_t>(kMaxWorkers); ++rank) {
    job->add_departed_ranks(rank);
  }
  v1::JoinWorkerRequest request;
  request.set_job("job");
  request.set_expected_workers(1);
  request.set_rank(-1);
  uint32_t ended_generation = 0;
  ViewEditor editor(&view, &ended_generation);
  editor.Index();
  editor.Begin();
  v1::Worker member;
  member.set_incarnation(1000);
  const absl::StatusOr<int32_t> rank = AdmitWorker(request, member, &editor);
  INFO(rank.status());
  REQUIRE(rank.ok());
  CHECK(*rank == 2);
  // No rank is both.
  const auto& departed = job->departed_ranks();
  CHECK(std::find(departed.begin(), departed.end(), 2) == departed.end());
}

TEST_CASE("time in which the coordinator did not run ends no lease") {
  TestCoordinator c;
  const uint64_t server = c.JoinServer("a");
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  c.clock.StallMs(10 * kLeaseMs);
  c->RunOnce();
  REQUIRE(c.Server("a").state() == v1::Server::ALIVE);
  REQUIRE(c.Heartbeat(worker).ok());
  // A server that is really gone has one more lease.
  c.clock.AdvanceMs(kLeaseMs);
  REQUIRE(c->RunOnce());
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  REQUIRE(c.Heartbeat(server).ok());
}

TEST_CASE("regression: a stall of about a lease ends no lease, and its time is given back") {
  for (const int64_t stall : {kLeaseMs * 3 / 4, kLeaseMs, kLeaseMs * 5 / 4}) {
    TestCoordinator c;
    const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
    c.clock.AdvanceMs(kLeaseMs / 4);
    c.clock.StallMs(stall);
    c->RunOnce();
    // Heartbeats sent meanwhile are lost; the next one comes half a lease later.
    c.clock.AdvanceMs(kLeaseMs / 2);
    c->RunOnce();
    REQUIRE(c.Heartbeat(worker).ok());
    // Stalls do not add up to a lease without an end.
    for (int i = 0; i < 4; ++i) {
      c.clock.StallMs(kLeaseMs / 2);
      c->RunOnce();
      c.clock.AdvanceMs(kLeaseMs / 4);
      c->RunOnce();
    }
    REQUIRE(c.Heartbeat(worker).status().code() == absl::StatusCode::kNotFound);
  }
}

// Each of them is too short to be a pause.
TEST_CASE("regression: delays of turns that add up to a lease end none") {
  TestCoordinator c;
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  for (int turn = 0; turn < 7; ++turn) {
    c.clock.StallMs(kLeaseMs / 4);
    c->RunOnce();
  }
  CHECK(c.Heartbeat(worker).ok());
}

TEST_CASE("regression: a member that is gone is found although every turn is late") {
  for (const int64_t late : {kLeaseMs / 4, kLeaseMs / 2, kLeaseMs * 3 / 2}) {
    TestCoordinator c;
    const uint64_t gone = c.JoinWorker("gone", 1)->incarnation();
    const uint64_t well = c.JoinWorker("well", 1)->incarnation();
    for (int turn = 0; turn < 2 * Turns::kMostPauses + 1; ++turn) {
      c.clock.StallMs(late);
      REQUIRE(c.Heartbeat(well).ok());
      c->RunOnce();
    }
    CHECK(c.Heartbeat(gone).status().code() == absl::StatusCode::kNotFound);
    CHECK(c.Heartbeat(well).ok());
  }
}

TEST_CASE("incarnations are never reused") {
  TestCoordinator c;
  std::set<uint64_t> seen;
  uint64_t last = 0;
  for (int i = 0; i < 50; ++i) {
    const uint64_t server = c.JoinServer("a");
    const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
    REQUIRE(server > last);
    REQUIRE(worker > server);
    last = worker;
    REQUIRE(c.Leave(worker).ok());
    if (i % 7 == 0) c.Restart();
  }
}

}  // namespace
}  // namespace verbena::server
