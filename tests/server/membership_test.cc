// A server's membership against a coordinator that it reaches through an unreliable network.
#include "server/membership.h"

#include <set>

#include "proto/control/standby.h"
#include "server/coordinator/failpoints.h"
#include "tests/server/membership_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("a server joins, keeps its lease and follows the view") {
  World world;
  world.Start();
  REQUIRE(world.member->incarnation() == 0);
  REQUIRE_STATUS(world.member->status(), kUnavailable, "trying to join the cluster");
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  REQUIRE(world.member->status().ok());
  REQUIRE(world.views[0]->servers(0).address() == "a:7000");
  REQUIRE(world.views[0]->servers(0).shards() == 2);
  world.RunFor(60000);
  REQUIRE(world.State() == v1::Server::ALIVE);
  REQUIRE(world.views.size() == 1);
  // lease / 4 is 1250 ms; a poll is held for 10 s.
  REQUIRE(world.channel.sent["Heartbeat"] >= 46);
  REQUIRE(world.channel.sent["Heartbeat"] <= 49);
  REQUIRE(world.channel.sent["GetView"] <= 8);
  world.coordinator.JoinServer("b");
  REQUIRE(world.RunFor(10, [&] { return world.views.size() == 2; }));
  REQUIRE(world.views[1]->servers_size() == 2);
}

TEST_CASE("a coordinator that was down is found again, and status() has the time of the outage") {
  World world;
  world.channel.down = true;
  world.Start();
  world.RunFor(20000);
  REQUIRE_STATUS(world.member->status(), kUnavailable, "for 20s; last error: connection refused");
  // Backoff: between 0.5 and 1 s each once it has grown.
  REQUIRE(world.channel.sent["JoinServer"] > 18);
  REQUIRE(world.channel.sent["JoinServer"] < 45);
  world.channel.down = false;
  REQUIRE(world.RunFor(1100, [&] { return world.Joined(); }));
  world.RunFor(10000);
  REQUIRE(world.member->status().ok());

  world.channel.down = true;
  world.RunFor(4000);
  REQUIRE_STATUS(world.member->status(), kUnavailable, "coordinator at coordinator:1");
  world.RunFor(4000);
  REQUIRE(world.State() == v1::Server::SILENT);
  const uint64_t incarnation = world.member->incarnation();
  world.coordinator.Restart();
  world.channel.down = false;
  REQUIRE(world.RunFor(1300, [&] { return world.State() == v1::Server::ALIVE; }));
  REQUIRE(world.member->incarnation() == incarnation);
  world.RunFor(2000);
  REQUIRE(world.member->status().ok());
  REQUIRE(world.views.back()->revision() == world.coordinator.view().revision());
}

TEST_CASE("regression: a server calls the next leader soon after standbys had no leader") {
  World world;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
  const auto polls_in_outage = [&](const absl::Status& answer) {
    world.channel.no_answer = answer;
    world.channel.down = true;
    world.RunFor(12000);  // a poll is held for 10 s
    const int before = world.channel.sent["GetView"];
    world.RunFor(2000);
    const int polls = world.channel.sent["GetView"] - before;
    world.channel.down = false;
    world.RunFor(3000);
    return polls;
  };
  CHECK(polls_in_outage(absl::UnavailableError("connection refused")) <= 4);
  CHECK(polls_in_outage(StandbyError("no coordinator leads", "")) >= 10);
}

TEST_CASE("a join that is refused for good ends; one that may succeed later is repeated") {
  World refused;
  refused.options.shards = 0;
  refused.Start();
  refused.RunFor(10000);
  REQUIRE(refused.member->ended());
  REQUIRE_STATUS(refused.member->status(), kInvalidArgument, "server 'a' has 0 shards");
  REQUIRE(refused.channel.sent["JoinServer"] == 1);
  REQUIRE(refused.member->NextTimerNanos() == kNever);

  // The name is alive elsewhere: perhaps our own last life, whose lease has yet to end.
  World later;
  const auto request = later.coordinator.ServerRequest("a", 2, "old:7000");
  REQUIRE(later.coordinator.Call(&Coordinator::JoinServer, request).ok());
  later.Start();
  later.RunFor(4000);
  REQUIRE_STATUS(later.member->status(), kUnavailable, "alive at old:7000");
  REQUIRE(later.RunFor(2500, [&] { return later.Joined(); }));
}

TEST_CASE("a server whose name is taken over ends with the reason") {
  for (const bool by_view : {true, false}) {
    World world;
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
    const uint64_t mine = world.member->incarnation();
    if (!by_view) {
      // No view gets through, so the heartbeat's answer has to report it.
      auto inner = world.channel.handler;
      world.channel.handler = [inner](const std::string& name, const std::string& bytes,
                                      FakeChannel::Respond respond) {
        if (name != "GetView") inner(name, bytes, respond);
      };
    }
    auto request = world.coordinator.ServerRequest("a", 2);
    REQUIRE(world.coordinator.Call(&Coordinator::JoinServer, request).ok());
    REQUIRE(world.RunFor(2000, [&] { return world.member->ended(); }));
    REQUIRE_STATUS(world.member->status(), kFailedPrecondition,
                   "another verbenad has joined as 'a'");
    REQUIRE(world.member->incarnation() == mine);
    const int joins = world.channel.sent["JoinServer"];
    world.RunFor(20000);
    REQUIRE(world.channel.sent["JoinServer"] == joins);
    REQUIRE(world.coordinator.Server("a").incarnation() > mine);
  }
}

TEST_CASE("leaving") {
  World world;
  absl::Status left = absl::UnknownError("not yet");
  const auto done = [&](absl::Status status) { left = std::move(status); };
  SECTION("a member is silent at once") {
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
    world.member->Leave(absl::Seconds(1), done);
    REQUIRE_FALSE(left.ok());
    REQUIRE(world.RunFor(100, [&] { return left.ok(); }));
    REQUIRE(world.State() == v1::Server::SILENT);
    world.RunFor(10000);
    REQUIRE(world.State() == v1::Server::SILENT);
    REQUIRE_STATUS(world.member->status(), kCancelled, "left");
  }
  SECTION("an answer that is lost is asked for again") {
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
    world.channel.down = true;
    world.member->Leave(absl::Seconds(10), done);
    world.RunFor(3000);
    REQUIRE(absl::IsUnknown(left));
    world.channel.down = false;
    REQUIRE(world.RunFor(1100, [&] { return left.ok(); }));
    REQUIRE(world.State() == v1::Server::SILENT);
  }
  SECTION("without a coordinator it ends in time") {
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
    world.channel.down = true;
    world.member->Leave(absl::Milliseconds(700), done);
    REQUIRE(world.RunFor(701, [&] { return absl::IsDeadlineExceeded(left); }));
    REQUIRE(world.member->ended());
  }
  SECTION("before the join was ever sent") {
    world.Start();
    world.member->Leave(absl::Seconds(1), done);
    REQUIRE(world.RunFor(1, [&] { return left.ok(); }));
    REQUIRE(world.channel.sent["JoinServer"] == 0);
  }
  SECTION("while the join is in flight: the server leaves when it has joined") {
    world.channel.max_delay_ms = 100;
    world.Start();
    world.member->RunOnce();
    REQUIRE(world.channel.sent["JoinServer"] == 1);
    world.member->Leave(absl::Seconds(5), done);
    REQUIRE(world.RunFor(1000, [&] { return left.ok(); }));
    REQUIRE(world.coordinator.Server("a").state() == v1::Server::SILENT);
  }
  SECTION("after it has ended") {
    world.options.shards = 0;
    world.Start();
    world.RunFor(100);
    world.member->Leave(absl::Seconds(1), done);
    REQUIRE(world.RunFor(1, [&] { return left.ok(); }));
  }
}

TEST_CASE("a membership destroyed with calls in progress is not called") {
  World world;
  world.channel.max_delay_ms = 500;
  world.Start();
  REQUIRE(world.RunFor(5000, [&] { return world.Joined() && world.channel.sent["GetView"] > 0; }));
  world.member.reset();
  world.RunFor(30000);
}

TEST_CASE("lost, late and reordered answers: one incarnation, and the newest view in the end") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    World world(seed);
    std::mt19937_64 random(seed);
    world.channel.loss = 0.3;
    world.channel.max_delay_ms = 1 + static_cast<int64_t>(random() % 2000);
    world.Start();
    for (int round = 0; round < 15; ++round) {
      world.RunFor(static_cast<int64_t>(random() % 6000));
      if (random() % 3 == 0) world.coordinator.JoinServer("b");
      if (random() % 4 == 0) world.coordinator.Restart();
      world.channel.down = random() % 5 == 0;
    }
    // The network heals.
    world.channel.down = false;
    world.channel.loss = 0;
    world.channel.max_delay_ms = 1;
    world.RunFor(30000);
    REQUIRE(world.member->status().ok());
    REQUIRE(world.State() == v1::Server::ALIVE);
    REQUIRE(world.views.back()->revision() == world.coordinator.view().revision());
    for (const uint64_t incarnation : world.incarnations) {
      REQUIRE(incarnation == world.member->incarnation());
    }
    // However often the join was repeated, it counted once: nothing was taken for a restart.
    REQUIRE(world.given.size() == 1);
  }
}

// Whether each view comes soon although all polls are lost.
bool ViewsComeWithoutPolls() {
  World world;
  auto inner = world.channel.handler;
  world.channel.handler = [&](const std::string& name, const std::string& bytes,
                              FakeChannel::Respond respond) {
    v1::GetViewRequest request;
    if (name == "GetView") REQUIRE(request.ParseFromString(bytes));
    if (request.wait_ms() == 0) inner(name, bytes, respond);
  };
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  for (const char* name : {"b", "c"}) {
    world.coordinator.JoinServer(name);
    const auto known = [&] {
      return world.views.back()->revision() == world.coordinator.view().revision();
    };
    REQUIRE_FALSE(known());
    if (!world.RunFor(kLeaseMs / 4 + 10, known)) return false;
  }
  return true;
}

TEST_CASE("regression: a view whose poll is lost comes after the next heartbeat") {
  CHECK(ViewsComeWithoutPolls());
  failpoints().wait_for_polls = true;
  const bool come = ViewsComeWithoutPolls();
  failpoints().wait_for_polls = false;
  CHECK_FALSE(come);
}

TEST_CASE("regression: a server takes changes without copying its view, and passes them on") {
  World world;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  int known = 0;
  for (int i = 0; i < 60; ++i) {
    const uint64_t before = world.views.back()->revision();
    // Nobody reads the older ones any more, but for one that is read for a while.
    if (i % 20 != 10) world.views.erase(world.views.begin(), std::prev(world.views.end()));
    REQUIRE(world.coordinator
                .CreateTable(
                    TestCoordinator::Spec("table" + std::to_string(i), 64, v1::CONSISTENCY_ASYNC))
                .ok());
    REQUIRE(world.RunFor(20000, [&] {
      return world.views.back()->revision() == world.coordinator.view().revision();
    }));
    const std::shared_ptr<const ViewChangeList> changes = world.member->changes();
    if (changes->empty()) continue;
    ++known;
    CHECK(changes->front().base_revision() == before);
    CHECK(changes->back().revision() == world.views.back()->revision());
    CHECK(changes->back().tables_size() == 1);
    CHECK(world.views.back()->tables_size() == world.coordinator.view().tables_size());
  }
  CHECK(known >= 50);
  CHECK(world.member->view_copies() <= 6);
}

TEST_CASE("two lives of a server never send one request id") {
  World world;
  world.options.seed = 0;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
  const uint64_t first = world.member->incarnation();
  world.Start();
  world.views.clear();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
  REQUIRE(world.member->incarnation() > first);
}

}  // namespace
}  // namespace verbena::server
