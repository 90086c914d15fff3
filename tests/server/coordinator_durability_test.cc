// State after a restart, repeated calls, and a store that cannot save.
#include <random>

#include "server/coordinator/failpoints.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("a restarted coordinator knows everything and renews all leases") {
  TestCoordinator c({.partitions = 16, .expected_servers = 2});
  const uint64_t a = c.JoinServer("a", 2);
  const uint64_t b = c.JoinServer("b", 2);
  const uint64_t worker = c.JoinWorker("job", 2)->incarnation();
  REQUIRE(c.CreateTable(c.Spec("t", 640)).ok());
  REQUIRE(c.Leave(b).ok());
  c.clock.AdvanceMs(kLeaseMs - 1);
  v1::ClusterView before = c.view();
  c.Restart();
  REQUIRE(c.view().term() == before.term() + 1);
  REQUIRE(c.view().revision() == before.revision() + 1);
  before.set_term(c.view().term());
  REQUIRE(c.view().terms_size() == before.terms_size() + 1);
  *before.mutable_terms() = c.view().terms();
  before.set_revision(c.view().revision());
  REQUIRE(c.view().SerializeAsString() == before.SerializeAsString());

  c.clock.AdvanceMs(kLeaseMs - 1);
  REQUIRE_FALSE(c->RunOnce());
  REQUIRE(c.Heartbeat(worker)->term() == before.term());
  c.clock.AdvanceMs(1);
  REQUIRE(c->RunOnce());
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  REQUIRE(c.Server("b").state() == v1::Server::SILENT);
  REQUIRE(c.Job("job").members_size() == 1);
  REQUIRE(c.Heartbeat(a).ok());
}

// A coordinator that was away for long is looked for at intervals, which may be longer than a
// lease.
TEST_CASE("members have time to find a coordinator that was started again") {
  constexpr int64_t kFindMs = 2 * kLeaseMs;
  TestCoordinator c({.partitions = 16, .find_again_ns = kFindMs * 1000000});
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  c.Restart();
  c.clock.AdvanceMs(kFindMs + kLeaseMs - 1);
  c->RunOnce();
  REQUIRE(c.Heartbeat(worker).ok());
  c.clock.AdvanceMs(kLeaseMs - 1);
  c->RunOnce();
  REQUIRE(c.Heartbeat(worker).ok());
  c.clock.AdvanceMs(kLeaseMs);  // the following ones are as long as ever
  c->RunOnce();
  REQUIRE_FALSE(c.Heartbeat(worker).ok());
}

TEST_CASE("lost partitions and departed ranks survive a restart") {
  TestCoordinator c({.partitions = 16});
  c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 64 * 20)).ok());
  const uint64_t w0 = c.JoinWorker("job", 2)->incarnation();
  REQUIRE(c.JoinWorker("job", 2).ok());
  REQUIRE(c.Leave(w0).ok());
  c.JoinServer("a");
  c.Restart();
  REQUIRE(c.view().tables(0).lost_partitions_size() == 16);
  REQUIRE(c.Job("job").departed_ranks(0) == 0);
  REQUIRE(c.JoinWorker("job", 2, 0).status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("the number of partitions is that of the cluster's first start") {
  MemoryStore store;
  { TestCoordinator c({.partitions = 16}, &store); }
  TestCoordinator c({.partitions = 64, .lease_ms = 700}, &store);
  REQUIRE(c.view().partitions_size() == 16);
  REQUIRE(c.view().lease_ms() == 700);
}

TEST_CASE("a repeated call has one effect and the same answer, also after a restart") {
  TestCoordinator c({.partitions = 16});
  const auto server = c.ServerRequest("a");
  const auto worker = c.WorkerRequest("job", 2);
  v1::CreateTableRequest table;
  table.set_request_id(c.NewId());
  *table.mutable_spec() = c.Spec("t", 64);
  (*table.mutable_spec()->mutable_optimizer()->mutable_parameters())["x"] = 1;
  (*table.mutable_spec()->mutable_optimizer()->mutable_parameters())["y"] = 2;
  const uint64_t a = c.Call(&Coordinator::JoinServer, server)->incarnation();
  const auto w = *c.Call(&Coordinator::JoinWorker, worker);
  const auto t = *c.Call(&Coordinator::CreateTable, table);
  v1::LeaveRequest leave;
  leave.set_request_id(c.NewId());
  leave.set_incarnation(w.incarnation());
  REQUIRE(c.Call(&Coordinator::Leave, leave).ok());
  v1::DropTableRequest drop;
  drop.set_request_id(c.NewId());
  drop.set_name("t");
  const auto dropped = *c.Call(&Coordinator::DropTable, drop);
  for (int round = 0; round < 2; ++round) {
    const std::string before = c.view().SerializeAsString();
    const auto again = c.Call(&Coordinator::JoinServer, server);
    REQUIRE(again->incarnation() == a);
    REQUIRE(again->lease_ms() == kLeaseMs);
    REQUIRE(again->view().revision() == c.view().revision());
    REQUIRE(c.Call(&Coordinator::JoinWorker, worker)->incarnation() == w.incarnation());
    REQUIRE(c.Call(&Coordinator::CreateTable, table)->table().id() == t.table().id());
    REQUIRE(c.Call(&Coordinator::DropTable, drop)->revision() == dropped.revision());
    REQUIRE(c.Call(&Coordinator::Leave, leave).ok());
    REQUIRE(c.view().SerializeAsString() == before);
    c.Restart();
  }
  // The same id with other content, or for another method, is the caller's mistake.
  auto other = server;
  other.set_name("b");
  REQUIRE_STATUS(c.Call(&Coordinator::JoinServer, other).status(), kInvalidArgument, "request_id");
  leave.set_request_id(server.request_id());
  REQUIRE_STATUS(c.Call(&Coordinator::Leave, leave).status(), kInvalidArgument, "request_id");
}

TEST_CASE("a repeated join renews the lease: its caller could not send heartbeats") {
  TestCoordinator c;
  const auto worker = c.WorkerRequest("job", 1);
  const uint64_t incarnation = c.Call(&Coordinator::JoinWorker, worker)->incarnation();
  c.clock.AdvanceMs(kLeaseMs - 1);
  REQUIRE(c.Call(&Coordinator::JoinWorker, worker)->incarnation() == incarnation);
  c.clock.AdvanceMs(2);
  c->RunOnce();
  REQUIRE(c.Heartbeat(incarnation).ok());
}

TEST_CASE("the last answers are kept, older ones are forgotten") {
  MemoryStore store;
  TestCoordinator c({.partitions = 1}, &store);
  const auto first = c.ServerRequest("first");
  REQUIRE(c.Call(&Coordinator::JoinServer, first).ok());
  const auto second = c.ServerRequest("second");
  const uint64_t incarnation = c.Call(&Coordinator::JoinServer, second)->incarnation();
  for (size_t i = 0; i + 1 < kAnswersKept; ++i) c.JoinServer("a");
  REQUIRE(store.Load()->answered.size() <= kAnswersKept + 1);
  REQUIRE(c.Call(&Coordinator::JoinServer, second)->incarnation() == incarnation);
  REQUIRE(c.Call(&Coordinator::JoinServer, first)->incarnation() > incarnation);
}

TEST_CASE("a change that cannot be saved has not happened") {
  FaultyStore store;
  TestCoordinator c({.partitions = 16}, &store);
  const uint64_t a = c.JoinServer("a");
  const uint64_t worker = c.JoinWorker("job", 2)->incarnation();
  REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
  const std::string before = c.view().SerializeAsString();
  const auto poll = c.Poll(c.view().revision(), 30000);
  store.full = true;
  const auto join = c.ServerRequest("b");
  REQUIRE_STATUS(c.Call(&Coordinator::JoinServer, join).status(), kUnavailable, "disk is full");
  REQUIRE_STATUS(c.JoinWorker("job", 2).status(), kUnavailable, "disk is full");
  REQUIRE_STATUS(c.CreateTable(c.Spec("u", 64)).status(), kUnavailable, "disk is full");
  REQUIRE_STATUS(c.DropTable("t"), kUnavailable, "disk is full");
  REQUIRE_STATUS(c.Leave(worker), kUnavailable, "disk is full");
  REQUIRE(c.view().SerializeAsString() == before);
  REQUIRE_FALSE(poll->has_value());

  // Ended leases wait for the disk, without a busy loop, and are renewed by heartbeats meanwhile.
  c.clock.AdvanceMs(kLeaseMs);
  REQUIRE(c->RunOnce());
  REQUIRE(c.view().SerializeAsString() == before);
  REQUIRE(c->NextTimerNanos() > c.clock.NowNanos());
  REQUIRE_FALSE(c->RunOnce());
  REQUIRE(c.Heartbeat(a).ok());
  store.full = false;
  c.clock.AdvanceMs(1000);
  REQUIRE(c->RunOnce());
  REQUIRE(c.Server("a").state() == v1::Server::ALIVE);
  REQUIRE(c.Job("job").members_size() == 0);
  REQUIRE((*poll)->value().changed());
  REQUIRE(c.Call(&Coordinator::JoinServer, join).ok());
}

// Joins of servers and workers, a table, and calls that change nothing or are refused.
struct GroupOfCalls {
  explicit GroupOfCalls(TestCoordinator* coordinator) : c(*coordinator) {
    server = c.ServerRequest("b");
    table.set_request_id(c.NewId());
    *table.mutable_spec() = c.Spec("new", 64);
    for (int i = 0; i < 5; ++i) workers.push_back(c.WorkerRequest("crowd", 5));
    wrong = c.ServerRequest("a", 1, "elsewhere:1");  // it is alive
  }
  void Start() {
    joined = c.Start(&Coordinator::JoinServer, server);
    for (const auto& worker : workers) answers.push_back(c.Start(&Coordinator::JoinWorker, worker));
    answers.push_back(c.Start(&Coordinator::JoinWorker, workers[0]));  // repeated
    refused = c.Start(&Coordinator::JoinServer, wrong);
    made = c.Start(&Coordinator::CreateTable, table);
    seen = c.Poll(0, 0);
  }
  template <typename Check>
  void ForAll(const Check& check) const {
    check(*joined), check(*refused), check(*made);
    for (const auto& answer : answers) check(*answer);
  }

  TestCoordinator& c;
  v1::JoinServerRequest server, wrong;
  v1::CreateTableRequest table;
  std::vector<v1::JoinWorkerRequest> workers;
  Answer<v1::JoinServerResponse> joined, refused;
  Answer<v1::CreateTableResponse> made;
  std::vector<Answer<v1::JoinWorkerResponse>> answers;
  Answer<v1::GetViewResponse> seen;
};

TEST_CASE("the changes of a group are saved in one write, and answered after it") {
  FaultyStore store;
  TestCoordinator c({.partitions = 16}, &store);
  c.JoinServer("a");
  GroupOfCalls group(&c);
  const int saves = store.saves;
  c->BeginGroup();
  group.Start();
  CHECK(store.saves == saves);
  group.ForAll([](const auto& answer) { CHECK_FALSE(answer.has_value()); });
  CHECK_FALSE(group.seen->has_value());
  c->EndGroup();
  CHECK(store.saves == saves + 1);
  REQUIRE(group.joined->value().ok());
  REQUIRE(group.made->value().ok());
  CHECK(group.refused->value().status().code() == absl::StatusCode::kAlreadyExists);
  for (const auto& answer : group.answers) REQUIRE(answer->value().ok());
  CHECK(group.answers[5]->value()->incarnation() == group.answers[0]->value()->incarnation());
  CHECK(c.Job("crowd").members_size() == 5);
  CHECK(group.seen->value()->view().SerializeAsString() == c.view().SerializeAsString());
  CHECK(store.Load()->view.SerializeAsString() == c.view().SerializeAsString());
  // Each has a lease, and its answer survives a restart.
  REQUIRE(c.Heartbeat(group.answers[4]->value()->incarnation()).ok());
  c.Restart();
  CHECK(c.Call(&Coordinator::JoinWorker, group.workers[2])->incarnation() ==
        group.answers[2]->value()->incarnation());
}

TEST_CASE("a group that cannot be saved has not happened, for any of its calls") {
  FaultyStore store;
  TestCoordinator c({.partitions = 16}, &store);
  c.JoinServer("a");
  const std::string before = c.view().SerializeAsString();
  GroupOfCalls group(&c);
  c->BeginGroup();
  group.Start();
  store.full = true;
  c->EndGroup();
  group.ForAll([](const auto& answer) {
    REQUIRE(answer.has_value());
    CHECK(answer->status().code() == absl::StatusCode::kUnavailable);
  });
  CHECK(c.view().SerializeAsString() == before);
  CHECK(group.seen->value()->view().SerializeAsString() == before);
  store.full = false;
  GroupOfCalls again = group;
  again.Start();
  CHECK(again.joined->value().ok());
  CHECK(again.made->value().ok());
  CHECK(c.Job("crowd").members_size() == 5);
  CHECK(store.Load()->view.SerializeAsString() == c.view().SerializeAsString());
}

TEST_CASE("regression: a heartbeat that revives a server waits for the write of its group") {
  FaultyStore store;
  TestCoordinator c({}, &store);
  const uint64_t server = c.JoinServer("a");
  c.clock.AdvanceMs(kLeaseMs + 1);
  c->RunOnce();
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  v1::HeartbeatRequest heartbeat;
  heartbeat.set_incarnation(server);
  heartbeat.set_server(true);
  c->BeginGroup();
  const auto answer = c.Start(&Coordinator::Heartbeat, heartbeat);
  CHECK_FALSE(answer->has_value());
  store.full = true;
  c->EndGroup();
  REQUIRE(answer->has_value());
  CHECK(answer->value().status().code() == absl::StatusCode::kUnavailable);
  store.full = false;
  REQUIRE(c.Heartbeat(server).ok());
  CHECK(c.Server("a").state() == v1::Server::ALIVE);
}

TEST_CASE("a crash before a group is saved loses all of it, of which nothing was answered") {
  FaultyStore store;
  TestCoordinator c({.partitions = 16}, &store);
  c.JoinServer("a");
  GroupOfCalls group(&c);
  c->BeginGroup();
  group.Start();
  c.Restart();
  group.ForAll([](const auto& answer) { CHECK_FALSE(answer.has_value()); });
  CHECK(c.view().servers_size() == 1);
  CHECK(c.view().jobs().empty());
  CHECK(c.view().tables().empty());
  REQUIRE(c.Call(&Coordinator::JoinServer, group.server).ok());
}

TEST_CASE("regression: a slow write of the store ends no lease") {
  for (const bool bug : {false, true}) {
    FaultyStore store;
    TestCoordinator c({}, &store);
    store.clock = &c.clock;
    const uint64_t server = c.JoinServer("a");
    const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
    failpoints().count_pauses = bug;
    // All but the heartbeat that is due: it comes while the store is written.
    c.clock.AdvanceMs(kLeaseMs / 4);
    store.slow_ms = kLeaseMs * 3 / 4;
    REQUIRE(c.JoinWorker("other", 1).ok());
    store.slow_ms = 0;
    c->RunOnce();
    failpoints().count_pauses = false;
    CHECK((c.Server("a").state() == v1::Server::ALIVE) == !bug);
    CHECK(c.Heartbeat(worker).ok() == !bug);
    CHECK(c.Heartbeat(server).ok());
  }
}

TEST_CASE("a state that makes no sense is DATA_LOSS") {
  ManualClock clock;
  MemoryStore good;
  {
    TestCoordinator c({.partitions = 4}, &good);
    c.JoinServer("a", 2);
    c.JoinServer("b");
    REQUIRE(c.JoinWorker("job", 2).ok());
    REQUIRE(c.CreateTable(c.Spec("t", 64)).ok());
  }
  const auto code = [&](auto change) {
    CoordinatorState state = *good.Load();
    change(&state);
    MemoryStore store;
    REQUIRE(store.Save(state, {}).ok());
    return Coordinator::Create({}, &clock, &store).status().code();
  };
  REQUIRE(code([](auto*) {}) == absl::StatusCode::kOk);
  const auto kDataLoss = absl::StatusCode::kDataLoss;
  REQUIRE(code([](auto* s) { s->next_incarnation = 2; }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->next_table = 1; }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.clear_partitions(); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.clear_cluster_id(); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_partitions(1)->set_primary(77); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_partitions(1)->set_shard(9); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_servers(1)->set_name("a"); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_tables(0)->add_lost_partitions(4); }) == kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_tables(0)->mutable_spec()->clear_shape(); }) ==
          kDataLoss);
  REQUIRE(code([](auto* s) { s->view.mutable_jobs(0)->add_departed_ranks(0); }) == kDataLoss);
}

// Random commands, with restarts and a failing disk between them: no answered command is forgotten,
// and the numbers that must only grow only grow.
TEST_CASE("random histories with restarts keep the invariants") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937_64 random(seed);
    FaultyStore store;
    TestCoordinator c({.partitions = 8, .lease_ms = 1000}, &store);
    uint64_t last_incarnation = 0;
    uint32_t last_table = 0;
    v1::ClusterView last = c.view();
    for (int step = 0; step < 150; ++step) {
      store.full = random() % 10 == 0;
      const std::string name(1, static_cast<char>('a' + random() % 3));
      switch (random() % 9) {
        case 0: {
          auto joined = c.Call(&Coordinator::JoinServer, c.ServerRequest(name, 1 + random() % 3));
          if (joined.ok()) {
            REQUIRE(joined->incarnation() > last_incarnation);
            last_incarnation = joined->incarnation();
          }
          break;
        }
        case 1: {
          auto joined = c.JoinWorker(name, 2);
          if (joined.ok()) {
            REQUIRE(joined->incarnation() > last_incarnation);
            last_incarnation = joined->incarnation();
          }
          break;
        }
        case 2:
          (void)c.Leave(1 + random() % (last_incarnation + 1));
          break;
        case 3:
        case 4: {
          const auto consistency = random() % 2 == 0 ? v1::CONSISTENCY_SYNC : v1::CONSISTENCY_ASYNC;
          auto table = c.CreateTable(c.Spec("t-" + name, 64 * (1 + random() % 2), consistency));
          if (table.ok()) last_table = std::max(last_table, table->id());
          break;
        }
        case 5:
          (void)c.DropTable("t-" + name);
          break;
        case 6:
          (void)c.Heartbeat(1 + random() % (last_incarnation + 1));
          break;
        case 7:
          c.clock.AdvanceMs(random() % 800);
          c->RunOnce();
          break;
        case 8: {
          store.full = false;
          v1::ClusterView before = c.view();
          c.Restart();
          before.set_term(before.term() + 1);
          *before.mutable_terms() = c.view().terms();
          before.set_revision(before.revision() + 1);
          REQUIRE(c.view().SerializeAsString() == before.SerializeAsString());
          break;
        }
      }
      const v1::ClusterView& view = c.view();
      REQUIRE(view.revision() >= last.revision());
      if (view.revision() == last.revision()) {
        REQUIRE(view.SerializeAsString() == last.SerializeAsString());
      }
      for (int p = 0; p < view.partitions_size(); ++p) {
        const v1::Partition& was = last.partitions(p);
        const v1::Partition& is = view.partitions(p);
        const bool moved = is.primary() != was.primary() || is.shard() != was.shard();
        REQUIRE(is.epoch() >= was.epoch() + (moved ? 1 : 0));
      }
      for (const v1::Table& table : view.tables()) REQUIRE(table.id() <= last_table);
      last = view;
    }
  }
}

}  // namespace
}  // namespace verbena::server
