// Random coordinators, leaders and faults on one fake etcd, compared with a model at each leader.
#include <random>

#include "server/coordinator/coordinator.h"
#include "server/coordinator/etcd/failpoints.h"
#include "tests/server/coordinator_fixture.h"
#include "tests/server/etcd/call_history.h"
#include "tests/server/etcd/checked_store.h"

namespace verbena::server {
namespace {

using Fault = FakeEtcd::Fault;
using test::CallHistory;
using Kind = test::RecordedCall::Kind;

// A leader with its own view of the world; it may be a former one.
struct Leader {
  std::unique_ptr<EtcdClient> client;
  std::unique_ptr<CheckedStore> store;
  std::unique_ptr<Coordinator> coordinator;  // null: it could not take office
};

class Scenario {
 public:
  explicit Scenario(uint64_t seed) : random_(seed) {}

  // The violation that was found in the stored state; empty: none. `past_it`: it goes on after one,
  // until callers see the consequences.
  std::string Run(int steps, bool past_it = false) {
    for (int step = 0; step < steps && (past_it || world_.wrong.empty()); ++step) {
      SetFaults();
      if (leaders_.empty() || Chance(8) || !leaders_.back().store->inner().status().ok() ||
          leaders_.back().coordinator == nullptr) {
        Elect();
      } else if (Chance(5) && leaders_.size() > 1) {
        // A former leader that does not know it.
        Work(leaders_[random_() % leaders_.size()]);
      } else {
        Work(leaders_.back());
      }
      if (Chance(4)) world_.etcd.ApplyLate(random_());
      if (Chance(20)) world_.etcd.Compact();
    }
    world_.etcd.SetFaults({});
    while (world_.wrong.empty() && world_.etcd.ApplyLate(random_())) {
    }
    if (world_.wrong.empty()) Elect(absl::Seconds(10));
    if (world_.wrong.empty() && leaders_.back().coordinator == nullptr)
      world_.Violated("there is no last leader");
    return world_.wrong;
  }
  // The first violation in the answers that callers got; empty: none.
  std::string Answers() const { return Violation(history_.calls()); }
  int saves = 0, staged = 0, in_doubt = 0;

 private:
  bool Chance(int in) { return random_() % static_cast<uint64_t>(in) == 0; }

  void SetFaults() {
    if (Chance(3)) return world_.etcd.SetFaults({});
    // Some steps fail at almost every request, so that saves end in doubt.
    const uint64_t in = Chance(6) ? 1 : 2 + random_() % 20;
    world_.etcd.SetFaults(
        FakeEtcd::RandomFaults(random_(), in,
                               {Fault::kLost, Fault::kAnswerLost, Fault::kLate, Fault::kTooMany,
                                Fault::kNoLeader, Fault::kNoSpace}));
  }

  void Elect(absl::Duration longest = absl::Milliseconds(15)) {
    if (!leaders_.empty()) {
      staged += static_cast<int>(leaders_.back().store->inner().staged_saves());
      if (!leaders_.back().store->inner().status().ok()) ++in_doubt;
    }
    Leader leader;
    leader.client = *EtcdClient::Create(world_.etcd.Options());
    const EtcdLimits limits{
        .operations = 3 + random_() % 8, .bytes = 300 + random_() % 3000, .longest = longest};
    leader.store = std::make_unique<CheckedStore>(&world_, leader.client.get(), limits);
    CoordinatorOptions options;
    options.partitions = 8;
    options.cluster_id = "random";
    options.tokens = true;
    options.operator_token.set_id("operator");
    options.random = [this] { return random_(); };
    auto created = Coordinator::Create(options, &clock_, leader.store.get());
    if (created.ok()) {
      leader.coordinator = *std::move(created);
      for (const v1::Server& server : leader.coordinator->view().servers()) {
        v1::HeartbeatRequest request;
        request.set_incarnation(server.incarnation());
        *request.mutable_seen() = SeenOf(leader.coordinator->view());
        request.set_server(true);
        leader.coordinator->Heartbeat(request, [](auto) {});
      }
    }
    leaders_.push_back(std::move(leader));
    if (leaders_.size() > 3) leaders_.erase(leaders_.begin());
  }

  void Work(Leader& leader) {
    if (leader.coordinator == nullptr) return;
    const bool group = Chance(3);
    if (group) leader.coordinator->BeginGroup();
    for (int call = group ? 12 : 1; call > 0; --call) Call(leader);
    leader.coordinator->EndGroup();
    ++saves;
  }

  std::string NewId() {
    std::string id(16, '\0');
    for (char& c : id) c = static_cast<char>(random_());
    return id;
  }

  // Of few calls: one without an answer explains much of what later ones see.
  std::string TableName() { return absl::StrCat("t", calls_ / 40, "-", random_() % 5); }

  // What a call's answer says if it is an error. A store that has an error ends the leadership:
  // whether its last change was saved may not be known.
  void Failed(size_t call, const CheckedStore* store) {
    if (store->inner().status().ok()) history_.Refused(call);
  }
  // Whether an answer reaches the caller. The clock of a former leader has ended its leadership,
  // so it gives no answer that does not depend on a write.
  bool Arrives(const Leader& leader) const {
    return &leader == &leaders_.back() || leader.coordinator->answers_change();
  }

  void Call(Leader& leader) {
    Coordinator& c = *leader.coordinator;
    const CheckedStore* const store = leader.store.get();
    ++calls_;
    const std::string name(1, static_cast<char>('a' + random_() % 5));
    switch (random_() % 9) {
      case 0: {
        v1::JoinServerRequest request;
        request.set_request_id(NewId());
        request.set_name(name);
        request.set_address(name + ":7000");
        request.set_shards(1);
        return c.JoinServer(request, [](auto) {});
      }
      case 1: {
        v1::JoinWorkerRequest request;
        request.set_request_id(NewId());
        request.set_job("job" + name);
        request.set_observer(true);
        const size_t call = history_.Begin(Kind::kJoin);
        return c.JoinWorker(request, [this, call, store, &leader](
                                         const absl::StatusOr<v1::JoinWorkerResponse>& answer) {
          if (!Arrives(leader)) return;
          answer.ok() ? history_.Joined(call, answer->incarnation()) : Failed(call, store);
        });
      }
      case 2:
      case 3: {
        v1::CreateTableRequest request;
        request.set_request_id(NewId());
        *request.mutable_spec() =
            TestCoordinator::Spec(TableName(), 64, v1::CONSISTENCY_ASYNC, "job" + name);
        const size_t call = history_.Begin(Kind::kCreate, request.spec().name());
        return c.CreateTable(request, [this, call, store, &leader](
                                          const absl::StatusOr<v1::CreateTableResponse>& answer) {
          if (!Arrives(leader)) return;
          answer.ok() ? history_.Created(call, answer->table().id()) : Failed(call, store);
        });
      }
      case 4: {
        v1::DropTableRequest request;
        request.set_request_id(NewId());
        request.set_name(TableName());
        const size_t call = history_.Begin(Kind::kDrop, request.name());
        return c.DropTable(request, [this, call, store,
                                     &leader](const absl::StatusOr<v1::DropTableResponse>& answer) {
          if (!Arrives(leader)) return;
          if (answer.ok()) return history_.Dropped(call, true, answer->revision());
          if (absl::IsNotFound(answer.status())) return history_.Dropped(call, false, 0);
          Failed(call, store);
        });
      }
      case 6:
      case 7: {
        const size_t call = history_.Begin(Kind::kRead);
        return c.GetView({},
                         [this, call, &leader](const absl::StatusOr<v1::GetViewResponse>& answer) {
                           if (answer.ok() && Arrives(leader)) history_.Read(call, answer->view());
                         });
      }
      case 5: {
        v1::LeaveRequest request;
        request.set_request_id(NewId());
        if (c.view().jobs().empty()) return;
        const v1::Job& job = c.view().jobs(
            static_cast<int>(random_() % static_cast<uint64_t>(c.view().jobs_size())));
        if (job.members().empty()) return;
        request.set_incarnation(job.members(0).incarnation());
        return c.Leave(request, [](auto) {});
      }
      default: {
        v1::CreateTokenRequest request;
        request.set_request_id(NewId());
        request.set_id(absl::StrCat(absl::Hex(random_() & 0xffffffffffff, absl::kZeroPad12)));
        request.set_role(v1::ROLE_JOB);
        request.set_job("job" + name);
        request.set_hash(std::string(32, 'h'));
        return c.CreateToken(request, [](auto) {});
      }
    }
  }

  std::mt19937_64 random_;
  ManualClock clock_;
  StoreWorld world_;
  CallHistory history_;
  int calls_ = 0;
  std::vector<Leader> leaders_;  // the last one is the leader
};

// The first seed of these that finds a violation, in the stored state or in the answers; 0: none.
uint64_t FirstFound(uint64_t seeds, int steps, bool in_answers) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    Scenario scenario(seed);
    const std::string stored = scenario.Run(steps, in_answers);
    if (!(in_answers ? scenario.Answers() : stored).empty()) return seed;
  }
  return 0;
}

TEST_CASE(
    "random leaders and faults: each save is there as a whole or not at all, and one leader "
    "writes") {
  int saves = 0, staged = 0, in_doubt = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    Scenario scenario(seed);
    const std::string wrong = scenario.Run(80);
    INFO("seed " << seed << ": " << wrong);
    REQUIRE(wrong.empty());
    REQUIRE(scenario.Answers() == "");
    saves += scenario.saves;
    staged += scenario.staged;
    in_doubt += scenario.in_doubt;
  }
  INFO(saves << " saves, " << staged << " staged, " << in_doubt << " in doubt");
  CHECK(saves > 200);
  CHECK(staged > 100);
  CHECK(in_doubt > 20);
}

TEST_CASE(
    "random seeds find leaders that write at once, guessed outcomes and entries written too "
    "early") {
  auto& points = etcd::failpoints();
  for (Failpoint* point :
       {&points.two_leaders_write, &points.unknown_is_failed, &points.entries_before_all}) {
    points = etcd::Failpoints();
    *point = true;
    CHECK(FirstFound(60, 80, false) != 0);
    CHECK(point->reached());
  }
  points = etcd::Failpoints();
}

TEST_CASE("the answers that callers get show leaders that write at once and guessed outcomes") {
  auto& points = etcd::failpoints();
  for (Failpoint* point : {&points.two_leaders_write, &points.unknown_is_failed}) {
    points = etcd::Failpoints();
    *point = true;
    CHECK(FirstFound(60, 80, true) != 0);
    CHECK(point->reached());
  }
  points = etcd::Failpoints();
}

}  // namespace
}  // namespace verbena::server
