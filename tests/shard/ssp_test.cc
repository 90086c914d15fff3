#include <catch2/catch.hpp>
#include <numeric>
#include <vector>

#include "shard/partition/clocks.h"
#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace ssp_test {

using Status = ReplyStatus;
using PullKind = PullOutcome::Kind;

FixtureOptions SspOptions(uint32_t staleness) {
  FixtureOptions o;
  o.consistency = v1::CONSISTENCY_SSP;
  o.staleness = staleness;
  o.workers = 3;
  return o;
}

// Every record of a worker on a partition takes a sequence.
struct Ssp : Fixture {
  using Fixture::Fixture;
  std::map<uint32_t, uint64_t> sequences, clocks;  // by rank
  void EndSteps(uint32_t rank, int count) {
    for (; count > 0; --count) EndAt(rank, clocks[rank] + 1);
  }
  void EndAt(uint32_t rank, uint64_t clock) {
    clocks[rank] = clock;
    REQUIRE(EndStep(rank, 0, ++sequences[rank], 0, clock).answer.status == Status::kOk);
  }
  // A pull of chunk 0 by a worker with the clock `ended`.
  PullKind PullAs(uint32_t rank, uint64_t ended, uint32_t* staleness = nullptr) {
    const PullOutcome out = Pull(kFirstWorker + rank, 0, ended, rank);
    if (out.kind == PullKind::kReady) engine->Unpin(out.view.pin);
    if (staleness != nullptr) *staleness = out.answer.detail;
    return out.kind;
  }
};

TEST_CASE("ssp applies each push when it arrives") {
  Ssp f(SspOptions(1));
  CHECK(f.Push(1, 0, 1, 1).answer.version == 1);
  CHECK(f.Push(0, 0, 1, 2).answer.version == 2);
  CHECK(f.Push(0, 0, 1, 2).answer.status == Status::kDuplicate);
  CHECK(f.Read(0) == Filled(16, -3));
}

TEST_CASE("an ssp pull waits exactly when its worker is more than the bound ahead") {
  const uint32_t bound = GENERATE(0u, 1u, 3u);
  Ssp f(SspOptions(bound));
  f.EndSteps(0, static_cast<int>(bound));
  uint32_t staleness = 99;
  CHECK(f.PullAs(0, bound, &staleness) == PullKind::kReady);
  CHECK(staleness == bound);
  f.EndSteps(0, 1);
  CHECK(f.PullAs(0, bound + 1) == PullKind::kDeferred);
  CHECK(f.PullAs(1, 0) == PullKind::kReady);  // the slow ones never wait
  f.EndSteps(1, 1);
  CHECK(f.Events().empty());  // rank 2 has not
  f.EndSteps(2, 1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  CHECK(events[0].token.lane == 0);
  CHECK(events[0].answer.detail == bound);
  f.engine->Unpin(events[0].view.pin);
  CHECK(f.engine->counters().staleness[bound] >= 2);
  const auto& counts = f.engine->counters().staleness;
  CHECK(std::accumulate(counts.begin() + bound + 1, counts.end(), uint64_t{0}) == 0);
}

TEST_CASE("pushes release no ssp pull, whatever the chunk's version") {
  Ssp f(SspOptions(0));
  f.EndSteps(0, 1);
  CHECK(f.PullAs(0, 1) == PullKind::kDeferred);
  for (uint64_t s = 1; s <= 5; ++s) f.Push(1, 0, s, 1);
  CHECK(f.Events().empty());
}

TEST_CASE("an end-step that is sent again counts once") {
  Ssp f(SspOptions(0));
  f.EndSteps(1, 1);
  f.EndSteps(2, 1);
  f.EndSteps(0, 1);
  CHECK(f.EndStep(2, 0, 1, 0, 1).group_status[0] == Status::kDuplicate);
  CHECK(f.PullAs(0, 1) == PullKind::kReady);
  f.EndSteps(0, 1);
  f.EndSteps(1, 1);
  CHECK(f.PullAs(0, 2) == PullKind::kDeferred);
}

TEST_CASE(
    "ssp does not wait for workers that have left, and does for those that have not joined yet") {
  Ssp f(SspOptions(0));
  f.EndSteps(0, 2);
  f.EndSteps(1, 1);
  CHECK(f.PullAs(0, 2) == PullKind::kDeferred);
  f.Depart(2);
  CHECK(f.Events().empty());
  f.Depart(1);
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 1);
  CHECK(events[0].kind == Event::Kind::kPullReady);
  f.engine->Unpin(events[0].view.pin);

  FixtureOptions o = SspOptions(0);
  o.workers = 2;
  Ssp late(o);
  v1::Job* job = late.job();
  job->set_expected_workers(3);
  job->set_generation(2);
  REQUIRE(late.Apply().ok());
  late.EndSteps(0, 1);
  late.EndSteps(1, 1);
  CHECK(late.PullAs(0, 1) == PullKind::kDeferred);
  late.Join(kFirstWorker + 2, 2);
  REQUIRE(late.Apply().ok());
  CHECK(late.Events().empty());
  late.EndSteps(2, 1);
  CHECK(late.Events().size() == 1);
}

TEST_CASE("a joiner of an ssp table has the least clock until its first end-step") {
  Ssp f(SspOptions(1));
  f.EndSteps(0, 7);
  f.EndSteps(1, 5);
  f.EndSteps(2, 6);
  f.Join(kFirstWorker + 3, 3);
  REQUIRE(f.Apply().ok());
  const PullOutcome first = f.Pull(kFirstWorker + 3, 0, 0, 3);
  REQUIRE(first.kind == PullKind::kReady);
  f.engine->Unpin(first.view.pin);
  CHECK(first.answer.version == 5);  // it learns the least clock, and goes on from there
  CHECK(first.answer.detail == 0);
  f.EndSteps(1, 4);  // the others go on: 7, 9, 8
  f.EndSteps(2, 2);
  CHECK(f.PullAs(0, 7) == PullKind::kDeferred);  // held up by the joiner, which counts as at 5
  f.EndAt(3, 6);
  CHECK(f.Events().size() == 1);
  CHECK(f.PullAs(3, 6) == PullKind::kReady);
  f.EndAt(3, 9);
  CHECK(f.PullAs(3, 9) == PullKind::kDeferred);  // rank 0 is at 7
}

TEST_CASE("a clock never runs backwards, and an absurd one delays no worker") {
  Ssp f(SspOptions(0));
  f.EndAt(0, UINT64_MAX);
  f.EndAt(0, 3);
  f.EndAt(1, 2);
  f.EndAt(2, 2);
  CHECK(f.PullAs(1, 2) == PullKind::kReady);
  CHECK(f.PullAs(1, 3) == PullKind::kDeferred);
}

TEST_CASE("an ssp pull with an absurd count waits and disturbs no other") {
  Ssp f(SspOptions(2));
  f.EndSteps(0, 1);
  CHECK(f.PullAs(0, UINT64_MAX) == PullKind::kDeferred);
  CHECK(f.PullAs(0, 1) == PullKind::kReady);
  f.engine->ForgetLane(0);
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("an observer of an ssp table reads at once") {
  FixtureOptions o = SspOptions(0);
  o.observers = 1;
  Ssp f(o);
  f.EndSteps(0, 3);
  const PullOutcome out = f.Pull(2000, 0, 100);
  REQUIRE(out.kind == PullKind::kReady);
  f.engine->Unpin(out.view.pin);
}

TEST_CASE("a new generation of the job starts all ssp clocks anew") {
  Ssp f(SspOptions(0));
  for (uint32_t rank : {0, 1, 2}) f.EndSteps(rank, 4);
  f.job()->set_generation(2);
  f.job()->clear_members();
  for (int rank : {0, 1, 2}) f.Join(kFirstWorker + 10 + rank, rank);
  REQUIRE(f.Apply().ok());
  CHECK(f.PullAs(10, 0) == PullKind::kReady);
  CHECK(f.PullAs(10, 1) == PullKind::kDeferred);
}

// The primary before had not heard of the third worker, nor had its copy.
TEST_CASE("regression: ssp waits for an expected worker that only the next primary knows") {
  v1::Job job;
  job.set_generation(1);
  job.set_expected_workers(3);
  for (int rank = 0; rank < 3; ++rank) {
    v1::Worker* worker = job.add_members();
    worker->set_incarnation(kFirstWorker + rank);
    worker->set_rank(rank);
  }
  Members members;
  members.Update(job);
  Clocks clocks(&members, /*bound=*/2, [](uint32_t, const WorkerMark&) {});
  clocks.Follow(1);
  clocks.Adopt(0, {WorkerMark{kFirstWorker, 4, 3}, WorkerMark{kFirstWorker + 1, 4, 3}});
  Answer answer;
  const auto readable = [&](uint64_t clock) {
    return clocks.Readable(kFirstWorker, 0, clock, &answer);
  };
  CHECK(readable(2));
  CHECK_FALSE(readable(3));
  // Its next end-step has the number of steps that it has ended.
  CHECK(clocks.EndStep(0, *members.Find(kFirstWorker + 2), 2));
  CHECK(readable(4));
  CHECK_FALSE(readable(5));
}

}  // namespace ssp_test
}  // namespace verbena::shard
