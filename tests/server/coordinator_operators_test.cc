// Operators' calls for tables and jobs: each acts on the state that the operator has seen, also if
// workers join meanwhile, and a forgotten job shares nothing with the next one of its name.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "proto/control/view_change.h"
#include "proto/control/view_tables.h"
#include "server/coordinator/failpoints.h"
#include "tests/server/coordinator_fixture.h"

namespace verbena::server {
namespace {

absl::Status Drop(TestCoordinator* c, const std::string& name, bool only_unused) {
  v1::DropTableRequest request;
  request.set_request_id(c->NewId());
  request.set_name(name);
  request.set_only_unused(only_unused);
  return c->Call(&Coordinator::DropTable, request).status();
}

absl::StatusOr<uint32_t> Replace(TestCoordinator* c, const std::string& name, bool only_unused,
                                 const std::string& job = "job") {
  v1::CreateTableRequest request;
  request.set_request_id(c->NewId());
  *request.mutable_spec() = c->Spec(name, 100, v1::CONSISTENCY_ASYNC, job);
  request.set_restoring(true);
  request.set_replace(true);
  request.set_only_unused(only_unused);
  const auto response = c->Call(&Coordinator::CreateTable, request);
  if (!response.ok()) return response.status();
  return response->table().id();
}

absl::Status Finish(TestCoordinator* c, uint32_t id, bool only_unused) {
  v1::FinishRestoreRequest request;
  request.set_request_id(c->NewId());
  request.add_tables(id);
  request.set_only_unused(only_unused);
  return c->Call(&Coordinator::FinishRestore, request).status();
}

absl::Status Forget(TestCoordinator* c, const std::string& job) {
  v1::ForgetJobRequest request;
  request.set_request_id(c->NewId());
  request.set_job(job);
  return c->Call(&Coordinator::ForgetJob, request).status();
}

const v1::Job* JobIn(const v1::ClusterView& view, const std::string& name) {
  for (const v1::Job& job : view.jobs()) {
    if (job.name() == name) return &job;
  }
  return nullptr;
}

TEST_CASE("a worker that joins after an operator has looked keeps its table") {
  TestCoordinator c;
  c.JoinServer("a");
  REQUIRE(c.CreateTable(c.Spec("t", 100, v1::CONSISTENCY_ASYNC)).ok());
  // Observers train nothing; another job's workers have no part in it.
  REQUIRE(c.JoinWorker("job", 1, -1, true).ok());
  REQUIRE(c.JoinWorker("other", 1).ok());
  const uint32_t restored = *Replace(&c, "t", true);
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  const uint64_t before = c.view().revision();
  REQUIRE_STATUS(Drop(&c, "t", true), kFailedPrecondition,
                 "table 't' is used by 1 worker of job 'job', and was not dropped; end them first");
  REQUIRE_STATUS(Finish(&c, restored, true), kFailedPrecondition,
                 "'t' is used by 1 worker of job 'job', and was not replaced");
  CHECK(c.view().revision() == before);
  CHECK(FindTableById(restored, c.view())->restoring());
  // A caller that accepts the workers' loss may replace the table, as may the job itself.
  REQUIRE(Finish(&c, restored, false).ok());
  CHECK(FindTableNamed("t", false, c.view())->id() == restored);
  REQUIRE_STATUS(Replace(&c, "t", true).status(), kFailedPrecondition, "and was not replaced");
  REQUIRE(c.Leave(worker).ok());
  REQUIRE(Finish(&c, *Replace(&c, "t", true), true).ok());
  REQUIRE(Drop(&c, "t", true).ok());
  REQUIRE(c.CreateTable(c.Spec("t", 100, v1::CONSISTENCY_ASYNC)).ok());
  REQUIRE(c.JoinWorker("job", 1).ok());
  REQUIRE(Drop(&c, "t", false).ok());
}

TEST_CASE("a job that has ended is forgotten, and one that has not is kept") {
  TestCoordinator c;
  c.JoinServer("a");
  REQUIRE_STATUS(Forget(&c, "job"), kNotFound, "there is no job 'job'");
  const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
  const uint64_t observer = c.JoinWorker("job", 1, -1, true)->incarnation();
  REQUIRE(c.JoinWorker("kept", 1).ok());
  REQUIRE(c.CreateTable(c.Spec("t", 100, v1::CONSISTENCY_ASYNC)).ok());
  REQUIRE_STATUS(Forget(&c, "job"), kFailedPrecondition, "job 'job' has 2 members");
  REQUIRE(c.Leave(worker).ok());
  REQUIRE_STATUS(Forget(&c, "job"), kFailedPrecondition, "job 'job' has 1 members");
  REQUIRE(c.Leave(observer).ok());
  REQUIRE_STATUS(Forget(&c, "job"), kFailedPrecondition, "job 'job' has tables (t): drop them");
  // Its limits keep it.
  v1::SetJobLimitsRequest limits;
  limits.set_request_id(c.NewId());
  limits.set_job("job");
  limits.mutable_limits()->set_tables(3);
  REQUIRE(c.Call(&Coordinator::SetJobLimits, limits).ok());
  REQUIRE(c.DropTable("t").ok());
  const v1::ClusterView before = c.view();
  REQUIRE(Forget(&c, "job").ok());
  CHECK(JobIn(c.view(), "job") == nullptr);
  CHECK(JobIn(c.view(), "kept") != nullptr);
  CHECK(c.view().revision() == before.revision() + 1);
  // Members get the view whole, or changes that make it.
  if (const auto change = ViewChangeOf(before, c.view())) {
    v1::ClusterView changed = before;
    REQUIRE(ApplyViewChange(*change, &changed));
    CHECK(changed.SerializeAsString() == c.view().SerializeAsString());
  }
  REQUIRE_STATUS(Forget(&c, "job"), kNotFound, "there is no job 'job'");
  c.Restart();
  CHECK(JobIn(c.view(), "job") == nullptr);
}

TEST_CASE("no two runs of a name have one generation, though the job has left the view between") {
  TestCoordinator c;
  c.JoinServer("a");
  std::vector<uint32_t> generations;
  for (int i = 0; i < 4; ++i) {
    const uint64_t worker = c.JoinWorker("job", 1)->incarnation();
    generations.push_back(JobIn(c.view(), "job")->generation());
    REQUIRE(c.Leave(worker).ok());
    if (i == 1) c.Restart();
  }
  INFO(generations[0] << " " << generations[1] << " " << generations[2] << " " << generations[3]);
  for (size_t i = 1; i < generations.size(); ++i) CHECK(generations[i] > generations[i - 1]);
}

TEST_CASE("a table whose rows go to disk needs servers with one") {
  TestCoordinator c;
  const auto join = [&](const std::string& name, bool cold) {
    v1::JoinServerRequest request = c.ServerRequest(name);
    request.set_cold_tier(cold);
    return c.Call(&Coordinator::JoinServer, request)->incarnation();
  };
  v1::TableSpec spec = c.Spec("t", 1, v1::CONSISTENCY_ASYNC);
  spec.clear_shape();
  spec.set_dim(8);
  spec.mutable_cold_tier()->set_hot_bytes(1 << 20);
  join("a", true);
  const uint64_t bare = join("b", false);
  join("c", false);
  REQUIRE_STATUS(
      c.CreateTable(spec).status(), kFailedPrecondition,
      "cold_tier.hot_bytes is 1048576, but these servers have no --cold-dir: b, c; start "
      "them with --cold-dir DIR, or leave hot_bytes 0");
  REQUIRE(c.Leave(bare).ok());
  join("c", true);
  REQUIRE(c.CreateTable(spec).ok());
}

bool HasWorkers(const v1::ClusterView& view, const std::string& job) {
  const v1::Job* found = JobIn(view, job);
  return found != nullptr &&
         std::any_of(found->members().begin(), found->members().end(),
                     [](const v1::Worker& worker) { return worker.rank() >= 0; });
}

// Random calls of operators, jobs and servers, each compared with the rules for the view before it.
// Returns the first violation; empty: none.
std::string RandomCalls(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return random() % n; };
  TestCoordinator c;
  c.JoinServer("a");
  std::map<std::string, uint32_t> generations;  // by job, the greatest that it has had
  for (int i = 0; i < 300; ++i) {
    const v1::ClusterView before = c.view();
    const std::string job = pick(2) == 0 ? "x" : "y", name = job + std::to_string(pick(2));
    const v1::Table* served = FindTableNamed(name, false, before);
    const bool used = HasWorkers(before, job), only_unused = pick(2) == 0;
    switch (pick(9)) {
      case 0:
      case 1: {
        const bool observer = pick(4) == 0;
        if (!c.JoinWorker(job, 2, -1, observer).ok()) break;
        const uint32_t generation = JobIn(c.view(), job)->generation();
        if (JobIn(before, job) == nullptr && generation <= generations[job]) {
          return "a job that was forgotten has the generation of a former run";
        }
        generations[job] = std::max(generations[job], generation);
        break;
      }
      case 2:
      case 3:
        if (const v1::Job* known = JobIn(before, job);
            known != nullptr && known->members_size() > 0) {
          (void)c.Leave(known->members(0).incarnation());
        }
        break;
      case 4: {
        v1::TableSpec spec = c.Spec(name, 10, v1::CONSISTENCY_ASYNC, job);
        const bool cold = pick(3) == 0;
        if (cold) {
          spec.clear_shape();
          spec.set_dim(8);
          spec.mutable_cold_tier()->set_hot_bytes(1 << 20);
        }
        const bool disks = std::all_of(
            before.servers().begin(), before.servers().end(), [](const v1::Server& server) {
              return server.cold_tier() || server.state() != v1::Server::ALIVE;
            });
        if (c.CreateTable(spec).ok() && cold && !disks && served == nullptr) {
          return "a table was made whose rows have no disk";
        }
        break;
      }
      case 5:
        if (Drop(&c, name, only_unused).ok() && served != nullptr && used && only_unused) {
          return "a table was dropped under its workers";
        }
        break;
      case 6: {
        const absl::StatusOr<uint32_t> made = Replace(&c, name, only_unused, job);
        if (made.ok() && served != nullptr && used && only_unused) {
          return "a table was to be replaced under its workers";
        }
        if (!made.ok()) break;
        if (pick(2) == 0) (void)c.JoinWorker(job, 2);
        const bool trained = HasWorkers(c.view(), job);
        if (Finish(&c, *made, only_unused).ok()) {
          if (served != nullptr && trained && only_unused)
            return "a table was replaced under its workers";
        } else {
          v1::DropTableRequest given_up;
          given_up.set_request_id(c.NewId());
          given_up.set_id(*made);
          if (!c.Call(&Coordinator::DropTable, given_up).ok())
            return "a restore cannot be given up";
        }
        break;
      }
      case 7: {
        const v1::Job* known = JobIn(before, job);
        const bool tables = std::any_of(before.tables().begin(), before.tables().end(),
                                        [&](const v1::Table& t) { return t.spec().job() == job; });
        const bool ended = known != nullptr && known->members_size() == 0 && !tables;
        if (Forget(&c, job).ok() != ended) return "forgotten, or not, against the rule";
        if (ended && JobIn(c.view(), job) != nullptr) return "a forgotten job is still there";
        break;
      }
      default: {
        v1::JoinServerRequest server = c.ServerRequest("b" + std::to_string(pick(2)));
        server.set_cold_tier(pick(3) != 0);
        (void)c.Call(&Coordinator::JoinServer, server);
        if (pick(4) == 0) c.Restart();
      }
    }
    if (const auto change = ViewChangeOf(before, c.view())) {
      v1::ClusterView changed = before;
      if (!ApplyViewChange(*change, &changed) ||
          changed.SerializeAsString() != c.view().SerializeAsString()) {
        return "a change of the view does not make it";
      }
    }
  }
  return "";
}

TEST_CASE("random calls of operators keep the rules of the view, and each failpoint is found") {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    CHECK(RandomCalls(seed).empty());
  }
  Failpoints& bugs = failpoints();
  for (Failpoint* bug : {&bugs.drop_used, &bugs.reuse_generations, &bugs.cold_tier_anywhere}) {
    *bug = true;
    std::string found;
    for (uint32_t seed = 1; seed <= 20 && found.empty(); ++seed) found = RandomCalls(seed);
    *bug = false;
    CHECK(!found.empty());
  }
}

}  // namespace
}  // namespace verbena::server
