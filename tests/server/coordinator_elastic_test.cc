// Workers that join, leave and are replaced in a run of an elastic job.
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/control/view_change.h"
#include "proto/control/view_difference.h"
#include "proto/control/view_tables.h"
#include "server/coordinator/jobs.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

absl::StatusOr<v1::JoinWorkerResponse> Join(TestCoordinator* c, uint32_t expected, uint32_t most,
                                            int rank = -1) {
  v1::JoinWorkerRequest request = c->WorkerRequest("job", expected, rank);
  request.set_max_workers(most);
  return c->Call(&Coordinator::JoinWorker, request);
}

// A worker holds so many steps of each table, by id.
absl::Status Admit(TestCoordinator* c, uint64_t worker, uint32_t admission,
                   const std::map<uint32_t, uint64_t>& held,
                   const std::map<uint32_t, uint64_t>& committed = {}) {
  v1::AdmitMembersRequest request;
  request.set_request_id(c->NewId());
  request.set_incarnation(worker);
  request.set_admission(admission);
  for (const auto& [table, step] : held) {
    v1::HeldSteps* steps = request.add_tables();
    steps->set_table(table);
    steps->set_first_held(step);
    if (const auto it = committed.find(table); it != committed.end()) {
      steps->set_committed(it->second);
    }
  }
  return c->Call(&Coordinator::AdmitMembers, request).status();
}

const v1::Worker& MemberOf(const TestCoordinator& c, uint64_t incarnation) {
  const v1::Worker* member = FindMember(incarnation, c.Job("job"));
  REQUIRE(member != nullptr);
  return *member;
}

uint64_t First(const TestCoordinator& c, uint64_t incarnation, uint32_t table) {
  const v1::FirstStep* first = FirstStepOf(table, MemberOf(c, incarnation), c.Job("job"));
  return first == nullptr ? 0 : first->step();
}

TEST_CASE("a worker joins a run of an elastic job at a step that none has begun") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 2, 3)->incarnation();
  const uint32_t table = c.CreateTable(c.Spec("t", 64))->id();
  const uint32_t async = c.CreateTable(c.Spec("a", 64, v1::CONSISTENCY_ASYNC))->id();
  REQUIRE(Join(&c, 2, 3)->rank() == 1);  // expected: all steps wait for it
  const auto joining = Join(&c, 2, 3);
  REQUIRE(joining.ok());
  CHECK(joining->rank() == -1);
  CHECK(MemberOf(c, joining->incarnation()).joining());
  c.Restart();
  CHECK(MemberOf(c, joining->incarnation()).joining());
  REQUIRE(Admit(&c, w0, 0, {{table, 7}}, {{table, 5}}).ok());
  const v1::Worker& member = MemberOf(c, joining->incarnation());
  CHECK(member.rank() == 2);
  CHECK_FALSE(member.joining());
  CHECK(First(c, joining->incarnation(), table) == 8);
  CHECK(First(c, joining->incarnation(), async) == 0);
  CHECK(First(c, w0, table) == 0);
  CHECK(c.Job("job").admission() == 1);
  REQUIRE_STATUS(Join(&c, 2, 3).status(), kAlreadyExists, "has 3 workers already");
  c.Restart();
  CHECK(First(c, joining->incarnation(), table) == 8);
}

TEST_CASE("a decision takes effect once, and an answer to an earlier one never") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 4)->incarnation();
  const uint32_t table = c.CreateTable(c.Spec("t", 64))->id();
  const uint64_t w1 = Join(&c, 1, 4)->incarnation();
  REQUIRE(Admit(&c, w0, 0, {{table, 3}}).ok());
  const uint64_t w2 = Join(&c, 1, 4)->incarnation();
  REQUIRE(Admit(&c, w0, 0, {{table, 3}}).ok());  // late
  CHECK(MemberOf(c, w2).joining());
  CHECK(First(c, w1, table) == 4);
  // Without anyone who joins it is a decision, too: its sender may go on.
  REQUIRE(c.Leave(w2).ok());
  REQUIRE(Admit(&c, w1, 1, {{table, 9}}).ok());
  CHECK(c.Job("job").admission() == 2);
  CHECK(c.Job("job").admissions_size() == 1);
  // Only a worker of the run decides.
  const uint64_t w3 = Join(&c, 1, 4)->incarnation();
  CHECK(Admit(&c, w3, 2, {{table, 9}}).code() == absl::StatusCode::kFailedPrecondition);
  CHECK(Admit(&c, 999, 2, {{table, 9}}).code() == absl::StatusCode::kFailedPrecondition);
  REQUIRE(c.Leave(w0).ok());
  CHECK(Admit(&c, w0, 2, {{table, 9}}).code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("a rank is used again with a first step, and a killed worker's too") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 2, 2)->incarnation();
  const uint64_t w1 = Join(&c, 2, 2)->incarnation();
  const uint32_t table = c.CreateTable(c.Spec("t", 64))->id();
  REQUIRE(c.Leave(w1).ok());
  CHECK(c.Job("job").departed_ranks_size() == 1);
  REQUIRE_STATUS(Join(&c, 2, 2, 1).status(), kFailedPrecondition, "the job is elastic");
  const uint64_t w2 = Join(&c, 2, 2)->incarnation();
  REQUIRE(Admit(&c, w0, 0, {{table, 5}}).ok());
  CHECK(MemberOf(c, w2).rank() == 1);
  CHECK(First(c, w2, table) == 6);
  CHECK(c.Job("job").departed_ranks().empty());
  // Its first step is known until it is committed.
  const uint64_t w2_left = w2;
  REQUIRE(c.Leave(w2_left).ok());
  const uint64_t w3 = Join(&c, 2, 2)->incarnation();
  REQUIRE(Admit(&c, w0, 1, {{table, 7}}, {{table, 6}}).ok());
  CHECK(First(c, w3, table) == 8);
  CHECK(c.Job("job").admissions_size() == 1);  // that of w2 is gone with it
  const uint64_t w4 = Join(&c, 2, 2).ok() ? 1 : 0;
  CHECK(w4 == 0);  // max_workers
  REQUIRE(Admit(&c, w0, 2, {{table, 20}}, {{table, 8}}).ok());
  CHECK(First(c, w3, table) == 8);
  REQUIRE(Admit(&c, w0, 3, {{table, 20}}, {{table, 9}}).ok());
  CHECK(c.Job("job").admissions().empty());
}

TEST_CASE("regression: first steps of tables that are not trained go with their workers") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 4)->incarnation();
  std::map<uint32_t, uint64_t> held;
  for (int i = 0; i < 20; ++i) {
    held[c.CreateTable(c.Spec(absl::StrCat("t", i), 64))->id()] = 0;
  }
  std::vector<uint64_t> joined;
  for (uint32_t i = 0; i < 3; ++i) {
    joined.push_back(Join(&c, 1, 4)->incarnation());
    REQUIRE(Admit(&c, w0, i, held).ok());
  }
  REQUIRE(c.Job("job").admissions_size() == 3);
  REQUIRE(c.Leave(joined[1]).ok());
  REQUIRE(c.Job("job").admissions_size() == 2);
  CHECK(First(c, joined[2], held.begin()->first) == 1);
  REQUIRE(c.Leave(joined[0]).ok());
  REQUIRE(c.Leave(joined[2]).ok());
  CHECK(c.Job("job").admissions_size() == 0);
}

TEST_CASE("tables of one iteration have one first step, and others their own") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 2)->incarnation();
  std::vector<uint32_t> tables;
  for (const char* name : {"t", "u", "v", "w"}) {
    tables.push_back(c.CreateTable(c.Spec(name, 64))->id());
  }
  const uint64_t w1 = Join(&c, 1, 2)->incarnation();
  REQUIRE(Admit(&c, w0, 0, {{tables[0], 11}, {tables[1], 10}, {tables[2], 4}}).ok());
  CHECK(First(c, w1, tables[0]) == 12);
  CHECK(First(c, w1, tables[1]) == 12);
  CHECK(First(c, w1, tables[2]) == 5);
  CHECK(First(c, w1, tables[3]) == 0);  // not named: nothing of it was sent, and all begin with 0
}

// The table that a worker creates which has ended so many steps.
uint32_t CreateAfter(TestCoordinator* c, const char* name, uint64_t ended) {
  v1::CreateTableRequest request;
  request.set_request_id(c->NewId());
  *request.mutable_spec() = c->Spec(name, 64);
  request.set_ended_steps(ended);
  const auto created = c->Call(&Coordinator::CreateTable, request);
  REQUIRE(created.ok());
  return created->table().id();
}

TEST_CASE("regression: tables that are created around a join have one first step") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 2)->incarnation();
  const auto create = [&c](const char* name, uint64_t ended) {
    return CreateAfter(&c, name, ended);
  };
  const uint32_t before = create("before", 0);
  const uint64_t w1 = Join(&c, 1, 2)->incarnation();
  const uint32_t meanwhile = create("meanwhile", 1);
  REQUIRE(Admit(&c, w0, 0, {{before, 2}}, {{before, 1}}).ok());
  const uint32_t after = create("after", 1);
  for (const uint32_t table : {before, meanwhile, after}) CHECK(First(c, w1, table) == 3);
  c.Restart();
  CHECK(First(c, w1, after) == 3);
  // Created in the midst of training: all begin with its step 0.
  CHECK(First(c, w1, create("late", 2)) == 0);
}

TEST_CASE("a table that is created in the midst of training has no first step of other tables") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 2)->incarnation();
  const auto create = [&c](const char* name, uint64_t ended) {
    return CreateAfter(&c, name, ended);
  };
  const uint32_t before = create("before", 0);
  const uint64_t w1 = Join(&c, 1, 2)->incarnation();
  SECTION("between the request of the worker that is asked and the decision") {
    const uint32_t late = create("late", 100);
    REQUIRE(Admit(&c, w0, 0, {{before, 101}}, {{before, 100}}).ok());
    CHECK(First(c, w1, before) == 102);
    CHECK(First(c, w1, late) <= 1);
  }
  SECTION("by the worker that has joined, which has ended no step itself") {
    REQUIRE(Admit(&c, w0, 0, {{before, 101}}, {{before, 100}}).ok());
    const uint32_t late = create("late", 0);
    CHECK(First(c, w1, late) <= 1);
  }
}

TEST_CASE("regression: tables with one norm have one first step, also where one is pushed ahead") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 2)->incarnation();
  std::vector<uint32_t> tables;
  for (const char* name : {"t", "u", "v"}) {
    v1::TableSpec spec = c.Spec(name, 64);
    if (name[0] != 'v') spec.mutable_optimizer()->set_clip_global_norm(1);
    tables.push_back(c.CreateTable(spec)->id());
  }
  const uint64_t w1 = Join(&c, 1, 2)->incarnation();
  // Step 10 of u has no end yet; step 11 of t is ended, and 12 pushed to.
  const uint64_t other = GENERATE(4, 12, 13, 40);
  REQUIRE(Admit(&c, w0, 0, {{tables[0], 12}, {tables[1], 10}, {tables[2], other}}).ok());
  CHECK(First(c, w1, tables[0]) >= 13);
  CHECK(First(c, w1, tables[1]) == First(c, w1, tables[0]));
}

TEST_CASE("regression: an operator's table in the midst of training begins with step 0 for all") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 3)->incarnation();
  const uint32_t first = c.CreateTable(c.Spec("first", 64))->id();
  const uint64_t w1 = Join(&c, 1, 3)->incarnation();
  REQUIRE(Admit(&c, w0, 0, {{first, 1}}).ok());
  // Perhaps before the first iteration.
  const uint32_t early = c.CreateTable(c.Spec("early", 64))->id();
  CHECK(First(c, w1, first) == 2);
  CHECK(First(c, w1, early) == 2);
  const uint64_t w2 = Join(&c, 1, 3)->incarnation();
  REQUIRE(Admit(&c, w0, 1, {{first, 300}, {early, 300}}).ok());
  const uint32_t late = c.CreateTable(c.Spec("late", 64))->id();
  CHECK(First(c, w2, first) == 301);
  CHECK(First(c, w2, late) == 0);
  CHECK(First(c, w1, late) == 0);
}

TEST_CASE("workers that join begin the next run if all others are gone") {
  TestCoordinator c;
  c.JoinServer("a");
  const uint64_t w0 = Join(&c, 1, 3)->incarnation();
  c.CreateTable(c.Spec("t", 64)).value();
  const uint64_t w1 = Join(&c, 1, 3)->incarnation(), w2 = Join(&c, 1, 3)->incarnation();
  const uint32_t generation = c.Job("job").generation();
  REQUIRE(c.Leave(w0).ok());
  CHECK(c.Job("job").generation() == generation + 1);
  CHECK(MemberOf(c, w1).rank() == 0);
  CHECK(MemberOf(c, w2).joining());  // expected_workers is 1: it joins the new run
  REQUIRE(Admit(&c, w1, c.Job("job").admission(), {}).ok());
  CHECK(MemberOf(c, w2).rank() == 1);
}

TEST_CASE("max_workers is checked, and equal for all workers of a job") {
  TestCoordinator c;
  REQUIRE_STATUS(Join(&c, 3, 2).status(), kInvalidArgument, "max_workers of job 'job' is 2");
  REQUIRE_STATUS(Join(&c, 3, kMaxWorkers + 1).status(), kInvalidArgument, "max_workers");
  REQUIRE(Join(&c, 2, 4).ok());
  REQUIRE_STATUS(Join(&c, 2, 5).status(), kInvalidArgument, "was started with 4");
  REQUIRE_STATUS(Join(&c, 2, 0).status(), kInvalidArgument, "was started with 4");
  c.JoinServer("a");
  // Servers keep entries for all workers that may come.
  v1::TableSpec spec = c.Spec("t", 64 * 1024);
  REQUIRE(c.CreateTable(spec).ok());
  REQUIRE_STATUS(c.JoinWorker("other", 1).status(), kOk, "");
  v1::JoinWorkerRequest big = c.WorkerRequest("big", 1);
  big.set_max_workers(kMaxWorkers);
  REQUIRE(c.Call(&Coordinator::JoinWorker, big).ok());
  spec.set_name("u");
  spec.set_job("big");
  spec.set_shape(0, 64 * 2048);
  REQUIRE_STATUS(c.CreateTable(spec).status(), kResourceExhausted, "65536 workers");
}

// Whatever comes: ranks are unique and below max_workers, every worker of a run was there from the
// start or has a first step beyond what was held, and followers of changes have the same view.
TEST_CASE("random joins, ends and decisions of an elastic job") {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](size_t most) { return random() % most; };
    TestCoordinator c;
    c.JoinServer("a");
    const uint32_t most = 2 + static_cast<uint32_t>(below(4));
    std::vector<uint64_t> alive = {Join(&c, 1, most)->incarnation()};
    const uint32_t table = c.CreateTable(c.Spec("t", 64))->id();
    std::map<uint64_t, uint64_t> firsts;  // of those that joined a run
    uint64_t step = 0;
    for (int turn = 0; turn < 120; ++turn) {
      const v1::ClusterView before = c.view();
      switch (below(5)) {
        case 0:
        case 1:
          if (const auto joined = Join(&c, 1, most); joined.ok()) {
            alive.push_back(joined->incarnation());
          }
          break;
        case 2:
          if (alive.size() > 1) {
            const auto gone = alive.begin() + static_cast<std::ptrdiff_t>(below(alive.size()));
            REQUIRE(c.Leave(*gone).ok());
            alive.erase(gone);
          }
          break;
        case 3: {
          step += below(4);
          const v1::Job job = c.Job("job");
          for (const v1::Worker& member : job.members()) {
            if (member.rank() < 0) continue;
            const uint32_t named = job.admission() - (job.admission() > 0 ? below(2) : 0);
            REQUIRE(
                Admit(&c, member.incarnation(), named, {{table, step + 2}}, {{table, step}}).ok());
            for (const v1::Worker& now : c.Job("job").members()) {
              const v1::Worker* then = FindMember(now.incarnation(), job);
              if (now.rank() < 0 || then->rank() >= 0) continue;
              REQUIRE(named == job.admission());
              REQUIRE(First(c, now.incarnation(), table) == step + 3);
            }
            break;
          }
          break;
        }
        default:
          c.Restart();
      }
      const v1::Job& job = c.Job("job");
      std::set<int> ranks;
      bool works = false;
      for (const v1::Worker& member : job.members()) {
        if (member.rank() < 0) continue;
        works = true;
        REQUIRE(ranks.insert(member.rank()).second);
        REQUIRE(member.rank() < static_cast<int>(most));
      }
      REQUIRE(works);
      REQUIRE(job.members_size() <= static_cast<int>(most));
      if (const auto change = ViewChangeOf(before, c.view())) {
        v1::ClusterView followed = before;
        REQUIRE(ApplyViewChange(*change, &followed));
        REQUIRE(followed.SerializeAsString() == c.view().SerializeAsString());
      }
    }
  }
}

}  // namespace
}  // namespace verbena::server
