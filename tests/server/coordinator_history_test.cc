// A coordinator that starts with an older state than its members: proof, refusal, and recovery.
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/numbers.h"
#include "proto/control/failpoints.h"
#include "server/coordinator/failpoints.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

// A server and a job's table; then a backup, another start, and tables that the backup lacks.
class RolledBack {
 public:
  explicit RolledBack(int changes_after_backup = 1) : c({.partitions = 4}, &store) {
    server = c.JoinServer("s1");
    worker = c.JoinWorker("a", 1)->incarnation();
    REQUIRE(c.CreateTable(c.Spec("a", 64, v1::CONSISTENCY_ASYNC, "a")).ok());
    backup = *store.Load();
    c.Restart();
    for (int i = 0; i < changes_after_backup; ++i) {
      REQUIRE(c.CreateTable(c.Spec("b" + std::to_string(i), 64, v1::CONSISTENCY_ASYNC, "a")).ok());
    }
    seen = c.view();
    newest = *store.Load();
  }
  void PutBack(const CoordinatorState& state) {
    REQUIRE(store.Save(state, {}).ok());
    c.Restart();
  }
  void PutBackUnheard(const CoordinatorState& state) {
    REQUIRE(store.Save(state, {}).ok());
    c.RestartUnheard();
  }
  // Accepts the older state as an operator does: the refusal names the option and its value.
  void Accept() {
    PutBack(backup);
    const absl::Status refused = c.Heartbeat(server, &seen, true).status();
    REQUIRE_STATUS(refused, kFailedPrecondition, "--accept-older-state=");
    const std::string text(refused.message());
    const size_t at = text.find("--accept-older-state=") + strlen("--accept-older-state=");
    REQUIRE(absl::SimpleHexAtoi(text.substr(at, 16), &c.options().accept_older_state));
    c.Restart();
  }
  void Change(const std::string& table) {
    REQUIRE(c.CreateTable(c.Spec(table, 64, v1::CONSISTENCY_ASYNC, "a")).ok());
  }

  MemoryStore store;
  TestCoordinator c;
  uint64_t server = 0, worker = 0;
  CoordinatorState backup, newest;
  v1::ClusterView seen;
};

TEST_CASE(
    "regression: a coordinator with an older state than a member has seen refuses all calls") {
  RolledBack r;
  r.PutBack(r.backup);
  REQUIRE(r.c.view().revision() < r.seen.revision());
  REQUIRE(r.c->status().ok());
  const auto poll = r.c.Poll(r.c.view().revision(), 10000);
  REQUIRE_STATUS(r.c.Heartbeat(r.server, &r.seen, true).status(), kFailedPrecondition,
                 "put the newer state back");
  CHECK(r.c->status().code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE_STATUS((*poll)->status(), kFailedPrecondition, "newer state");
  REQUIRE_STATUS(r.c.JoinWorker("b", 1).status(), kFailedPrecondition, "newer state");
  REQUIRE_STATUS(r.c.CreateTable(r.c.Spec("c", 64)).status(), kFailedPrecondition, "newer state");
  REQUIRE_STATUS((*r.c.Poll(0, 0))->status(), kFailedPrecondition, "newer state");
  REQUIRE_STATUS(r.c.Heartbeat(r.worker).status(), kFailedPrecondition, "newer state");
  // It decides nothing by time either.
  r.c.clock.AdvanceMs(10 * kLeaseMs);
  CHECK_FALSE(r.c->RunOnce());
  CHECK(r.c.Server("s1").state() == v1::Server::ALIVE);

  // With the newer state all goes on.
  r.PutBack(r.newest);
  REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
  REQUIRE(r.c.Heartbeat(r.worker, &r.seen).ok());
  REQUIRE(r.c.JoinWorker("b", 1).ok());
}

TEST_CASE("an older state that goes unnoticed is found with the failpoint") {
  failpoints().reuse_ids = true;
  RolledBack r;
  r.PutBack(r.backup);
  failpoints().reuse_ids = false;
  history::failpoints().one_history = true;
  const bool answered = r.c.Heartbeat(r.server, &r.seen, true).ok();
  // The id of another table of the history that the server has seen.
  const absl::StatusOr<v1::Table> reused = r.c.CreateTable(r.c.Spec("c", 64));
  history::failpoints().one_history = false;
  CHECK(answered);
  REQUIRE(reused.ok());
  CHECK(reused->id() == r.seen.tables(1).id());
}

// The results of calls whose callers would rely on the coordinator's state.
std::vector<absl::Status> Changes(TestCoordinator* c) {
  return {c->JoinWorker("b", 1).status(),
          c->Call(&Coordinator::JoinServer, c->ServerRequest("s2")).status(),
          c->CreateTable(c->Spec("c", 64, v1::CONSISTENCY_ASYNC, "c")).status(), c->DropTable("a")};
}

TEST_CASE("regression: an older state makes and changes nothing before it can be proved") {
  RolledBack r;
  r.PutBackUnheard(r.backup);
  const uint64_t revision = r.c.view().revision();
  for (const absl::Status& status : Changes(&r.c)) {
    REQUIRE_STATUS(status, kUnavailable, "not heard since: server s1");
  }
  CHECK(r.c.view().revision() == revision);
  REQUIRE_STATUS(r.c.Heartbeat(r.server, &r.seen, true).status(), kFailedPrecondition,
                 "put the newer state back");

  r.PutBackUnheard(r.newest);
  REQUIRE_STATUS(r.c.JoinWorker("b", 1).status(), kUnavailable, "may be an old one");
  REQUIRE(r.c.Heartbeat(r.worker, &r.seen).ok());  // a worker proves nothing
  REQUIRE_STATUS(r.c.JoinWorker("b", 1).status(), kUnavailable, "may be an old one");
  REQUIRE(r.c.Heartbeat(r.server).ok());  // a heartbeat without `seen` proves nothing
  REQUIRE_STATUS(r.c.JoinWorker("b", 1).status(), kUnavailable, "may be an old one");
  REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
  for (const absl::Status& status : Changes(&r.c)) CHECK(status.ok());

  failpoints().trusts_loaded_state = true;
  r.PutBackUnheard(r.backup);
  for (const absl::Status& status : Changes(&r.c)) CHECK(status.ok());
  failpoints().trusts_loaded_state = false;
}

TEST_CASE("calls that keep a cluster available do not wait for the servers' heartbeats") {
  RolledBack r;
  r.PutBackUnheard(r.newest);
  CHECK(r.c.Reconfigure(r.server, {}, {}).ok());
  CHECK(r.c.Leave(r.worker).ok());
  CHECK(r.c.Leave(r.server).ok());
  CHECK(r.c.JoinWorker("b", 1).ok());
}

TEST_CASE("a coordinator waits for no server that has gone, nor for longer than a lease") {
  RolledBack r;
  SECTION("its lease has ended") {
    r.PutBackUnheard(r.newest);
    r.c.clock.AdvanceMs(kLeaseMs - 1);
    REQUIRE_STATUS(r.c.JoinWorker("b", 1).status(), kUnavailable, "may be an old one");
    r.c.clock.AdvanceMs(1);
    r.c->RunOnce();
  }
  SECTION("it has started again at its address") {
    r.PutBackUnheard(r.newest);
    r.c.JoinServer("s1");
  }
  SECTION("it had left before") {
    REQUIRE(r.c.Leave(r.server).ok());
    r.c.RestartUnheard();
  }
  SECTION("an operator has accepted the state") {
    r.PutBack(r.backup);
    r.c.options().accept_older_state = r.c.view().terms().rbegin()->id();
    r.c.RestartUnheard();
  }
  CHECK(r.c.JoinWorker("b", 1).ok());
}

// How many ids of members and of tables are given out twice when the same state is started again
// and again, and the newer one goes on in between.
size_t IdsGivenTwice() {
  RolledBack r(3);
  std::multiset<uint64_t> members, tables;
  const auto give = [&](const std::string& name) {
    members.insert(r.c.JoinWorker(name, 1)->incarnation());
    members.insert(r.c.JoinServer("s-" + name));
    tables.insert(r.c.CreateTable(r.c.Spec(name, 64, v1::CONSISTENCY_ASYNC, "a"))->id());
  };
  members.insert({r.server, r.worker});
  for (const v1::Table& table : r.seen.tables()) tables.insert(table.id());
  for (int start = 0; start < 4; ++start) {
    r.PutBack(r.backup);
    give("old-" + std::to_string(start));
    r.PutBack(r.newest);
    give("new-" + std::to_string(start));
    r.newest = *r.store.Load();
  }
  return members.size() - std::set(members.begin(), members.end()).size() + tables.size() -
         std::set(tables.begin(), tables.end()).size();
}

TEST_CASE("regression: no two starts on one state give out the same incarnation or table id") {
  CHECK(IdsGivenTwice() == 0);
  failpoints().reuse_ids = true;
  CHECK(IdsGivenTwice() > 0);
  failpoints().reuse_ids = false;
}

TEST_CASE("table ids are skipped in terms in which a table is made, and in no other") {
  RolledBack r;
  const uint32_t next = r.newest.next_table;
  for (int i = 0; i < 100; ++i) r.c.Restart();
  CHECK(r.store.Load()->next_table == next);
  const absl::StatusOr<v1::Table> first = r.c.CreateTable(r.c.Spec("first", 64));
  const absl::StatusOr<v1::Table> second = r.c.CreateTable(r.c.Spec("second", 64));
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK(first->id() > next);
  CHECK(first->id() <= next + 65536);
  CHECK(second->id() == first->id() + 1);
}

TEST_CASE("a table is refused where the term's table ids would be beyond 2^32") {
  RolledBack r;
  r.backup.next_table = std::numeric_limits<uint32_t>::max() - 1;
  r.PutBack(r.backup);
  REQUIRE_STATUS(r.c.CreateTable(r.c.Spec("c", 64)).status(), kResourceExhausted, "table ids");
  CHECK(r.c.JoinWorker("b", 1).ok());
}

TEST_CASE(
    "an older state is proved even when its revision exceeds the one that a member has seen") {
  for (int more = 0; more < 4; ++more) {
    RolledBack r(2);
    r.PutBack(r.backup);
    for (int i = 0; i < more; ++i) r.Change("x" + std::to_string(i));
    INFO(r.c.view().revision() << " after " << r.seen.revision());
    // A server's data depends on it: the coordinator stops. A worker ends instead.
    if (r.c.view().revision() >= r.seen.revision()) {
      REQUIRE_STATUS(r.c.Heartbeat(r.worker, &r.seen).status(), kAborted, "not in the history");
      CHECK(r.c->status().ok());
    }
    REQUIRE_STATUS(r.c.Heartbeat(r.server, &r.seen, true).status(), kFailedPrecondition,
                   "server incarnation 1 has seen revision");
  }
}

TEST_CASE("a worker that joined an older state by mistake does not stop the right one") {
  RolledBack r(8);
  r.PutBack(r.backup);
  const uint64_t stray = r.c.JoinWorker("stray", 1)->incarnation();
  const v1::ClusterView wrong = r.c.view();
  r.PutBack(r.newest);
  REQUIRE_STATUS(r.c.Heartbeat(stray, &wrong).status(), kAborted, "not in the history");
  REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
}

TEST_CASE("regression: a worker that joined an older state does not stop the right one for ever") {
  for (const bool planted : {false, true}) {
    RolledBack r;
    r.PutBack(r.backup);
    // Each start is a revision more: soon more than the right state has.
    for (int i = 0; i < 8; ++i) r.c.Restart();
    const uint64_t stray = r.c.JoinWorker("stray", 1)->incarnation();
    const v1::ClusterView wrong = r.c.view();
    r.PutBack(r.newest);
    REQUIRE(r.c.view().revision() < wrong.revision());
    failpoints().believe_workers = planted;
    const absl::Status said = r.c.Heartbeat(stray, &wrong).status();
    failpoints().believe_workers = false;
    if (planted) {
      CHECK(said.code() == absl::StatusCode::kFailedPrecondition);
      CHECK(r.c->status().code() == absl::StatusCode::kFailedPrecondition);
      continue;
    }
    REQUIRE_STATUS(said, kUnavailable, "waiting for servers");
    REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
    r.c.clock.AdvanceMs(kLeaseMs);
    REQUIRE_STATUS(r.c.Heartbeat(stray, &wrong).status(), kAborted, "not in the history");
    REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
    CHECK(r.c->status().ok());
  }
}

TEST_CASE("an accepted older state begins another history, with ids that were never given out") {
  RolledBack r;
  r.Accept();
  REQUIRE_STATUS(r.c.Heartbeat(r.server, &r.seen, true).status(), kAborted, "abandoned history");
  REQUIRE_STATUS(r.c.Heartbeat(r.worker, &r.seen).status(), kAborted, "abandoned history");
  CHECK(r.c->status().ok());
  const uint64_t again = r.c.JoinServer("s1");
  CHECK(again > r.newest.next_incarnation);
  // The rows of the abandoned history are lost, not replaced by initial values.
  CHECK(r.c.view().tables(0).lost_partitions_size() == 1);
  const absl::StatusOr<v1::Table> made =
      r.c.CreateTable(r.c.Spec("c", 64, v1::CONSISTENCY_ASYNC, "c"));
  REQUIRE(made.ok());
  CHECK(made->id() > r.newest.next_table);
  // Members of the new history stay, also after other starts.
  const v1::ClusterView view = r.c.view();
  r.c.Restart();
  CHECK(r.c.Heartbeat(again, &view, true).ok());
}

TEST_CASE("regression: an option that accepts an older state may be left on") {
  RolledBack r;
  r.Accept();
  const uint64_t again = r.c.JoinServer("s1");
  const uint32_t next_table = r.store.Load()->next_table;
  // 256 acceptances would use up the table ids.
  for (int i = 0; i < 3; ++i) {
    const v1::ClusterView before = r.c.view();
    r.c.Restart();
    CHECK(r.c.view().revision() == before.revision() + 1);
    CHECK(r.c.Heartbeat(again, &before, true).ok());
  }
  CHECK(r.store.Load()->next_table == next_table);
  // Neither is another state accepted, nor the one that was when it is put back once more.
  const v1::ClusterView seen = r.c.view();
  for (const CoordinatorState& state : {r.newest, r.backup}) {
    r.PutBack(state);
    REQUIRE_STATUS(r.c.Heartbeat(again, &seen, true).status(), kFailedPrecondition,
                   "put the newer state back");
  }
}

TEST_CASE("regression: an older state is refused after any number of starts") {
  const int changes = GENERATE(1, 50);
  RolledBack r(changes);
  r.PutBack(r.backup);
  for (int i = 0; i < 2 * kTermsListed; ++i) r.c.Restart();
  INFO("at revision " << r.c.view().revision() << ", seen " << r.seen.revision());
  REQUIRE(CompareHistory(r.c.view(), r.seen) != History::kForeign);  // the view alone is no proof
  const auto poll = r.c.Call(&Coordinator::GetView, [&] {
    v1::GetViewRequest request;
    request.set_incarnation(r.server);
    *request.mutable_seen() = SeenOf(r.seen);
    request.set_server(true);
    return request;
  }());
  REQUIRE_STATUS(poll.status(), kFailedPrecondition, "put the newer state back");
  for (int i = 0; i < 3; ++i) {
    r.c.Restart();
    REQUIRE_STATUS(r.c.Heartbeat(r.server, &r.seen, true).status(), kFailedPrecondition,
                   "put the newer state back");
  }
}

TEST_CASE("a coordinator that forgets terms is found") {
  RolledBack r;
  r.PutBack(r.backup);
  for (int i = 0; i < 2 * kTermsListed; ++i) r.c.Restart();
  history::failpoints().forgets_terms = true;
  CHECK(r.c.Heartbeat(r.server, &r.seen, true).ok());
  history::failpoints().forgets_terms = false;
}

TEST_CASE("an older state is not accepted where no table ids are left for another history") {
  RolledBack r;
  r.backup.next_table = std::numeric_limits<uint32_t>::max() - 1000;
  r.PutBack(r.backup);
  CoordinatorOptions options = r.c.options();
  options.accept_older_state = r.c.view().terms().rbegin()->id();
  REQUIRE_STATUS(Coordinator::Create(options, &r.c.clock, &r.store).status(), kResourceExhausted,
                 "no table ids are left");
}

TEST_CASE("starts of one history are recognised, however many there were") {
  RolledBack r;
  for (int i = 0; i < 2 * kTermsListed; ++i) {
    const v1::ClusterView before = r.c.view();
    r.c.Restart();
    REQUIRE(r.c.Heartbeat(r.server, &before, true).ok());
    REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
    REQUIRE(r.c.view().terms_size() <= kTermsListed);
  }
  // A member of an earlier version sends no `seen`.
  REQUIRE(r.c.Heartbeat(r.server).ok());
}

TEST_CASE("regression: a term of an earlier version, which lists none, proves nothing") {
  RolledBack r;
  // It keeps the terms of the state that it was given.
  CoordinatorState earlier = r.newest;
  earlier.view.set_term(earlier.view.term() + 1);
  earlier.view.set_revision(earlier.view.revision() + 1);
  r.PutBack(earlier);
  CHECK(SeenOf(earlier.view).term_id() == 0);
  REQUIRE(r.c.Heartbeat(r.server, &earlier.view, true).ok());
  REQUIRE(r.c.Heartbeat(r.server, &r.seen, true).ok());
}

TEST_CASE("a view that changes made is compared by the entries that they name") {
  RolledBack r;
  const v1::ClusterView before = r.c.view();
  v1::ClusterView view = before;
  view.set_revision(before.revision() + 1);
  v1::ViewChange change;
  *change.add_tables() = before.tables(0);
  *change.add_servers() = before.servers(0);
  change.add_tables()->set_id(before.tables(0).id() + 100);
  change.add_servers()->set_incarnation(1000);
  const auto compared = [&] { return CompareHistory(view, before, {&change, 1}); };
  CHECK(compared() == History::kContinues);
  change.mutable_tables(0)->mutable_spec()->set_job("another");
  CHECK(compared() == History::kOtherIdentity);
  *change.mutable_tables(0) = before.tables(0);
  change.mutable_servers(0)->set_name("another");
  CHECK(compared() == History::kOtherIdentity);
  change.clear_servers();
  view.set_revision(before.revision() - 1);
  CHECK(compared() == History::kBehind);
}

TEST_CASE("a view is compared with the one before: revisions, terms, identities, clusters") {
  RolledBack r;
  const v1::ClusterView& view = r.c.view();
  CHECK(CompareHistory(view, v1::ClusterView()) == History::kContinues);
  CHECK(CompareHistory(view, r.backup.view) == History::kContinues);
  CHECK(CompareHistory(r.backup.view, view) == History::kBehind);
  v1::ClusterView other = view;
  other.set_cluster_id("other");
  CHECK(CompareHistory(view, other) == History::kOtherCluster);
  other = view;
  other.mutable_tables(0)->mutable_spec()->set_name("another");
  CHECK(CompareHistory(view, other) == History::kOtherIdentity);
  other = view;
  other.mutable_servers(0)->set_name("another");
  CHECK(CompareHistory(view, other) == History::kOtherIdentity);
  other = view;
  other.mutable_terms(other.terms_size() - 1)->set_id(1);
  CHECK(CompareHistory(view, other) == History::kForeign);
  other.set_revision(view.revision() + 1);
  CHECK(CompareHistory(view, other) == History::kRolledBack);
  other.set_term(view.term() + 1);
  other.set_revision(view.revision() - 1);
  CHECK(CompareHistory(view, other) == History::kRolledBack);
}

}  // namespace
}  // namespace verbena::server
