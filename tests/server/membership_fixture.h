// A server's membership and a coordinator that it reaches through an unreliable network.
#ifndef VERBENA_TESTS_SERVER_MEMBERSHIP_FIXTURE_H_
#define VERBENA_TESTS_SERVER_MEMBERSHIP_FIXTURE_H_

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/membership.h"
#include "server/nanoseconds.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {

inline constexpr int64_t kMs = 1000000;

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
      End(id, no_answer, "");
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
  absl::Status no_answer = absl::UnavailableError("connection refused");  // while down
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

}  // namespace verbena::server

#endif  // VERBENA_TESTS_SERVER_MEMBERSHIP_FIXTURE_H_
