// A server whose coordinator was started with an older state, or with another cluster's.
#include "server/coordinator/failpoints.h"
#include "tests/server/membership_fixture.h"

namespace verbena::server {
namespace {

TEST_CASE("a coordinator with another cluster, or with an old view, is not followed") {
  World world;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  v1::GetViewResponse wrong;
  wrong.set_changed(true);
  auto inner = world.channel.handler;
  world.channel.handler = [&](const std::string& name, const std::string& bytes,
                              FakeChannel::Respond respond) {
    if (name != "GetView") return inner(name, bytes, respond);
    respond(absl::OkStatus(), wrong.SerializeAsString());
  };
  *wrong.mutable_view() = *world.views.back();
  world.coordinator.JoinServer("b");  // ends the poll that is in progress
  world.RunFor(10000);
  REQUIRE(world.views.size() <= 2);
  REQUIRE(world.member->status().ok());
  REQUIRE(world.channel.sent["GetView"] < 40);  // no loop as fast as the network

  wrong.mutable_view()->set_cluster_id("other");
  world.coordinator.JoinServer("c");
  world.RunFor(10000);
  REQUIRE(world.views.size() <= 2);
  REQUIRE_FALSE(world.member->ended());
}

TEST_CASE(
    "regression: a server keeps its data when its coordinator is started with another state") {
  World world;
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
  // The wrong one answers as a coordinator does that was started with an empty --state.
  TestCoordinator wrong(CoordinatorOptions{}, nullptr, "other");
  auto right = world.channel.handler;
  world.channel.handler = [&](const std::string& name, const std::string& bytes,
                              FakeChannel::Respond respond) {
    if (name == "Heartbeat") {
      v1::HeartbeatRequest request;
      REQUIRE(request.ParseFromString(bytes));
      const auto answer = wrong.Call(&Coordinator::Heartbeat, request);
      return respond(answer.status(), answer.ok() ? answer->SerializeAsString() : "");
    }
    respond(absl::UnavailableError("not now"), "");
  };
  REQUIRE(world.RunFor(20000, [&] { return !world.member->status().ok(); }));
  world.RunFor(20000);
  REQUIRE_FALSE(world.member->ended());
  CHECK_THAT(std::string(world.member->status().message()),
             Catch::Contains("serves cluster other") && Catch::Contains("--state"));
  world.channel.handler = right;
  CHECK(world.RunFor(20000, [&] { return world.member->status().ok(); }));
}

TEST_CASE("regression: an older coordinator state under a live server is not followed") {
  // The state has fewer revisions than the server has seen, as many, or more by the time it hears.
  for (const int overtaken_by : {0, 1, 4}) {
    INFO("changes before the server hears: " << overtaken_by);
    World world;
    TestCoordinator& c = world.coordinator;
    const auto put_back = [&](const CoordinatorState& state) {
      REQUIRE(world.store.Save(state, {}).ok());
      c.Restart();
    };
    const auto follows = [&] { return world.views.back()->revision() == c.view().revision(); };
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined() && !world.views.empty(); }));
    const CoordinatorState backup = *world.store.Load();
    c.Restart();
    c.JoinServer("b");
    REQUIRE(world.RunFor(20000, follows));
    const CoordinatorState newest = *world.store.Load();
    const size_t views = world.views.size();

    put_back(backup);
    for (int i = 0; i < overtaken_by; ++i) c.JoinServer("other-" + std::to_string(i));
    world.RunFor(20000);
    CHECK(world.views.size() == views);
    CHECK_FALSE(world.member->ended());
    REQUIRE_STATUS(world.member->status(), kUnavailable, "put the newer state back");

    put_back(newest);
    c.JoinServer("c");
    CHECK(world.RunFor(20000, follows));
    CHECK(world.member->status().ok());

    put_back(backup);
    c.options().accept_older_state = c.view().terms().rbegin()->id();
    put_back(*world.store.Load());
    REQUIRE(world.RunFor(20000, [&] { return world.member->ended(); }));
    REQUIRE_STATUS(world.member->status(), kFailedPrecondition,
                   "its cluster goes on from a state without it");
  }
}

// Returns whether a server follows an older state that is put back. Its view lists so few terms
// that the server cannot see that its own state is newer. The state comes in the answer to a
// refresh or, with `poll`, to a poll that the server sent before it saw its newest view.
bool FollowsOlderState(bool poll) {
  World world;
  TestCoordinator& c = world.coordinator;
  c.options().terms_listed = 1;
  c.Restart();
  auto inner = world.channel.handler;
  CoordinatorState backup;
  std::function<void()> held;
  bool put_back = false;
  const auto put_older_back = [&] {
    put_back = true;
    REQUIRE(world.store.Save(backup, {}).ok());
    for (int starts = 0; starts < 8; ++starts) c.Restart();
  };
  world.channel.handler = [&](const std::string& name, const std::string& bytes,
                              FakeChannel::Respond respond) {
    v1::GetViewRequest request;
    if (name == "GetView") REQUIRE(request.ParseFromString(bytes));
    if (request.wait_ms() > 0) {
      held = [inner, name, bytes, respond] { inner(name, bytes, respond); };
      return;
    }
    if (name == "GetView" && !poll && c.view().servers_size() == 3) put_older_back();
    inner(name, bytes, respond);
  };
  world.Start();
  REQUIRE(world.RunFor(1000, [&] { return world.Joined() && held != nullptr; }));
  backup = *world.store.Load();
  const auto follows = [&] { return world.views.back()->revision() == c.view().revision(); };
  c.Restart();
  c.JoinServer("b");
  REQUIRE(world.RunFor(kLeaseMs / 4 + 10, follows));
  if (poll) {
    put_older_back();
    held();
  } else {
    c.JoinServer("c");
    REQUIRE(world.RunFor(kLeaseMs / 4 + 10, [&] { return put_back; }));
  }
  return world.RunFor(20000, follows);
}

TEST_CASE("regression: no answer of an older coordinator state is followed") {
  CHECK_FALSE(FollowsOlderState(/*poll=*/false));
  CHECK_FALSE(FollowsOlderState(/*poll=*/true));
  failpoints().take_uncompared = true;
  const bool follows = FollowsOlderState(/*poll=*/false);
  failpoints().take_uncompared = false;
  CHECK(follows);
}

}  // namespace
}  // namespace verbena::server
