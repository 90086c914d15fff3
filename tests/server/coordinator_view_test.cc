// The view that members get: its changes or the whole of it, and when.
#include <algorithm>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "proto/control/view_change.h"
#include "server/coordinator/failpoints.h"
#include "server/coordinator/view_changes.h"
#include "server/coordinator/view_polls.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

// A member that follows the view by changes, now and then.
class Follower {
 public:
  explicit Follower(TestCoordinator* c) : c_(*c) {}

  v1::GetViewRequest Request() const {
    v1::GetViewRequest request;
    request.set_known_revision(view_.revision());
    *request.mutable_seen() = SeenOf(view_);
    request.set_takes_changes(true);
    return request;
  }

  void Refresh() {
    auto response = c_.Call(&Coordinator::GetView, Request());
    REQUIRE(response.ok());
    Take(&*response);
  }

  void Take(v1::GetViewResponse* response) {
    if (!response->changed()) return;
    REQUIRE(response->has_view() == response->changes().empty());
    response->has_view() ? ++whole_ : ++changed_;
    if (response->has_view()) view_ = response->view();
    REQUIRE(ApplyChanges(*response, &view_));
  }

  const v1::ClusterView& view() const { return view_; }
  int whole() const { return whole_; }
  int changed() const { return changed_; }

 private:
  TestCoordinator& c_;
  v1::ClusterView view_;
  int whole_ = 0, changed_ = 0;
};

// One call of any kind, allowed or not.
void AnyCall(std::mt19937* random, TestCoordinator* c) {
  const auto below = [&](uint32_t bound) { return (*random)() % bound; };
  const auto any = [&](const char* kind) { return absl::StrCat(kind, below(4)); };
  std::vector<uint64_t> members;
  for (const v1::Server& server : c->view().servers()) members.push_back(server.incarnation());
  for (const v1::Job& job : c->view().jobs()) {
    for (const v1::Worker& worker : job.members()) members.push_back(worker.incarnation());
  }
  switch (below(8)) {
    case 0:
      (void)c->Call(&Coordinator::JoinServer, c->ServerRequest(any("server-")));
      return;
    case 1:
    case 2:
      (void)c->JoinWorker(any("job-"), 3);
      return;
    case 3:
      if (!members.empty()) (void)c->Leave(members[below(static_cast<uint32_t>(members.size()))]);
      return;
    case 4:
      (void)c->CreateTable(c->Spec(any("table-"), 512, v1::CONSISTENCY_ASYNC, any("job-")));
      return;
    case 5:
      (void)c->DropTable(any("table-"));
      return;
    case 6:
      (void)c->RemoveServer(any("server-"));
      return;
    default:
      // Some members miss their leases.
      c->clock.AdvanceMs(below(kLeaseMs));
      for (const uint64_t member : members) {
        if (below(3) != 0) (void)c->Heartbeat(member);
      }
  }
}

TEST_CASE("members that follow the view by its changes have exactly the coordinator's") {
  int whole = 0, changed = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    CoordinatorOptions options;
    options.partitions = 8;
    options.replicas = 1 + seed % 2;
    TestCoordinator c(options);
    Follower often(&c), seldom(&c);
    for (int step = 0; step < 150; ++step) {
      AnyCall(&random, &c);
      if (random() % 60 == 0) c.Restart();
      often.Refresh();
      if (random() % 5 == 0) seldom.Refresh();
      REQUIRE(often.view().SerializeAsString() == c.view().SerializeAsString());
    }
    seldom.Refresh();
    REQUIRE(seldom.view().SerializeAsString() == c.view().SerializeAsString());
    whole += often.whole() + seldom.whole();
    changed += often.changed() + seldom.changed();
  }
  // The whole view is for the first request, a new term, and a server that replaces another one.
  INFO("whole " << whole << ", changed " << changed);
  CHECK(changed > 4 * whole);
}

TEST_CASE("saving and undoing the changes of a view gives exactly the coordinator's view") {
  int undone = 0;
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    CoordinatorOptions options;
    options.partitions = 8;
    options.replicas = 1 + seed % 2;
    FaultyStore store;
    TestCoordinator c(options, &store);
    for (int step = 0; step < 150; ++step) {
      const std::string before = c.view().SerializeAsString();
      store.full = random() % 4 == 0;
      AnyCall(&random, &c);
      if (store.full) {
        REQUIRE(c.view().SerializeAsString() == before);
        ++undone;
        store.full = false;
        c->RunOnce();
      }
      REQUIRE(store.Load()->view.SerializeAsString() == c.view().SerializeAsString());
    }
  }
  CHECK(undone > 1000);
}

TEST_CASE("regression: the size of a change does not grow with the number of tables and jobs") {
  struct Counting final : Store {
    absl::StatusOr<CoordinatorState> Load() override { return inner.Load(); }
    absl::Status SaveAll(const CoordinatorState& state,
                         absl::Span<const StateChange> changes) override {
      REQUIRE(changes.size() == 1);
      bytes = changes[0].view == nullptr ? SIZE_MAX : changes[0].view->ByteSizeLong();
      return inner.SaveAll(state, changes);
    }
    MemoryStore inner;
    size_t bytes = 0;
  } store;
  TestCoordinator c({.partitions = 256}, &store);
  c.JoinServer("a");
  std::map<std::string, size_t> before;
  for (int tables = 0; tables <= 300; ++tables) {
    std::map<std::string, size_t> now;
    const std::string job = absl::StrCat("job-", 1000 + tables);
    const std::string table = absl::StrCat("table-", 1000 + tables);
    REQUIRE(c.CreateTable(c.Spec(table, 64, v1::CONSISTENCY_ASYNC, job)).ok());
    if (tables == 0) continue;  // places all partitions
    now["create"] = store.bytes;
    const auto worker = c.JoinWorker(job, 1);
    now["join"] = store.bytes;
    REQUIRE(c.Leave(worker->incarnation()).ok());
    now["leave"] = store.bytes;
    if (tables == 1) before = now;
    // Numbers have up to two bytes more.
    for (const auto& [call, bytes] : now) CHECK(bytes <= before[call] + 16);
  }
}

TEST_CASE("a caller that does not take changes, or names another state, gets the whole view") {
  TestCoordinator c;
  c.JoinServer("a");
  Follower follower(&c);
  follower.Refresh();
  c.JoinServer("b");
  v1::GetViewRequest request = follower.Request();
  SECTION("an older member") { request.set_takes_changes(false); }
  SECTION("another state than the coordinator's") { request.mutable_seen()->set_revision(1); }
  SECTION("a revision of the term before") {
    c.Restart();
    c.JoinServer("c");
  }
  const auto response = c.Call(&Coordinator::GetView, request);
  REQUIRE(response.ok());
  CHECK(response->changes().empty());
  CHECK(response->view().SerializeAsString() == c.view().SerializeAsString());
}

TEST_CASE("the changes kept are bounded, and a member far behind gets the whole view") {
  TestCoordinator c;
  c.JoinServer("a");
  Follower follower(&c);
  follower.Refresh();
  // Each change has a large table; together they are more than is kept.
  const int tables = static_cast<int>(2 * kViewChangeBytes / 1000);
  for (int i = 0; i < tables; ++i) {
    const std::string name = absl::StrCat(std::string(100, 'x'), i);
    REQUIRE(c.CreateTable(c.Spec(name, 64, v1::CONSISTENCY_ASYNC, std::string(100, 'j'))).ok());
    REQUIRE(c.DropTable(name).ok());
  }
  const auto response = c.Call(&Coordinator::GetView, follower.Request());
  REQUIRE(response.ok());
  CHECK(response->changes().empty());
  CHECK(response->ByteSizeLong() < kViewChangeBytes);
}

TEST_CASE("with many polls, changes that follow each other are published together") {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a");
  c.clock.AdvanceMs(100);
  struct Watcher {
    explicit Watcher(TestCoordinator* c) : follower(c) {}
    Follower follower;
    int answers = 0;
  };
  std::vector<std::unique_ptr<Watcher>> watchers;
  const auto watch = [&](Watcher* watcher) {
    v1::GetViewRequest request = watcher->follower.Request();
    request.set_wait_ms(30000);
    c->GetView(request, [watcher](absl::StatusOr<v1::GetViewResponse> response) {
      REQUIRE(response.ok());
      ++watcher->answers;
      watcher->follower.Take(&*response);
    });
  };
  for (int i = 0; i < 200; ++i) {
    watchers.push_back(std::make_unique<Watcher>(&c));
    watchers.back()->follower.Refresh();
    watch(watchers.back().get());
  }
  int answers = 0;
  for (int i = 0; i < 50; ++i) {
    REQUIRE(c.JoinWorker(absl::StrCat("job-", i), 1).ok());
    c.clock.AdvanceMs(1);
    for (const auto& watcher : watchers) {
      answers += watcher->answers;
      // It watches again.
      if (watcher->answers > 0) watch(watcher.get());
      watcher->answers = 0;
    }
  }
  c.clock.AdvanceMs(21);
  for (const auto& watcher : watchers) answers += watcher->answers;
  // 50 changes in 50 ms: at once, then each 20 ms.
  CHECK(answers <= 5 * 200);
  CHECK(answers >= 3 * 200);
  for (const auto& watcher : watchers) {
    REQUIRE(watcher->follower.view().SerializeAsString() == c.view().SerializeAsString());
  }
  CHECK(c.Heartbeat(a).ok());
}

TEST_CASE("regression: a worker that waits for the view is not woken by tables or other jobs") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t worker = c.JoinWorker("job", 2)->incarnation();
  const uint64_t observer = c.JoinWorker("job", 2, -1, true)->incarnation();
  const auto async = [](const std::string& name) {
    return TestCoordinator::Spec(name, 64, v1::CONSISTENCY_ASYNC);
  };
  // The first one places all partitions.
  REQUIRE(c.CreateTable(async("first")).ok());
  const auto poll = [&](uint64_t incarnation) {
    v1::GetViewRequest request;
    request.set_known_revision(c.view().revision());
    request.set_wait_ms(1000);
    request.set_incarnation(incarnation);
    return c.Start(&Coordinator::GetView, request);
  };
  SECTION("tables, observers, other jobs") {
    const auto of_worker = poll(worker), of_observer = poll(observer);
    for (int i = 0; i < 10; ++i) {
      const auto of_server = poll(c.Server("a").incarnation());
      const auto of_other = poll(0);
      if (i % 3 == 0) REQUIRE(c.CreateTable(async("table" + std::to_string(i))).ok());
      if (i % 3 == 1) REQUIRE(c.JoinWorker("other" + std::to_string(i), 1).ok());
      if (i % 3 == 2) REQUIRE(c.JoinWorker("job", 2, -1, true).ok());
      CHECK(of_server->has_value());
      CHECK(of_other->has_value());
    }
    CHECK_FALSE(of_worker->has_value());
    CHECK_FALSE(of_observer->has_value());
    // All of it comes when the wait is over.
    c.clock.AdvanceMs(1000);
    c->RunOnce();
    REQUIRE(of_worker->has_value());
    CHECK((*of_worker)->value().changed());
  }
  SECTION("workers of its job") {
    const auto of_worker = poll(worker), of_observer = poll(observer);
    REQUIRE(c.JoinWorker("job", 2).ok());
    CHECK(of_worker->has_value());
    CHECK(of_observer->has_value());
  }
  SECTION("servers") {
    const auto of_worker = poll(worker);
    c.JoinServer("b");
    CHECK(of_worker->has_value());
  }
  SECTION("lost partitions of a table") {
    REQUIRE(c.CreateTable(async("table")).ok());
    const auto of_worker = poll(worker);
    REQUIRE(c.JoinServer("a") > 0);  // another life of the server
    CHECK(of_worker->has_value());
  }
}

// 1,000 polls that take 1 ms each to answer wait when the view changes. How many were answered when
// the coordinator looks for other calls: by its turns.
std::vector<int> AnsweredByTurns() {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a");
  c.clock.AdvanceMs(100);
  v1::GetViewRequest request;
  request.set_known_revision(c.view().revision());
  request.set_wait_ms(30000);
  int answered = 0;
  for (int i = 0; i < 1000; ++i) {
    c->GetView(request, [&](absl::StatusOr<v1::GetViewResponse> response) {
      REQUIRE(response.ok());
      CHECK(response->changed());
      ++answered;
      c.clock.StallMs(1);
    });
  }
  REQUIRE(c.JoinWorker("job", 1).ok());
  std::vector<int> turns = {answered};
  while (answered < 1000) {
    CHECK(c->NextTimerNanos() <= c.clock.NowNanos());
    REQUIRE(c.Heartbeat(a).ok());
    REQUIRE(c->RunOnce());
    turns.push_back(answered);
  }
  return turns;
}

TEST_CASE("regression: however many polls wait, heartbeats come between their answers") {
  const std::vector<int> turns = AnsweredByTurns();
  CHECK(turns.size() == 500);  // 2 ms each
  CHECK(turns[0] == 2);
}

TEST_CASE("failpoint: heartbeats wait until all polls are answered") {
  failpoints().answer_all_polls = true;
  CHECK(AnsweredByTurns() == std::vector<int>{1000});
  failpoints() = {};
}

TEST_CASE(
    "of too many polls the caller's oldest is answered, and beyond the total one is refused") {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a"), b = c.JoinServer("b");
  std::vector<Answer<v1::GetViewResponse>> polls;
  const auto poll = [&](const std::string& caller, uint64_t member) {
    v1::GetViewRequest request;
    request.set_known_revision(c.view().revision());
    request.set_wait_ms(1000);
    request.set_incarnation(member);
    auto answer = std::make_shared<std::optional<absl::StatusOr<v1::GetViewResponse>>>();
    c->GetView(request, caller, [answer](absl::StatusOr<v1::GetViewResponse> response) {
      answer->emplace(std::move(response));
    });
    polls.push_back(answer);
    return answer;
  };
  const auto waiting = [&] {
    while (c->RunOnce()) {
    }
    return std::count_if(polls.begin(), polls.end(), [](const auto& p) { return !p->has_value(); });
  };
  const auto first = poll("token", a);
  for (size_t i = 1; i < ViewPolls::kMostOfMember; ++i) poll("token", a);
  poll("token", b);
  CHECK(waiting() == ViewPolls::kMostOfMember + 1);
  // An incarnation that is no member's is no caller of its own.
  for (size_t i = 0; i < 3 * ViewPolls::kMostOfOthers; ++i) poll("token", 1000000 + i);
  CHECK(waiting() == ViewPolls::kMostOfMember + 1 + ViewPolls::kMostOfOthers);
  CHECK_FALSE(first->has_value());
  CHECK(c->polls_beyond() == 2 * ViewPolls::kMostOfOthers);
  // Not an error, and nothing has changed.
  poll("token", a);
  waiting();
  REQUIRE(first->has_value());
  REQUIRE((*first)->ok());
  CHECK_FALSE((*first)->value().changed());

  for (size_t i = 0; static_cast<size_t>(waiting()) < ViewPolls::kMostInAll; ++i) {
    for (size_t j = 0; j < ViewPolls::kMostOfOthers; ++j) poll(absl::StrCat("host-", i), 0);
  }
  CHECK(waiting() == ViewPolls::kMostInAll);
  const auto late = poll("late", 0);
  REQUIRE(late->has_value());
  CHECK((*late)->status().code() == absl::StatusCode::kResourceExhausted);
  // All end, and there is room again.
  c.clock.AdvanceMs(1000);
  CHECK(waiting() == 0);
  CHECK_FALSE(poll("late", 0)->has_value());
}

TEST_CASE("polls that end while changes are batched do not postpone the answers to the others") {
  TestCoordinator c;
  const uint64_t a = c.JoinServer("a");
  c.clock.AdvanceMs(100);
  // The first change opens a gap; then one poll ends each 10 ms.
  std::vector<Answer<v1::GetViewResponse>> polls;
  for (uint32_t i = 0; i < 100; ++i) polls.push_back(c.Poll(c.view().revision(), 1000 + 10 * i));
  REQUIRE(c.JoinWorker("job", 3).ok());
  for (const auto& poll : polls) REQUIRE(poll->has_value());
  polls.clear();
  for (uint32_t i = 0; i < 100; ++i) polls.push_back(c.Poll(c.view().revision(), 5 + 10 * i));
  REQUIRE(c.JoinWorker("job", 3).ok());
  REQUIRE_FALSE(polls.back()->has_value());
  c.clock.AdvanceMs(25);
  for (const auto& poll : polls) CHECK(poll->has_value());
  CHECK(c.Heartbeat(a).ok());
}

}  // namespace
}  // namespace verbena::server
