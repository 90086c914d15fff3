// A server's membership against a coordinator that it reaches through an unreliable network.
#include "server/membership.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/coordinator/planted_bugs.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

constexpr int64_t kNever = INT64_MAX;
constexpr int64_t kMs = 1000000;

// Requests and answers take their time, get lost, and arrive in any order; time is the test's.
class FakeChannel final : public ControlChannel {
 public:
  // Given a method's last part and the request's bytes, answers sooner or later.
  using Respond = std::function<void(absl::Status, std::string)>;
  using Handler = std::function<void(const std::string&, const std::string&, Respond)>;
  FakeChannel(const ManualClock* clock, uint64_t seed) : clock_(clock), random_(seed) {}

  void Unary(const std::string& address, const std::string& method,
             const google::protobuf::Message& request,
             std::shared_ptr<google::protobuf::Message> response, absl::Duration timeout,
             Done done) override {
    REQUIRE(address == "coordinator:1");
    const uint64_t id = next_++;
    const std::string name = method.substr(method.rfind('/') + 1);
    ++sent[name];
    At(clock_->NowNanos() + absl::ToInt64Nanoseconds(timeout),
       [this, id] { End(id, absl::DeadlineExceededError("late"), ""); });
    calls_.emplace(id, CallState{std::move(response), std::move(done)});
    if (down) {
      End(id, absl::UnavailableError("connection refused"), "");
    } else if (!Lost()) {
      At(clock_->NowNanos() + Delay(), [this, id, name, bytes = request.SerializeAsString()] {
        if (!handler || down) return;
        handler(name, bytes, [this, id](absl::Status status, std::string answer) {
          if (Lost()) return;
          At(clock_->NowNanos() + Delay(), [this, id, status, answer] { End(id, status, answer); });
        });
      });
    }
  }

  bool RunOnce() override {
    bool worked = false;
    while (!events_.empty() && events_.begin()->first <= clock_->NowNanos()) {
      auto event = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      event();
      worked = true;
    }
    std::vector<std::function<void()>> ended = std::move(ended_);
    ended_.clear();
    for (auto& done : ended) done();
    return worked || !ended.empty();
  }
  int wake_fd() const override { return -1; }
  int64_t NextTimerNanos() const {
    if (!ended_.empty()) return 0;
    return events_.empty() ? kNever : events_.begin()->first;
  }

  Handler handler;
  bool down = false;
  double loss = 0;
  int64_t max_delay_ms = 1;
  std::map<std::string, int> sent;

 private:
  struct CallState {
    std::shared_ptr<google::protobuf::Message> response;
    Done done;
  };
  bool Lost() { return std::uniform_real_distribution<>(0, 1)(random_) < loss; }
  int64_t Delay() { return static_cast<int64_t>(random_() % (max_delay_ms * kMs + 1)); }
  void At(int64_t when, std::function<void()> event) { events_.emplace(when, std::move(event)); }
  void End(uint64_t id, absl::Status status, const std::string& answer) {
    const auto it = calls_.find(id);
    if (it == calls_.end()) return;  // it has ended before
    auto call = std::make_shared<CallState>(std::move(it->second));
    calls_.erase(it);
    ended_.push_back([call, status, answer] {
      if (status.ok()) REQUIRE(call->response->ParseFromString(answer));
      call->done(status);
    });
  }

  const ManualClock* clock_;
  std::mt19937_64 random_;
  uint64_t next_ = 1;
  std::map<uint64_t, CallState> calls_;
  std::multimap<int64_t, std::function<void()>> events_;
  std::vector<std::function<void()>> ended_;
};

// One membership, and a real coordinator behind the channel.
class World {
 public:
  explicit World(uint64_t seed = 1)
      : coordinator({.partitions = 4}, &store), channel(&Clock(), seed) {
    channel.handler = [this](const std::string& name, const std::string& bytes,
                             FakeChannel::Respond respond) {
      if (name == "JoinServer") return To(&Coordinator::JoinServer, bytes, respond);
      if (name == "Heartbeat") return To(&Coordinator::Heartbeat, bytes, respond);
      if (name == "GetView") return To(&Coordinator::GetView, bytes, respond);
      if (name == "Leave") return To(&Coordinator::Leave, bytes, respond);
      FAIL("unexpected " << name);
    };
    options.coordinator = "coordinator:1";
    options.name = "a";
    options.address = "a:7000";
    options.shards = 2;
    options.seed = seed;
  }

  ManualClock& Clock() { return coordinator.clock; }

  void Start() {
    member = std::make_unique<Membership>(
        options, &Clock(), &channel,
        [this](uint64_t incarnation, std::shared_ptr<const v1::ClusterView> view) {
          REQUIRE(incarnation != 0);
          if (!views.empty()) REQUIRE(view->revision() > views.back()->revision());
          incarnations.push_back(incarnation);
          views.push_back(std::move(view));
        });
  }

  // Runs until `done` or for `ms` of virtual time, jumping from timer to timer.
  bool RunFor(
      int64_t ms, const std::function<bool()>& done = [] { return false; }) {
    const int64_t end = Clock().NowNanos() + ms * kMs;
    for (int quiet = 0;;) {
      if (done()) return true;
      bool worked = coordinator->RunOnce();
      if (member != nullptr) worked |= member->RunOnce();
      worked |= channel.RunOnce();
      if (worked) {
        // A state machine that always finds something to do would spin a core.
        REQUIRE(++quiet < 10000);
        continue;
      }
      quiet = 0;
      int64_t next = std::min(coordinator->NextTimerNanos(), channel.NextTimerNanos());
      if (member != nullptr) next = std::min(next, member->NextTimerNanos());
      if (next >= end) {
        Clock().AdvanceTo(end);
        return done();
      }
      Clock().AdvanceTo(next);
    }
  }

  bool Joined() const { return member->incarnation() != 0; }
  v1::Server::State State() {
    for (const v1::Server& server : coordinator.view().servers()) {
      if (server.incarnation() == member->incarnation()) return server.state();
    }
    return v1::Server::STATE_UNSPECIFIED;
  }

  MemoryStore store;
  TestCoordinator coordinator;
  FakeChannel channel;
  MembershipOptions options;
  std::unique_ptr<Membership> member;
  std::vector<uint64_t> incarnations;
  std::set<uint64_t> given;  // incarnations by the coordinator, whether the answers arrive or not
  std::vector<std::shared_ptr<const v1::ClusterView>> views;

 private:
  template <typename Request, typename Response>
  void To(void (Coordinator::*method)(const Request&, Coordinator::Reply<Response>),
          const std::string& bytes, const FakeChannel::Respond& respond) {
    Request request;
    REQUIRE(request.ParseFromString(bytes));
    (coordinator.operator->()->*method)(
        request, [this, respond](absl::StatusOr<Response> response) {
          if constexpr (std::is_same_v<Response, v1::JoinServerResponse>) {
            if (response.ok()) given.insert(response->incarnation());
          }
          respond(response.status(), response.ok() ? response->SerializeAsString() : "");
        });
  }
};

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

TEST_CASE("a coordinator that is down is found again, and status() says since when") {
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

TEST_CASE("a server whose name is taken over ends and says so") {
  for (const bool by_view : {true, false}) {
    World world;
    world.Start();
    REQUIRE(world.RunFor(1000, [&] { return world.Joined(); }));
    const uint64_t mine = world.member->incarnation();
    if (!by_view) {
      // No view gets through, so the heartbeat has to tell.
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
  SECTION("while the join is on its way, what it got is given back") {
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

TEST_CASE("a membership destroyed with calls under way is not called") {
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
  coordinator_planted_bugs().wait_for_polls = true;
  const bool come = ViewsComeWithoutPolls();
  coordinator_planted_bugs().wait_for_polls = false;
  CHECK_FALSE(come);
}

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
  world.coordinator.JoinServer("b");  // ends the poll that is under way
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
      REQUIRE(world.store.Save(state, nullptr).ok());
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

// An older state is put back, of which the view lists so few terms that a server cannot see what it
// does not continue. It answers a refresh, or, with `poll`, a poll that the server sent before it
// saw more. Whether the server follows.
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
    REQUIRE(world.store.Save(backup, nullptr).ok());
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
  coordinator_planted_bugs().take_uncompared = true;
  const bool follows = FollowsOlderState(/*poll=*/false);
  coordinator_planted_bugs().take_uncompared = false;
  CHECK(follows);
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
