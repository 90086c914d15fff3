// Several coordinators that are elected by one fake etcd, under random faults and stops: the
// answers that callers get are those of one coordinator that never fails.
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/coordinator/etcd/elected_office.h"
#include "server/coordinator/etcd/failpoints.h"
#include "tests/server/coordinator_fixture.h"
#include "tests/server/etcd/call_history.h"
#include "tests/server/etcd/fake_etcd.h"

namespace verbena::server {
namespace {

using Fault = FakeEtcd::Fault;
using test::CallHistory;
using Kind = test::RecordedCall::Kind;

// The host's clock. While it holds, threads other than its maker's stop where they read it, as
// those of a process that does not run.
class HoldingClock final : public Clock {
 public:
  int64_t NowNanos() const override {
    if (std::this_thread::get_id() != maker_) holds_.wait(true);
    return clock_.NowNanos();
  }
  void Hold() { holds_ = true; }
  void Release() {
    holds_ = false;
    holds_.notify_all();
  }

 private:
  const MonotonicClock clock_;
  const std::thread::id maker_ = std::this_thread::get_id();
  std::atomic<bool> holds_ = false;
};

// One process with a coordinator, whose thread looks at the office now and then, and handles calls.
struct Node {
  Node(const FakeEtcd& etcd, const std::string& address) {
    EtcdOptions options = etcd.Options();
    options.lease_s = 1;
    options.attempt = absl::Milliseconds(200);
    CoordinatorOptions coordinator_options;
    coordinator_options.partitions = 4;
    office = *ElectedOffice::Create(
        options, coordinator_options, &clock, [](bool, const std::string&) {}, [] {},
        [](bool, const std::string&) {});
    office->Start(address);
  }
  ~Node() {
    clock.Release();
    coordinator.reset();
    office->Stop();
  }
  // Its servers respond as soon as it leads.
  void Follow() {
    if (!office->Follow(&coordinator) || coordinator == nullptr) return;
    for (const v1::Server& server : coordinator->view().servers()) {
      v1::HeartbeatRequest request;
      request.set_incarnation(server.incarnation());
      *request.mutable_seen() = SeenOf(coordinator->view());
      request.set_server(true);
      coordinator->Heartbeat(request, [](auto) {});
    }
  }
  bool answers() const { return stopped == 0 && coordinator != nullptr && office->Leads(); }

  HoldingClock clock;
  std::unique_ptr<ElectedOffice> office;
  std::unique_ptr<Coordinator> coordinator;
  uint64_t stopped = 0;  // for so many steps its thread does not run
};

class Offices {
 public:
  explicit Offices(uint64_t seed) : random_(seed) {
    for (const char* address : {"a:1", "b:1", "c:1"})
      nodes_.push_back(std::make_unique<Node>(etcd_, address));
  }

  // Until leaders have been elected so often, with calls in between. Returns the first violation.
  std::string Run(uint64_t elected) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    while (Elected() < elected) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      Step();
    }
    etcd_.SetFaults({});
    return Violation(history_.calls());
  }
  int calls() const { return static_cast<int>(history_.calls().size()); }

 private:
  bool Chance(uint64_t in) { return random_() % in == 0; }
  uint64_t Elected() const {
    uint64_t all = 0;
    for (const auto& node : nodes_) all += node->office->times_elected();
    return all;
  }

  void Step() {
    for (const auto& node : nodes_) {
      if (node->stopped == 0) {
        if (Chance(2)) node->Follow();
      } else if (--node->stopped == 0) {
        // It handles a call before it looks at its office.
        node->clock.Release();
      }
      if (node->answers() && Chance(400)) {
        // Refused for itself; one of them does not run.
        constexpr const char* kSuccessors[] = {"a:1", "b:1", "c:1", "gone:1"};
        node->office->HandOver(kSuccessors[random_() % 4]).IgnoreError();
      }
      if (!node->answers() || !Chance(200)) continue;
      node->clock.Hold();
      node->stopped = 1 + random_() % 2000;
    }
    if (Chance(100)) {
      etcd_.SetFaults(Chance(2) ? FakeEtcd::Faults()
                                : FakeEtcd::RandomFaults(random_(), 1 + random_() % 6,
                                                         {Fault::kLost, Fault::kAnswerLost,
                                                          Fault::kLate, Fault::kTooMany}));
    }
    if (Chance(50)) etcd_.ApplyLate(random_());
    for (const auto& one : nodes_) {
      if (one->answers()) Call(*one);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::string NewId() {
    std::string id(16, '\0');
    for (char& c : id) c = static_cast<char>(random_());
    return id;
  }

  // As server/control/cluster_service.cc answers: a coordinator that has ended meanwhile says so.
  template <typename Response, typename Answered>
  Coordinator::Reply<Response> IfLeads(const Node& node, Answered answered) {
    return [&node, answered = std::move(answered)](absl::StatusOr<Response> answer) {
      if (node.office->Leads()) answered(answer);
    };
  }

  void Call(Node& node) {
    Coordinator& c = *node.coordinator;
    if (c.view().servers().empty()) {
      v1::JoinServerRequest request;
      request.set_request_id(NewId());
      request.set_name("server");
      request.set_address("server:7000");
      request.set_shards(1);
      return c.JoinServer(request, [](auto) {});
    }
    const std::string name = absl::StrCat("t", random_() % 4);
    switch (random_() % 5) {
      case 0: {
        v1::CreateTableRequest request;
        request.set_request_id(NewId());
        *request.mutable_spec() = TestCoordinator::Spec(name, 64, v1::CONSISTENCY_ASYNC, "job");
        const size_t call = history_.Begin(Kind::kCreate, name);
        return c.CreateTable(request,
                             IfLeads<v1::CreateTableResponse>(node, [this, call](const auto& made) {
                               if (made.ok()) history_.Created(call, made->table().id());
                             }));
      }
      case 1: {
        v1::DropTableRequest request;
        request.set_request_id(NewId());
        request.set_name(name);
        const size_t call = history_.Begin(Kind::kDrop, name);
        return c.DropTable(request,
                           IfLeads<v1::DropTableResponse>(node, [this, call](const auto& dropped) {
                             if (dropped.ok()) history_.Dropped(call, true, dropped->revision());
                             if (absl::IsNotFound(dropped.status()))
                               history_.Dropped(call, false, 0);
                           }));
      }
      case 2: {
        v1::JoinWorkerRequest request;
        request.set_request_id(NewId());
        request.set_job("job");
        request.set_observer(true);
        const size_t call = history_.Begin(Kind::kJoin);
        return c.JoinWorker(request,
                            IfLeads<v1::JoinWorkerResponse>(node, [this, call](const auto& joined) {
                              if (joined.ok()) history_.Joined(call, joined->incarnation());
                            }));
      }
      default: {
        const size_t call = history_.Begin(Kind::kRead);
        return c.GetView({}, IfLeads<v1::GetViewResponse>(node, [this, call](const auto& view) {
                           if (view.ok()) history_.Read(call, view->view());
                         }));
      }
    }
  }

  std::mt19937_64 random_;
  FakeEtcd etcd_;
  std::vector<std::unique_ptr<Node>> nodes_;
  CallHistory history_;
};

TEST_CASE("the answers of elected coordinators are those of one that never fails") {
  Offices offices(1);
  CHECK(offices.Run(5) == "");
  CHECK(offices.calls() > 200);
}

TEST_CASE("the answers show a leader that answers after its end") {
  etcd::failpoints() = etcd::Failpoints();
  etcd::failpoints().stale_read = true;
  std::string found;
  for (uint64_t seed = 1; seed <= 10 && found.empty(); ++seed) found = Offices(seed).Run(6);
  etcd::failpoints() = etcd::Failpoints();
  INFO(found);
  CHECK_FALSE(found.empty());
}

}  // namespace
}  // namespace verbena::server
