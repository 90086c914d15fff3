// Steps of sync tables of an elastic job: workers that join a run count from their first step on.
#include <catch2/catch.hpp>
#include <vector>

#include "proto/spec/optimizer_values.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;
using Workers = std::vector<uint64_t>;

constexpr uint64_t kJoined = 3000;

class Elastic : public Fixture {
 public:
  Elastic(uint32_t workers, uint32_t most, v1::Consistency consistency = v1::CONSISTENCY_SYNC)
      : Fixture(Options(workers, consistency)) {
    job()->set_max_workers(most);
    applied = Apply();
  }

  // As a decision of the coordinator.
  void Admit(uint64_t incarnation, uint32_t rank, uint64_t first) {
    job()->set_admission(job()->admission() + 1);
    v1::MemberAdmission* admission = job()->add_admissions();
    admission->set_number(job()->admission());
    v1::FirstStep* step = admission->add_first_steps();
    step->set_table(kTable);
    step->set_step(first);
    v1::Worker* member = job()->add_members();
    member->set_incarnation(incarnation);
    member->set_rank(static_cast<int>(rank));
    member->set_admission(job()->admission());
    std::vector<int> departed(job()->departed_ranks().begin(), job()->departed_ranks().end());
    std::erase(departed, static_cast<int>(rank));
    job()->mutable_departed_ranks()->Assign(departed.begin(), departed.end());
    applied = Apply();
  }
  PushOutcome PushBy(uint64_t worker, uint64_t step, float value, uint32_t admission = 0) {
    PushRequest request = PushOf(worker, 0, step, Filled(elements(0), value), 7);
    request.group.admission = admission;
    return engine->Push(request);
  }
  Status AwaitBy(uint64_t worker, uint64_t version, uint32_t admission = 0) {
    groups = {GroupOf(0, 0)};
    groups[0].admission = admission;
    const GroupsOutcome outcome = engine->Await({{7, 0, 0}, worker, kTable, groups, version, true});
    return outcome.answer.status;
  }

 private:
  static FixtureOptions Options(uint32_t workers, v1::Consistency consistency) {
    FixtureOptions o;
    o.workers = workers;
    o.consistency = consistency;
    o.reduction = v1::REDUCTION_MEAN;
    return o;
  }
};

TEST_CASE("elastic: a step waits for a worker from its first step on") {
  Elastic f(2, 3);
  f.Push(0, 0, 0, 2);
  f.Admit(kJoined, 2, 2);
  f.Push(1, 0, 0, 4);
  CHECK(f.Read(0) == Filled(16, -3));
  CHECK(f.PushBy(kJoined, 1, 100).answer.status == Status::kWrongStep);
  f.Push(0, 0, 1, 2);
  f.Push(1, 0, 1, 4);
  CHECK(f.Read(0) == Filled(16, -6));
  f.Push(0, 0, 2, 1);
  f.Push(1, 0, 2, 2);
  CHECK(f.Version(0) == 2);
  CHECK(f.PushBy(kJoined, 2, 6).answer.version == 3);
  CHECK(f.Read(0) == Filled(16, -9));
  CHECK(f.commits.back().contributors == Workers{1000, 1001, kJoined});
  CHECK(f.commits.back().divisor == 3);
  CHECK(f.commits.front().divisor == 2);
}

TEST_CASE("elastic: a rank that is used again keeps the former worker's contributions") {
  Elastic f(3, 3);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 2);
  f.Depart(1);
  f.Admit(kJoined, 1, 2);
  f.Push(2, 0, 0, 3);
  CHECK(f.commits.back().contributors == Workers{1000, 1001, 1002});
  CHECK(f.commits.back().divisor == 3);
  f.Push(0, 0, 1, 2);
  f.Push(2, 0, 1, 2);
  CHECK(f.commits.back().contributors == Workers{1000, 1002});
  CHECK(f.commits.back().divisor == 2);
  f.Push(0, 0, 2, 3);
  CHECK(f.PushBy(kJoined, 2, 3).answer.status == Status::kOk);
  f.Push(2, 0, 2, 3);
  CHECK(f.commits.back().contributors == Workers{1000, kJoined, 1002});
  CHECK(f.Read(0) == Filled(16, -2 - 2 - 3));
}

TEST_CASE("elastic: a record of a newer view than the shard's waits for it") {
  Elastic f(2, 3);
  CHECK(f.PushBy(1000, 0, 2, 1).answer.status == Status::kNotReady);
  CHECK(f.AwaitBy(1000, 0, 1) == Status::kNotReady);
  f.group = f.GroupOf(0, 0);
  f.group.index = 0;
  f.group.count = 0;
  f.group.admission = 1;
  CHECK(f.engine->EndStep({{0, 0, 0}, 1000, kTable, {&f.group, 1}, 0}).answer.status ==
        Status::kNotReady);
  f.Admit(kJoined, 2, 0);
  CHECK(f.PushBy(1000, 0, 2, 1).answer.status == Status::kOk);
  CHECK(f.AwaitBy(1000, 0, 1) == Status::kOk);
}

TEST_CASE("elastic: steps that wait for nobody end empty for a worker of a later one") {
  Elastic f(2, 3);
  f.Push(0, 0, 0, 2);
  f.Admit(kJoined, 2, 3);
  f.Depart(0);
  f.Depart(1);
  CHECK(f.commits.size() == 1);  // with what was there
  f.AwaitBy(kJoined, 3);
  CHECK(f.Version(0) == 3);
  CHECK(f.Read(0) == Filled(16, -2));
  CHECK(f.commits.back().contributors.empty());
  CHECK(f.PushBy(kJoined, 3, 1).answer.version == 4);
}

TEST_CASE("elastic: ranks that passed in a step do not pass in the next") {
  Elastic f(1, 3);
  f.Admit(kJoined, 1, 1);
  f.Push(0, 0, 0, 1);
  f.Push(0, 0, 1, 1);
  CHECK(f.Version(0) == 1);
  CHECK(f.PushBy(kJoined, 1, 3).answer.version == 2);
  CHECK(f.Read(0) == Filled(16, -3));
}

// The commits that one request of a joined worker causes when nobody else is left: its first step
// is the number that a worker of its job has named (AdmitMembersRequest, any up to 2^62).
template <typename F, typename Await>
uint64_t CommitsOfOneRequest(F* f, Await await) {
  struct TooMany {};
  uint64_t commits = 0;
  EngineOptions options;
  options.server = kServer;
  options.commit_observer = [&](const Commit&) {
    if (++commits > 1'000'000) throw TooMany();
  };
  f->engine = std::make_unique<Engine>(options);
  f->job()->set_max_workers(2);
  REQUIRE(f->Apply().ok());
  f->job()->set_admission(1);
  v1::MemberAdmission* admission = f->job()->add_admissions();
  admission->set_number(1);
  v1::FirstStep* step = admission->add_first_steps();
  step->set_table(kTable);
  step->set_step(uint64_t{1} << 40);
  v1::Worker* member = f->job()->add_members();
  member->set_incarnation(kJoined);
  member->set_rank(1);
  member->set_admission(1);
  REQUIRE(f->Apply().ok());
  f->Depart(0);
  try {
    await();
  } catch (const TooMany&) {
  }
  return commits;
}

TEST_CASE("elastic: a request of a worker with a far first step does not hold the shard up") {
  Elastic f(1, 2);
  CHECK(CommitsOfOneRequest(&f, [&] { f.AwaitBy(kJoined, uint64_t{1} << 40, 1); }) < 100'000);
}

TEST_CASE("elastic: nor does such a request about an embedding table") {
  RowOptions o;
  o.consistency = v1::CONSISTENCY_SYNC;
  o.workers = 1;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  RowFixture f(o);
  CHECK(CommitsOfOneRequest(&f, [&] { f.Await(kJoined, {0}, uint64_t{1} << 40); }) < 100'000);
}

TEST_CASE(
    "regression: a request of a worker that the shard's view has as joining waits for a newer "
    "view") {
  const auto consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  CAPTURE(consistency);
  Elastic f(2, 3, consistency);
  f.Join(kJoined, -1);
  v1::Worker* member = f.job()->mutable_members(2);
  member->set_joining(true);
  member->set_may_write(true);
  f.applied = f.Apply();
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  const uint64_t first = sync ? 0 : 1;  // the step, or the first sequence
  CHECK(f.PushBy(kJoined, first, 2).answer.status == Status::kNotReady);
  CHECK(f.AwaitBy(kJoined, 0) == Status::kNotReady);
  f.group = f.GroupOf(0, first);
  const GroupsRequest request = {{9, 0, 0}, kJoined, kTable, {&f.group, 1}};
  const std::vector<NamedValue> rate = {MakeNamedValue("rate", 2)};
  CHECK(f.engine->SetOptimizer(request, rate).answer.status == Status::kNotReady);
  // An observer may read without its own push; this worker may not.
  CHECK(f.Pull(kJoined, 0, 0).answer.status == Status::kNotReady);
  member->set_joining(false);
  member->set_rank(2);
  f.applied = f.Apply();
  CHECK(f.PushBy(kJoined, first, 2).answer.status == Status::kOk);
}

}  // namespace
}  // namespace verbena::shard
