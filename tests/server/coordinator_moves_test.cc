// Planned moves of partitions and draining of servers: their states, bounds and ends.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/planned_moves.h"
#include "server/coordinator/configurations.h"
#include "tests/server/configurations_fixture.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

constexpr auto kDropChange = v1::ConfigurationChange::DROP_REPLICA;
constexpr auto kAdmitChange = v1::ConfigurationChange::ADMIT;
constexpr auto kPromoteChange = v1::ConfigurationChange::PROMOTE;
constexpr auto kHandOverChange = v1::ConfigurationChange::HAND_OVER;

absl::StatusOr<v1::MovePartitionsResponse> Move(TestCoordinator* c,
                                                const std::vector<uint32_t>& partitions,
                                                const std::string& to, bool cancel = false,
                                                const std::string& from = "") {
  v1::MovePartitionsRequest request;
  request.set_from(from);
  request.set_request_id(c->NewId());
  request.mutable_partitions()->Add(partitions.begin(), partitions.end());
  request.set_to(to);
  request.set_cancel(cancel);
  return c->Call(&Coordinator::MovePartitions, request);
}

absl::Status Drain(TestCoordinator* c, const std::string& name, bool cancel = false) {
  v1::DrainServerRequest request;
  request.set_request_id(c->NewId());
  request.set_name(name);
  request.set_cancel(cancel);
  return c->Call(&Coordinator::DrainServer, request).status();
}

bool Made(TestCoordinator* c, uint64_t by, const v1::ConfigurationChange& change) {
  const auto response = c->Reconfigure(by, {change});
  REQUIRE(response.ok());
  return response->made(0);
}

// What primaries ask for when their replicas are as the coordinator wants them.
void Settle(TestCoordinator* c) {
  for (int turn = 0; turn < 100; ++turn) {
    bool any = false;
    for (uint32_t id = 0; id < static_cast<uint32_t>(c->view().partitions_size()); ++id) {
      const v1::Partition p = c->Partition(id);
      if (!p.learners().empty()) {
        any |= Made(c, p.primary(), c->Change(kAdmitChange, id, p.learners(0).server()));
      } else if (const v1::Replica* const heir = PlannedHeir(p, c->view())) {
        any |= Made(c, p.primary(), c->Change(kHandOverChange, id, heir->server()));
      } else if (const v1::Replica* const surplus = SurplusFollower(p, c->view())) {
        any |= Made(c, p.primary(), c->Change(kDropChange, id, surplus->server()));
      }
    }
    if (!any) return;
  }
  FAIL("the configurations do not settle");
}

TEST_CASE("a partition without replicas is moved over a learner, and its old place is gone") {
  TestCoordinator c({.partitions = 2});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE(Words(c.Partition(0)) == "1");
  const uint64_t epoch = c.Partition(0).epoch();
  REQUIRE(Move(&c, {0}, "b")->partitions_size() == 1);
  CHECK(Words(c.Partition(0)) == "1?2");
  CHECK(Words(c.Partition(1)) == "1");
  // Not before it has everything.
  CHECK(PlannedHeir(c.Partition(0), c.view()) == nullptr);
  c.Restart();
  CHECK(Words(c.Partition(0)) == "1?2");
  CHECK(c.Partition(0).move_to() == b);
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, b)));
  CHECK(Words(c.Partition(0)) == "1+2");
  // It becomes the primary when the old one has stopped, not by itself.
  c.Restart();
  CHECK(Words(c.Partition(0)) == "1+2");
  REQUIRE(Made(&c, a, c.Change(kHandOverChange, 0, b)));
  CHECK(Words(c.Partition(0)) == "2");
  CHECK(c.Partition(0).epoch() == epoch + 1);
  CHECK(c.Partition(0).released_epoch() == epoch + 1);
  CHECK(c.Partition(0).move_to() == 0);
  CHECK(c.Partition(0).last_move() == v1::MOVE_END_UNSPECIFIED);
  CHECK_FALSE(Lost(c));
}

TEST_CASE("a move keeps the other replicas, and needs one more for a while") {
  const uint32_t replicas = GENERATE(2, 3);
  TestCoordinator c({.partitions = 1, .lease_ms = kLeaseMs, .replicas = replicas});
  for (uint32_t i = 0; i < replicas; ++i) c.JoinServer(absl::StrCat("s", i + 1));
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t target = c.JoinServer("target");
  const v1::Partition before = c.Partition(0);
  REQUIRE(before.followers_size() == static_cast<int>(replicas) - 1);
  REQUIRE(Move(&c, {0}, "target").ok());
  Settle(&c);
  const v1::Partition after = c.Partition(0);
  CHECK(after.primary() == target);
  REQUIRE(after.followers_size() == before.followers_size());
  for (int i = 0; i < after.followers_size(); ++i) {
    CHECK(after.followers(i).server() == before.followers(i).server());
    CHECK(after.followers(i).since() == before.followers(i).since());
  }
}

TEST_CASE("a follower becomes primary after another server has the old place") {
  TestCoordinator c(Replicated(1));
  c.JoinServer("a");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  SECTION("there is one") {
    c.JoinServer("c");
    REQUIRE(Move(&c, {0}, "b").ok());
    CHECK(Words(c.Partition(0)) == "1+2?3");
    Settle(&c);
    CHECK(Words(c.Partition(0)) == "2+3");
  }
  SECTION("there is none: it is copied again") {
    REQUIRE(Move(&c, {0}, "b").ok());
    REQUIRE(Made(&c, 1, c.Change(kHandOverChange, 0, 2)));
    CHECK(Words(c.Partition(0)) == "2?1");
  }
}

TEST_CASE("a drain that is cancelled leaves as many replicas as there were") {
  const bool admitted = GENERATE(false, true);
  CAPTURE(admitted);
  TestCoordinator c({.partitions = 2, .lease_ms = kLeaseMs});
  const uint64_t a = c.JoinServer("a");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Drain(&c, "a").ok());
  for (uint32_t id = 0; id < 2 && admitted; ++id) {
    const v1::Partition p = c.Partition(id);
    if (p.learners().empty()) continue;
    REQUIRE(Made(&c, a, c.Change(kAdmitChange, id, p.learners(0).server())));
  }
  REQUIRE(Drain(&c, "a", true).ok());
  Settle(&c);
  for (const v1::Partition& p : c.view().partitions()) {
    CHECK(p.learners().empty());
    CHECK(p.followers().empty());
  }
}

TEST_CASE("moves that cannot begin have an error") {
  TestCoordinator c({.partitions = 2, .lease_ms = kLeaseMs});
  c.JoinServer("a");
  REQUIRE_STATUS(Move(&c, {0}, "a").status(), kFailedPrecondition, "on no server yet");
  // Nothing is there to be cancelled.
  REQUIRE(Move(&c, {0}, "", true)->partitions().empty());
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE_STATUS(Move(&c, {0}, "x").status(), kNotFound, "there is no server 'x'");
  REQUIRE_STATUS(Move(&c, {2}, "b").status(), kInvalidArgument,
                 "partition 2 does not exist; allowed: 0 to 1");
  REQUIRE_STATUS(Move(&c, {}, "b").status(), kInvalidArgument, "partitions and table are empty");
  REQUIRE(Move(&c, {0}, "a")->partitions().empty());  // it is there
  REQUIRE(Move(&c, {0}, "", true)->partitions().empty());
  REQUIRE_STATUS(Drain(&c, "x"), kNotFound, "there is no server 'x'");
  PassLease(&c, {1});
  REQUIRE(c.Server("b").state() == v1::Server::SILENT);
  REQUIRE_STATUS(Move(&c, {0}, "b").status(), kFailedPrecondition, "server 'b' is silent");
  REQUIRE_STATUS(Drain(&c, "a"), kFailedPrecondition,
                 "server 'a' is not drained: 0 other servers are alive");
  REQUIRE(c.Heartbeat(b).ok());
  REQUIRE(Drain(&c, "b").ok());
  REQUIRE_STATUS(Move(&c, {0}, "b").status(), kFailedPrecondition, "is being drained");
}

TEST_CASE("a move ends without effect, and the old primary goes on in another configuration") {
  TestCoordinator c({.partitions = 1, .lease_ms = kLeaseMs});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE(Move(&c, {0}, "b").ok());
  if (GENERATE(false, true)) REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, b)));
  const v1::ConfigurationChange hand_over = c.Change(kHandOverChange, 0, b);
  v1::MoveEnd end = v1::MOVE_END_UNSPECIFIED;
  SECTION("its target is silent") {
    PassLease(&c, {a});
    end = v1::MOVE_END_TARGET_GONE;
  }
  SECTION("its target is drained") {
    REQUIRE(Drain(&c, "b").ok());
    end = v1::MOVE_END_TARGET_GONE;
  }
  SECTION("it is cancelled") {
    REQUIRE(Move(&c, {0}, "", true).ok());
    end = v1::MOVE_END_CANCELLED;
  }
  SECTION("there is no memory") {
    v1::ConfigurationChange drop = c.Change(kDropChange, 0, b);
    drop.set_no_memory(true);
    REQUIRE(Made(&c, a, drop));
    end = v1::MOVE_END_NO_MEMORY;
  }
  CHECK(c.Partition(0).move_to() == 0);
  CHECK(c.Partition(0).last_move() == end);
  CHECK(c.Partition(0).configuration() > hand_over.configuration());
  CHECK_FALSE(Made(&c, a, hand_over));
  Settle(&c);
  CHECK(Words(c.Partition(0)) == "1");
}

TEST_CASE("a primary that has stopped for a move that is over goes on in a new configuration") {
  TestCoordinator c({.partitions = 1, .lease_ms = kLeaseMs});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE(Move(&c, {0}, "b").ok());
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, b)));
  const uint64_t epoch = c.Partition(0).epoch();
  // The plan changes by the state of another server, not of this partition.
  const uint64_t before = c.Partition(0).configuration();
  REQUIRE(Made(&c, a, c.Change(kHandOverChange, 0, a)));
  CHECK(c.Partition(0).configuration() == before + 1);
  CHECK(c.Partition(0).epoch() == epoch);
  CHECK(Words(c.Partition(0)) == "1+2");
}

TEST_CASE("the death of the source ends a move; a follower that has everything takes over") {
  TestCoordinator c(Replicated(1));
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Words(c.Partition(0)) == "1+2");
  const uint64_t d = c.JoinServer("d");
  REQUIRE(Move(&c, {0}, "d").ok());
  REQUIRE(Words(c.Partition(0)) == "1+2?3");
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, d)));
  PassLease(&c, {b, d});
  CHECK(c.Partition(0).move_to() == 0);
  CHECK(c.Partition(0).last_move() == v1::MOVE_END_SOURCE_GONE);
  CHECK(Words(c.Partition(0)) == "1+2+3");
  REQUIRE(Made(&c, b, c.Change(kPromoteChange, 0)));
  CHECK(Words(c.Partition(0)) == "2+3");
  CHECK(c.Partition(0).released_epoch() == 0);
  CHECK_FALSE(Lost(c));
}

TEST_CASE("a follower is moved: the target is copied before the old one is dropped") {
  TestCoordinator c(Replicated(1));
  const uint64_t a = c.JoinServer("a");
  const uint64_t b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t target = c.JoinServer("c");
  const uint64_t epoch = c.Partition(0).epoch();
  REQUIRE(Move(&c, {0}, "c", false, "b")->partitions_size() == 1);
  CHECK(Words(c.Partition(0)) == "1+2?3");
  CHECK(PlannedHeir(c.Partition(0), c.view()) == nullptr);
  CHECK(LearnerOfMove(c.Partition(0), c.view()));
  c.Restart();
  CHECK(c.Partition(0).move_from() == b);
  SECTION("it succeeds") {
    REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, target)));
    CHECK(Words(c.Partition(0)) == "1+2+3");
    CHECK(c.Partition(0).move_to() == 0);
    CHECK(c.Partition(0).unwanted() == b);
    REQUIRE(SurplusFollower(c.Partition(0), c.view())->server() == b);
    Settle(&c);
    CHECK(Words(c.Partition(0)) == "1+3");
    CHECK(c.Partition(0).unwanted() == 0);
    CHECK(c->moves().moved == 1);
  }
  SECTION("the target dies after it was admitted: the old one stays") {
    REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, target)));
    REQUIRE(Made(&c, a, c.Change(kDropChange, 0, target)));
    CHECK(Words(c.Partition(0)) == "1+2");
    CHECK(SurplusFollower(c.Partition(0), c.view()) == nullptr);
    CHECK(c.Partition(0).unwanted() == 0);
  }
  SECTION("regression: the old one dies before it is dropped: it is unwanted no more") {
    REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, target)));
    c.JoinServer("b");
    CHECK(c.Partition(0).unwanted() == 0);
    CHECK(c.Partition(0).followers_size() == 1);
    CHECK(Move(&c, {0}, "", true)->partitions().empty());
  }
  SECTION("it is cancelled") {
    REQUIRE(Move(&c, {0}, "", true).ok());
    CHECK(Words(c.Partition(0)) == "1+2");
    CHECK(c.Partition(0).move_from() == 0);
    CHECK(c->moves().cancelled == 1);
  }
  SECTION("the follower becomes the primary meanwhile") {
    PassLease(&c, {b, target});
    REQUIRE(Made(&c, b, c.Change(kPromoteChange, 0)));
    CHECK(c.Partition(0).move_to() == 0);
    CHECK(c.Partition(0).move_from() == 0);
    CHECK(c->moves().primary_gone == 1);
  }
  CHECK((c.Partition(0).epoch() == epoch) == (c.Partition(0).primary() == a));
  CHECK_FALSE(Lost(c));
}

TEST_CASE("a follower is moved only where there is one, and not to a replica") {
  TestCoordinator c(Replicated(2));
  c.JoinServer("a");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  c.JoinServer("c");
  REQUIRE(Words(c.Partition(0)) == "1+2");
  REQUIRE_STATUS(Move(&c, {0}, "c", false, "a").status(), kFailedPrecondition,
                 "partition 0 has no follower on 'a'");
  REQUIRE_STATUS(Move(&c, {0}, "c", false, "x").status(), kNotFound, "there is no server 'x'");
  CHECK(Move(&c, {0}, "a", false, "b")->partitions().empty());
  CHECK(Move(&c, {0}, "b", false, "b")->partitions().empty());
}

TEST_CASE("regression: a move after one that was cancelled late has room for its learner") {
  TestCoordinator c({.partitions = 1, .lease_ms = kLeaseMs, .replicas = 3});
  const uint64_t a = c.JoinServer("a");
  c.JoinServer("b");
  c.JoinServer("c");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t d = c.JoinServer("d");
  c.JoinServer("e");
  REQUIRE(Move(&c, {0}, "d").ok());
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, d)));
  REQUIRE(Move(&c, {0}, "", true).ok());
  CHECK(c.Partition(0).unwanted() == d);
  REQUIRE(Move(&c, {0}, "e").ok());
  // Five replicas would be one too many for the coordinator's state.
  CHECK(Words(c.Partition(0)) == "1+2+3+4");
  c.Restart();
  Settle(&c);
  CHECK(Words(c.Partition(0)) == "5+2+3");
}

TEST_CASE("moves without effect are counted, and logged in one line") {
  std::vector<std::string> lines;
  TestCoordinator c(
      {.partitions = 4, .log = [&](const std::string& text) { lines.push_back(text); }});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 1 << 20)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE(Move(&c, {0, 1, 2}, "b").ok());
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, b)));
  REQUIRE(Made(&c, a, c.Change(kHandOverChange, 0, b)));
  CHECK(c->moves().moved == 1);
  CHECK(lines.empty());
  // Also where another coordinator began them.
  c.Restart();
  v1::ConfigurationChange full = c.Change(kDropChange, 1, b);
  full.set_no_memory(true);
  REQUIRE(Made(&c, a, full));
  CHECK(c->moves().no_memory == 1);
  REQUIRE(Move(&c, {1, 3}, "b").ok());
  for (int i = 0; i < 4; ++i) {
    c.clock.AdvanceMs(c.view().lease_ms() / 4);
    REQUIRE(c.Heartbeat(a).ok());
    c->RunOnce();
  }
  CHECK(c->moves().target_gone == 3);
  REQUIRE(lines.size() == 2);
  CHECK(
      lines[0] ==
      "planned move of partitions 1 to server 'b': it has ended without effect (the target has no "
      "memory for it; raise its --memory-limit)");
  CHECK(lines[1].find("partitions 1, 2, 3 to server 'b'") != std::string::npos);
}

TEST_CASE("the limit of moves is in the view, and that of the last start counts") {
  TestCoordinator c({.partitions = 1, .move_rate = 1000});
  CHECK(c.view().move_rate() == 1000);
  c.options().move_rate = 0;
  c.Restart();
  CHECK(c.view().move_rate() == 0);
}

TEST_CASE("few partitions are copied for moves at one time") {
  TestCoordinator c({.partitions = 4 * kMovesAtOnce});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 1 << 20)).ok());
  c.JoinServer("b");
  std::vector<uint32_t> all;
  for (uint32_t p = 0; p < 4 * kMovesAtOnce; ++p) all.push_back(p);
  REQUIRE(Move(&c, all, "b").ok());
  const auto learning = [&] {
    return std::count_if(c.view().partitions().begin(), c.view().partitions().end(),
                         [](const v1::Partition& p) { return !p.learners().empty(); });
  };
  CHECK(learning() == kMovesAtOnce);
  REQUIRE(Made(&c, a, c.Change(kAdmitChange, 0, 2)));
  CHECK(learning() == kMovesAtOnce);
  Settle(&c);
  for (const v1::Partition& p : c.view().partitions()) CHECK(Words(p) == "2");
}

TEST_CASE("moves to a server without memory that have not begun to copy end with the first one") {
  std::vector<std::string> lines;
  TestCoordinator c({.partitions = 4 * kMovesAtOnce,
                     .log = [&](const std::string& text) { lines.push_back(text); }});
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 1 << 20)).ok());
  const uint64_t b = c.JoinServer("b");
  c.JoinServer("c");
  std::vector<uint32_t> most;
  for (uint32_t p = 0; p < 4 * kMovesAtOnce - 1; ++p) most.push_back(p);
  REQUIRE(Move(&c, most, "b").ok());
  REQUIRE(Move(&c, {4 * kMovesAtOnce - 1}, "c").ok());
  v1::ConfigurationChange full = c.Change(kDropChange, 0, b);
  full.set_no_memory(true);
  REQUIRE(Made(&c, a, full));
  int goes_on = 0;
  for (const uint32_t p : most) {
    const v1::Partition now = c.Partition(p);
    goes_on += now.move_to() == b ? 1 : 0;
    if (now.move_to() == 0) CHECK(now.last_move() == v1::MOVE_END_NO_MEMORY);
  }
  // Others may be smaller.
  CHECK(goes_on == kMovesAtOnce - 1);
  CHECK(c->moves().no_memory == most.size() - (kMovesAtOnce - 1));
  CHECK(c.Partition(4 * kMovesAtOnce - 1).move_to() != 0);
  REQUIRE(lines.size() == 1);
}

TEST_CASE("a drain that waits for memory is shown, counted and logged") {
  std::vector<std::string> lines;
  TestCoordinator c(
      {.partitions = 2, .lease_ms = kLeaseMs, .replicas = 2, .log = [&](const std::string& text) {
         lines.push_back(text);
       }});
  for (const char* name : {"a", "b", "c"}) c.JoinServer(name);
  REQUIRE(c.CreateTable(c.Spec("t", 1 << 20)).ok());
  REQUIRE(Drain(&c, "a").ok());
  CHECK(c->partitions_refused() == 0);
  const v1::Partition before = c.Partition(0);
  REQUIRE(before.learners_size() == 1);
  const uint64_t target = before.learners(0).server();
  v1::ConfigurationChange full = c.Change(kDropChange, 0, target);
  full.set_no_memory(true);
  REQUIRE(Made(&c, before.primary(), full));
  CHECK(c->partitions_refused() == 1);
  const auto view = c.Call(&Coordinator::GetView, v1::GetViewRequest());
  REQUIRE(view.ok());
  REQUIRE(view->full_servers_size() == 1);
  CHECK(view->full_servers(0).incarnation() == target);
  CHECK(view->full_servers(0).partitions_size() == 1);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].find("has no memory for replicas of 1 partition: a drain waits for them") !=
        std::string::npos);
  REQUIRE(Drain(&c, "a", true).ok());
  CHECK(c->partitions_refused() == 0);
}

TEST_CASE("a server that is drained has no replica in the end, and gets none") {
  const uint32_t replicas = GENERATE(1, 2, 3);
  TestCoordinator c({.partitions = 24, .lease_ms = kLeaseMs, .replicas = replicas});
  for (uint32_t i = 0; i < replicas + 1; ++i) c.JoinServer(absl::StrCat("s", i + 1));
  REQUIRE(c.CreateTable(c.Spec("t", 1 << 20)).ok());
  REQUIRE(Drain(&c, "s1").ok());
  REQUIRE(Drain(&c, "s1").ok());
  c.Restart();
  Settle(&c);
  for (const v1::Partition& p : c.view().partitions()) {
    CAPTURE(p.id(), Words(p));
    CHECK(p.primary() != 1);
    CHECK(p.followers_size() == static_cast<int>(replicas) - 1);
    for (const v1::Replica& r : p.followers()) CHECK(r.server() != 1);
  }
  REQUIRE_STATUS(Drain(&c, "s2"), kFailedPrecondition, "server 's2' is not drained");
  CHECK_FALSE(Lost(c));
  REQUIRE(c.Leave(1).ok());
  CHECK_FALSE(Lost(c));
  // As a new process it may have replicas again.
  c.JoinServer("s1");
  CHECK_FALSE(c.Server("s1").draining());
}

}  // namespace
}  // namespace verbena::server
