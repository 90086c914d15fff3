// Followers and learners: their placement, their transitions, and the changes servers may request.
#include <cstdlib>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "server/coordinator/failpoints.h"
#include "tests/server/configurations_fixture.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

constexpr auto kDrop = v1::ConfigurationChange::DROP_REPLICA;
constexpr auto kAdmit = v1::ConfigurationChange::ADMIT;
constexpr auto kPromote = v1::ConfigurationChange::PROMOTE;

TEST_CASE("options of replicas are checked, and are in the view") {
  ManualClock clock;
  MemoryStore store;
  const auto made = [&](uint32_t replicas, uint32_t least) {
    return Coordinator::Create({.replicas = replicas, .min_replicas = least}, &clock, &store)
        .status();
  };
  REQUIRE_STATUS(made(4, 1), kInvalidArgument, "replicas is 4; allowed: 1 to 3");
  REQUIRE_STATUS(made(1, 2), kInvalidArgument,
                 "min_replicas is 2; allowed: 1 to replicas, which is 1");
  TestCoordinator c({.replicas = 2, .min_replicas = 2});
  REQUIRE(c.view().replicas() == 2);
  REQUIRE(c.view().min_replicas() == 2);
  TestCoordinator one;
  REQUIRE(one.view().replicas() == 1);
  REQUIRE(one.view().min_replicas() == 1);
}

TEST_CASE("without replicas no partition has a follower") {
  TestCoordinator c({.partitions = 8});
  const uint64_t a = c.JoinServer("a");
  c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  for (const v1::Partition& p : c.view().partitions()) {
    REQUIRE(p.followers().empty());
    REQUIRE(p.learners().empty());
    REQUIRE(p.configuration() == p.epoch());
  }
  REQUIRE(c.Leave(a).ok());
  REQUIRE(c.Partition(0).primary() == a);
}

TEST_CASE("new partitions have a follower at once, evenly spread over shards and partners") {
  TestCoordinator c(Replicated(240));
  uint32_t last = 0, partners = 0;  // shards of the last server; pairs of (primary, follower)
  SECTION("equal servers: the partitions of a lost server go to all others") {
    last = 2;
    partners = 12;
  }
  SECTION("one that has more") { last = 6; }
  for (const char* name : {"a", "b", "c"}) c.JoinServer(name, 2);
  c.JoinServer("d", last);
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  std::map<std::pair<uint64_t, uint32_t>, int> copies;
  std::map<std::pair<uint64_t, uint64_t>, int> pairs;
  for (const v1::Partition& p : c.view().partitions()) {
    REQUIRE(p.followers_size() == 1);
    REQUIRE(p.learners().empty());
    REQUIRE(p.epoch() == 2);
    REQUIRE(p.configuration() == 2);
    ++copies[{p.primary(), p.shard()}];
    ++copies[{p.followers(0).server(), p.followers(0).shard()}];
    ++pairs[{p.primary(), p.followers(0).server()}];
  }
  REQUIRE(copies.size() == 6 + last);
  const int even = 480 / static_cast<int>(6 + last);
  for (const auto& [shard, count] : copies) REQUIRE(std::abs(count - even) <= 1);
  if (partners == 0) return;
  REQUIRE(pairs.size() == partners);
  for (const auto& [pair, count] : pairs) REQUIRE(std::abs(count - 20) <= 1);
}

TEST_CASE(
    "replicas are in different zones if possible; a server without a zone is one of its own") {
  std::map<std::string, std::string> zones = {{"a", "x"}, {"b", "x"}, {"c", "y"}, {"d", ""}};
  SECTION("three zones") {}
  SECTION("one zone for all") { zones = {{"a", "x"}, {"b", "x"}}; }
  SECTION("none has a name") { zones = {{"a", ""}, {"b", ""}, {"c", ""}}; }
  TestCoordinator c(Replicated(64));
  std::map<uint64_t, std::string> zone_of;
  for (const auto& [name, zone] : zones) zone_of[c.JoinServer(name, 1, zone)] = zone;
  REQUIRE(c.Server("a").zone() == zones["a"]);
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  for (const v1::Partition& p : c.view().partitions()) {
    REQUIRE(p.followers_size() == 1);
    REQUIRE(p.followers(0).server() != p.primary());
    const std::string primary = zone_of[p.primary()], follower = zone_of[p.followers(0).server()];
    REQUIRE((primary != follower || primary.empty() || zones.size() == 2));
  }
  auto request = c.ServerRequest("e");
  request.set_zone("a\nb");
  REQUIRE_STATUS(c.Call(&Coordinator::JoinServer, request).status(), kInvalidArgument, "zone has");
}

TEST_CASE("three replicas are in three zones if there are three") {
  CoordinatorOptions options = Replicated(64);
  options.replicas = 3;
  TestCoordinator c(options);
  std::map<uint64_t, std::string> zone_of;
  const std::map<std::string, std::string> zones = {{"a", "x"}, {"b", "x"}, {"c", "y"},
                                                    {"d", "y"}, {"e", "z"}, {"f", "z"}};
  for (const auto& [name, zone] : zones) zone_of[c.JoinServer(name, 1, zone)] = zone;
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const auto in_one_zone = [&] {
    int partitions = 0;
    for (const v1::Partition& p : c.view().partitions()) {
      std::set<std::string> of = {zone_of[p.primary()]};
      for (const auto* copies : {&p.followers(), &p.learners()}) {
        for (const v1::Replica& r : *copies) of.insert(zone_of[r.server()]);
      }
      partitions += of.size() < 1 + static_cast<size_t>(p.followers_size() + p.learners_size());
    }
    return partitions;
  };
  SECTION("when they are placed") { CHECK(in_one_zone() == 0); }
  SECTION("when a primary has left, and learners come") {
    const v1::Partition before = c.Partition(0);
    REQUIRE(c.Leave(before.primary()).ok());
    CHECK(in_one_zone() == 0);
  }
}

TEST_CASE("a table made again on the same servers changes no configuration") {
  TestCoordinator c(Replicated(32));
  for (const char* name : {"a", "b", "c"}) c.JoinServer(name);
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  std::vector<std::string> before;
  for (const v1::Partition& p : c.view().partitions()) before.push_back(p.SerializeAsString());
  REQUIRE(c.DropTable("t").ok());
  REQUIRE(c.CreateTable(c.Spec("u", 4096)).ok());
  for (int i = 0; i < 32; ++i) REQUIRE(before[i] == c.view().partitions(i).SerializeAsString());
}

TEST_CASE("the follower of a primary that is silent and asks, or leaves, takes over") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b"), d = c.JoinServer("d");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const v1::Partition before = c.Partition(0);
  REQUIRE(before.primary() == a);
  const uint64_t follower = before.followers(0).server();
  const uint64_t third = follower == b ? d : b;
  SECTION("silent") {
    PassLease(&c, {b, d});
    REQUIRE(c.Partition(0).SerializeAsString() == before.SerializeAsString());
    REQUIRE(c.Reconfigure(follower, {c.Change(kPromote, 0)})->made(0));
  }
  SECTION("leaves") { REQUIRE(c.Leave(a).ok()); }
  SECTION("replaced under its name, faster than its lease") { c.JoinServer("a"); }
  const v1::Partition& after = c.Partition(0);
  REQUIRE(after.primary() == follower);
  REQUIRE(after.shard() == before.followers(0).shard());
  REQUIRE(after.epoch() == before.epoch() + 1);
  REQUIRE(after.followers().empty());
  // Repaired at once: two changes of the configuration.
  REQUIRE(after.configuration() == before.configuration() + 2);
  REQUIRE(after.learners_size() == 1);
  if (c.Server("a").state() == v1::Server::SILENT) REQUIRE(after.learners(0).server() == third);
  REQUIRE_FALSE(Lost(c));
}

TEST_CASE(
    "three replicas: other servers, one learner at a time, and followers stay when one leads") {
  CoordinatorOptions options = Replicated();
  options.replicas = 3;
  TestCoordinator c(options);
  std::set<uint64_t> servers;
  for (const char* name : {"a", "b", "d", "e"}) servers.insert(c.JoinServer(name));
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  for (const v1::Partition& p : c.view().partitions()) {
    REQUIRE(p.followers_size() == 2);
    const std::set<uint64_t> on = {p.primary(), p.followers(0).server(), p.followers(1).server()};
    REQUIRE(on.size() == 3);
  }
  const v1::Partition before = c.Partition(0);
  const uint64_t first = before.followers(0).server(), second = before.followers(1).server();
  SECTION("the primary leaves") {
    REQUIRE(c.Leave(before.primary()).ok());
    const v1::Partition& after = c.Partition(0);
    REQUIRE(after.primary() == first);
    REQUIRE(after.epoch() == before.epoch() + 1);
    REQUIRE(after.renewed_epoch() < after.epoch());
    REQUIRE(after.followers_size() == 1);
    // With the contents of before.
    REQUIRE(after.followers(0).SerializeAsString() == before.followers(1).SerializeAsString());
    REQUIRE(after.learners_size() == 1);
  }
  SECTION("a follower that is silent then is none under the next primary") {
    servers.erase(before.primary());
    servers.erase(second);
    PassLease(&c, std::vector<uint64_t>(servers.begin(), servers.end()));
    REQUIRE(c.Reconfigure(first, {c.Change(kPromote, 0)})->made(0));
    const v1::Partition& after = c.Partition(0);
    REQUIRE(after.primary() == first);
    REQUIRE(after.followers().empty());
    REQUIRE(after.learners_size() == 1);
  }
  SECTION("both followers are dropped: learners come one after the other") {
    REQUIRE(c.Reconfigure(before.primary(), {c.Change(kDrop, 0, first)})->made(0));
    REQUIRE(c.Reconfigure(before.primary(), {c.Change(kDrop, 0, second)})->made(0));
    REQUIRE(c.Partition(0).followers().empty());
    REQUIRE(c.Partition(0).learners_size() == 1);
    const uint64_t learner = c.Partition(0).learners(0).server();
    REQUIRE(c.Reconfigure(before.primary(), {c.Change(kAdmit, 0, learner)})->made(0));
    REQUIRE(c.Partition(0).followers_size() == 1);
  }
  REQUIRE_FALSE(Lost(c));
}

// The heartbeats that are read after a pause may be of a server that has died in it.
TEST_CASE("regression: a leaving server hands over to no follower not heard since a pause") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Words(c.Partition(0)) == "1+2");
  c.clock.StallMs(2 * kLeaseMs);
  SECTION("as the first that is read") {}
  SECTION("after a turn, and heartbeats that have waited") {
    c->RunOnce();
    REQUIRE(c.Heartbeat(b).ok());
  }
  REQUIRE_STATUS(c.Leave(a), kUnavailable, "has not been heard");
  CHECK(Words(c.Partition(0)) == "1+2");
  CHECK(c.Server("a").state() == v1::Server::ALIVE);
  failpoints().hand_over_unheard = GENERATE(false, true);
  if (!failpoints().hand_over_unheard) {
    c->RunOnce();
    c.clock.AdvanceMs(kLeaseMs / 4);
    REQUIRE(c.Heartbeat(b).ok());
  }
  CHECK(c.Leave(a).ok());
  CHECK(Words(c.Partition(0)) == "2");
  failpoints().hand_over_unheard = false;
}

TEST_CASE("a server that returns is repaired as a learner, and learners become followers") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Words(c.Partition(0)) == "1+2");
  PassLease(&c, {b});
  REQUIRE(Words(c.Partition(0)) == "1+2");
  REQUIRE(Words(c.Partition(1)) == "2+1");
  REQUIRE(c.Reconfigure(b, {c.Change(kPromote, 0)})->made(0));
  REQUIRE(Words(c.Partition(0)) == "2");
  const uint64_t epoch = c.Partition(0).epoch();
  SECTION("as itself, after a lease") { PassLease(&c, {a, b}); }
  SECTION("as a new incarnation, empty") { REQUIRE(c.JoinServer("a") == 3); }
  const uint64_t learner = c.Server("a").incarnation();
  REQUIRE(Words(c.Partition(0)) == "2?" + std::to_string(learner));
  REQUIRE(c.Reconfigure(b, {c.Change(kAdmit, 0, learner)})->made(0));
  REQUIRE(Words(c.Partition(0)) == "2+" + std::to_string(learner));
  REQUIRE(c.Partition(0).epoch() == epoch);
  REQUIRE_FALSE(Lost(c));
}

TEST_CASE("learners are never promoted") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t b = c.JoinServer("b");
  REQUIRE(Words(c.Partition(0)) == "1?2");
  REQUIRE_STATUS(c.Reconfigure(b, {c.Change(kPromote, 0)}).status(), kFailedPrecondition,
                 "allowed: nobody, it has no followers");
  SECTION("silent: it stays a learner") {
    PassLease(&c, {b});
    REQUIRE(Words(c.Partition(0)) == "1?2");
    REQUIRE(c.Heartbeat(a).ok());
    REQUIRE(Words(c.Partition(0)) == "1?2");
    REQUIRE_FALSE(Lost(c));
  }
  SECTION("replaced: lost, and a learner again") {
    REQUIRE(c.JoinServer("a") == 3);
    REQUIRE(Words(c.Partition(0)) == "3?2");
    REQUIRE(Lost(c));
  }
}

TEST_CASE("a follower that is silent stays until its primary gives it up, a learner does not") {
  TestCoordinator c(Replicated(2));
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  REQUIRE(Words(c.Partition(0)) == "1+2");
  PassLease(&c, {a});
  REQUIRE(c.Server("b").state() == v1::Server::SILENT);
  REQUIRE(Words(c.Partition(0)) == "1+2");
  REQUIRE(c.Reconfigure(a, {c.Change(kDrop, 0, b)})->made(0));
  REQUIRE(Words(c.Partition(0)) == "1");
  const uint64_t d = c.JoinServer("d");
  REQUIRE(Words(c.Partition(0)) == "1?3");
  PassLease(&c, {a, b});
  REQUIRE(Words(c.Partition(0)) == "1?2");
  REQUIRE(c.Heartbeat(d).ok());
  REQUIRE(Words(c.Partition(0)) == "1?2");
}

TEST_CASE("primary and follower silent at once: the first to return serves") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  PassLease(&c, {});
  REQUIRE(c.Server("a").state() == v1::Server::SILENT);
  REQUIRE(c.Server("b").state() == v1::Server::SILENT);
  REQUIRE(Words(c.Partition(0)) == "1+2");
  REQUIRE(Words(c.Partition(1)) == "2+1");
  SECTION("the primary") {
    REQUIRE(c.Heartbeat(a).ok());
    REQUIRE(Words(c.Partition(0)) == "1+2");
    REQUIRE(Words(c.Partition(1)) == "2+1");
    REQUIRE(c.Reconfigure(a, {c.Change(kPromote, 1)})->made(0));
    REQUIRE(Words(c.Partition(1)) == "1");
  }
  SECTION("the follower") {
    REQUIRE(c.Heartbeat(b).ok());
    REQUIRE(Words(c.Partition(0)) == "1+2");
    REQUIRE(c.Reconfigure(b, {c.Change(kPromote, 0)})->made(0));
    REQUIRE(Words(c.Partition(0)) == "2");
  }
  SECTION("neither: one is removed") {
    REQUIRE(c.RemoveServer("a")->lost_tables().empty());
    REQUIRE(Words(c.Partition(0)) == "2");
    REQUIRE(Words(c.Partition(1)) == "2");
    REQUIRE(c.Heartbeat(b).ok());
    REQUIRE(Words(c.Partition(0)) == "2");
  }
  SECTION("neither: one comes back empty, and the other's replica is not lost") {
    const uint64_t again = c.JoinServer("a");
    REQUIRE(Words(c.Partition(0)) == "2");
    REQUIRE(Words(c.Partition(1)) == "2");
    REQUIRE_FALSE(Lost(c));
    REQUIRE(c.Heartbeat(b).ok());
    REQUIRE(Words(c.Partition(0)) == "2?" + std::to_string(again));
  }
  REQUIRE_FALSE(Lost(c));
}

TEST_CASE("a replica that was dropped is not tried again there for a lease") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const auto dropped = c.Reconfigure(a, {c.Change(kDrop, 0, b)});
  REQUIRE(dropped->made(0));
  REQUIRE(dropped->revision() == c.view().revision());
  REQUIRE(Words(c.Partition(0)) == "1");
  // Only this partition's replica is barred.
  REQUIRE(Words(c.Partition(2)) == "1+2");
  PassLease(&c, {a, b});
  REQUIRE(Words(c.Partition(0)) == "1?2");
  REQUIRE(c.Reconfigure(a, {c.Change(kDrop, 0, b)})->made(0));
  // Elsewhere at once.
  c.JoinServer("d");
  REQUIRE(Words(c.Partition(0)) == "1?3");
}

// Learners that it gets are refused for memory at once, as long as `full`.
class ServerWithoutMemory {
 public:
  ServerWithoutMemory(TestCoordinator* c, uint64_t primary, uint64_t server)
      : c_(*c), primary_(primary), server_(server) {}

  void PassLeases(int leases) {
    for (int i = 0; i < 16 * leases; ++i) {
      c_.clock.AdvanceMs(kLeaseMs / 16);
      for (const uint64_t s : {primary_, server_}) REQUIRE(c_.Heartbeat(s).ok());
      c_->RunOnce();
      Answer();
    }
  }
  // As the shards of the primary do: all due changes in one request.
  void Answer() {
    std::vector<v1::ConfigurationChange> changes;
    int learners = 0;
    for (const v1::Partition& p : c_.view().partitions()) {
      if (p.learners().empty()) continue;
      ++learners;
      const bool fits = !full || fitting.contains(p.id());
      changes.push_back(c_.Change(fits ? kAdmit : kDrop, p.id(), server_));
      changes.back().set_no_memory(!fits);
    }
    most_learners = std::max(most_learners, learners);
    if (!changes.empty()) REQUIRE(c_.Reconfigure(primary_, changes).ok());
  }
  int Followers() const {
    int followers = 0;
    for (const v1::Partition& p : c_.view().partitions()) followers += p.followers_size();
    return followers;
  }
  std::vector<v1::FullServer> Reported() const {
    const auto view = c_.Call(&Coordinator::GetView, v1::GetViewRequest());
    REQUIRE(view.ok());
    return {view->full_servers().begin(), view->full_servers().end()};
  }

  bool full = true;
  std::set<uint32_t> fitting;  // partitions that have room nevertheless
  int most_learners = 0;       // at once

 private:
  TestCoordinator& c_;
  const uint64_t primary_, server_;
};

TEST_CASE("regression: a server without memory for replicas is tried ever more rarely") {
  TestCoordinator c(Replicated(16));
  const uint64_t a = c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 64 * 64)).ok());
  const uint64_t b = c.JoinServer("b");
  ServerWithoutMemory world(&c, a, b);
  CHECK(world.Reported().empty());
  world.Answer();
  REQUIRE(world.Followers() == 0);
  REQUIRE(world.Reported().size() == 1);
  CHECK(world.Reported()[0].incarnation() == b);
  CHECK(world.Reported()[0].partitions_size() == 16);
  CHECK(world.Reported()[0].retry_ms() == kLeaseMs);
  const uint64_t before = c.view().revision();
  world.most_learners = 0;
  world.PassLeases(1000);
  // A try is two revisions: 7 tries with growing pauses, then one each 64 leases.
  CHECK(c.view().revision() - before <= 2 * (7 + 1000 / 64));
  CHECK(world.most_learners == 1);
  CHECK(world.Reported()[0].retry_ms() <= 64 * kLeaseMs);

  SECTION("memory that has grown is found by the next try, and all follows") {
    world.full = false;
    world.PassLeases(65);
    CHECK(world.Followers() == 16);
    CHECK(world.Reported().empty());
  }
  SECTION("a dropped table ends the pause") {
    REQUIRE(c.CreateTable(c.Spec("other", 64)).ok());
    world.full = false;
    REQUIRE(c.DropTable("other").ok());
    world.PassLeases(1);
    CHECK(world.Followers() == 16);
  }
  SECTION("replicas that fit are placed, the others are not") {
    world.fitting = {5, 9};
    world.PassLeases(64 * 17);
    CHECK(world.Followers() == 2);
    CHECK(world.Reported()[0].partitions_size() == 14);
  }
  SECTION("another server gets replicas at once") {
    const uint64_t d = c.JoinServer("d");
    for (const v1::Partition& p : c.view().partitions()) {
      CHECK(Words(p) == absl::StrCat(a, "?", d));
    }
  }
}

TEST_CASE(
    "a repair that is due after a lease is made without another event, also after a full disk") {
  FaultyStore store;
  TestCoordinator c(Replicated(), &store);
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  c.clock.AdvanceMs(1000);
  REQUIRE(c.Reconfigure(a, {c.Change(kDrop, 0, b)})->made(0));
  c.clock.AdvanceMs(kLeaseMs - 1);
  REQUIRE(c.Heartbeat(a).ok());
  REQUIRE(c.Heartbeat(b).ok());
  REQUIRE_FALSE(c->RunOnce());
  REQUIRE(c->NextTimerNanos() == c.clock.NowNanos() + 1000000);
  c.clock.AdvanceMs(1);
  store.full = true;
  REQUIRE(c->RunOnce());
  REQUIRE(Words(c.Partition(0)) == "1");
  store.full = false;
  REQUIRE_FALSE(c->RunOnce());
  c.clock.AdvanceMs(1000);
  REQUIRE(c->RunOnce());
  REQUIRE(Words(c.Partition(0)) == "1?2");
}

TEST_CASE("a follower that asks becomes primary, and the old one is repaired later") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const v1::Partition before = c.Partition(0);
  REQUIRE_STATUS(c.Reconfigure(a, {c.Change(kPromote, 0)}).status(), kFailedPrecondition,
                 "PROMOTE of partition 0 by server incarnation 1; allowed: its followers: 2");
  REQUIRE(c.Reconfigure(b, {c.Change(kPromote, 0)})->made(0));
  REQUIRE(Words(c.Partition(0)) == "2");
  REQUIRE(c.Partition(0).epoch() == before.epoch() + 1);
  REQUIRE(c.Partition(0).configuration() == before.configuration() + 1);
  PassLease(&c, {a, b});
  REQUIRE(Words(c.Partition(0)) == "2?1");
}

// a asks for b's copy of partition 0 to be dropped, b for partition 2 of which a is the primary.
// Neither is made `late_ms` after the ticket was given.
void AskLate(TestCoordinator* c, uint64_t a, uint64_t b, const v1::ReconfigureTicket& ticket) {
  const uint64_t revision = c->view().revision();
  for (const auto& [who, change] :
       {std::pair(a, c->Change(kDrop, 0, b)), std::pair(b, c->Change(kPromote, 2))}) {
    const auto late = c->Reconfigure(who, {change}, ticket);
    REQUIRE(late.ok());
    CHECK_FALSE(late->made(0));
    CHECK(late->late());
  }
  CHECK(c->view().revision() == revision);
}

TEST_CASE("regression: a request to take a role expires with its ticket, before it is handled") {
  for (const int64_t late_ms : {kLeaseMs / 8 + 1, 3 * kLeaseMs}) {
    TestCoordinator c(Replicated());
    const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
    REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
    const v1::ReconfigureTicket ticket = c.Reconfigure(a, {}, {})->ticket();
    // The requests of both servers now wait in a coordinator that does not run.
    c.clock.StallMs(late_ms);
    c->RunOnce();
    AskLate(&c, a, b, ticket);
    AskLate(&c, a, b, {});
    // A server that returns under its name is empty: the other one has everything.
    c.JoinServer("a");
    CHECK(c.view().tables(0).lost_partitions().empty());
  }
}

TEST_CASE("a change that takes a role is made with a recent ticket of this term alone") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  v1::ReconfigureTicket ticket = c.Reconfigure(a, {}, {})->ticket();
  c.Restart();
  AskLate(&c, a, b, ticket);
  ticket = c.Reconfigure(a, {}, {})->ticket();
  ticket.set_issued_ns(ticket.issued_ns() + 1);  // not given yet
  AskLate(&c, a, b, ticket);
  ticket.set_issued_ns(ticket.issued_ns() - 1);
  c.clock.StallMs(kLeaseMs / 8);
  const auto made = c.Reconfigure(a, {c.Change(kDrop, 0, b)}, ticket);
  REQUIRE(made.ok());
  CHECK(made->made(0));
  CHECK_FALSE(made->late());
  // A learner takes nobody's role: it is admitted however late that is.
  PassLease(&c, {a, b});
  REQUIRE(Words(c.Partition(0)) == "1?2");
  CHECK(c.Reconfigure(a, {c.Change(kAdmit, 0, b)}, {})->made(0));
}

TEST_CASE("a change is made only of the configuration that it names, once") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  v1::ReconfigureRequest request;
  request.set_request_id(c.NewId());
  request.set_incarnation(a);
  *request.mutable_ticket() = c.Reconfigure(a, {}, {})->ticket();
  *request.add_changes() = c.Change(kDrop, 0, b);
  *request.add_changes() = c.Change(kDrop, 0, b);  // of one that is no more by then
  v1::ConfigurationChange late = c.Change(kDrop, 2, b);
  late.set_configuration(late.configuration() - 1);
  *request.add_changes() = late;
  *request.add_changes() = c.Change(kDrop, 2, b);
  const auto first = c.Call(&Coordinator::Reconfigure, request);
  REQUIRE(first.ok());
  REQUIRE(std::vector<bool>(first->made().begin(), first->made().end()) ==
          std::vector<bool>{true, false, false, true});
  const uint64_t revision = c.view().revision();
  const auto again = c.Call(&Coordinator::Reconfigure, request);
  REQUIRE(again->SerializeAsString() == first->SerializeAsString());
  REQUIRE(c.view().revision() == revision);
  // Nothing made: no new revision.
  const auto none = c.Reconfigure(a, {late});
  REQUIRE_FALSE(none->made(0));
  REQUIRE(none->revision() == revision);
  REQUIRE(c.view().revision() == revision);
}

TEST_CASE("a change that is not allowed is refused by the name of its field, and nothing changes") {
  TestCoordinator c(Replicated());
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  REQUIRE(c.CreateTable(c.Spec("t", 4096)).ok());
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  const uint64_t revision = c.view().revision();
  const auto refused = [&](uint64_t who, const v1::ConfigurationChange& change) {
    // After one that could be made.
    return c.Reconfigure(who, {c.Change(kDrop, 2, b), change}).status();
  };
  REQUIRE_STATUS(refused(a, c.Change(v1::ConfigurationChange::KIND_UNSPECIFIED, 0)),
                 kInvalidArgument, "changes.kind is 0; allowed: DROP_REPLICA (1)");
  REQUIRE_STATUS(refused(a, c.Change(static_cast<v1::ConfigurationChange::Kind>(9), 0)),
                 kInvalidArgument, "changes.kind is 9");
  REQUIRE_STATUS(refused(a, c.Change(kDrop, 4, b)), kInvalidArgument,
                 "changes.partition is 4; allowed: 0 to 3");
  REQUIRE_STATUS(refused(a, c.Change(kDrop, 0, 77)), kInvalidArgument,
                 "changes.server is 77; allowed: the followers and learners of partition 0: 2");
  REQUIRE_STATUS(refused(a, c.Change(kDrop, 0, a)), kInvalidArgument, "changes.server is 1");
  REQUIRE_STATUS(refused(a, c.Change(kAdmit, 0, b)), kInvalidArgument,
                 "changes.server is 2; allowed: none, partition 0 has no learners");
  REQUIRE_STATUS(refused(a, c.Change(kDrop, 1, a)), kFailedPrecondition,
                 "DROP_REPLICA of partition 1 by server incarnation 1; allowed: its primary: 2");
  REQUIRE_STATUS(refused(worker, c.Change(kDrop, 0, b)), kFailedPrecondition,
                 "which is no server of this cluster");
  REQUIRE(c.view().revision() == revision);
  REQUIRE(Words(c.Partition(2)) == "1+2");
  // A refused request barred no replica.
  REQUIRE(c.Leave(b).ok());
  REQUIRE_STATUS(c.Reconfigure(b, {c.Change(kPromote, 0)}).status(), kFailedPrecondition, "silent");
  const uint64_t again = c.JoinServer("b");
  REQUIRE_STATUS(c.Reconfigure(b, {}).status(), kFailedPrecondition, "or none any more");
  REQUIRE(Words(c.Partition(2)) == "1?" + std::to_string(again));
}

// Without renewed_epoch a shard that had a replica takes itself for promoted, and the new
// followers, which have nothing of it, for those of the primary before.
TEST_CASE("a partition that is placed anew on one of its followers is renewed") {
  CoordinatorOptions options;
  options.partitions = 12;
  options.replicas = 3;
  TestCoordinator c(options);
  for (const char* name : {"c", "d", "e"}) c.JoinServer(name);
  c.CreateTable(c.Spec("t", 64)).value();
  const v1::ClusterView before = c.view();
  REQUIRE(c.DropTable("t").ok());
  c.JoinServer("a");
  c.CreateTable(c.Spec("u", 64)).value();
  int moved = 0, not_renewed = 0;
  for (int i = 0; i < before.partitions_size(); ++i) {
    const v1::Partition& was = before.partitions(i);
    const v1::Partition& now = c.view().partitions(i);
    for (const v1::Replica& follower : was.followers()) {
      if (follower.server() != now.primary() || now.followers().empty()) continue;
      ++moved;
      not_renewed += now.renewed_epoch() == now.epoch() ? 0 : 1;
    }
  }
  CAPTURE(moved);
  CHECK(not_renewed == 0);
}

}  // namespace
}  // namespace verbena::server
