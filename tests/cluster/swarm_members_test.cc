// The ledger of an elastic job's workers: what it accepts, and which faults it shows.
#include "tests/cluster/swarm_members.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace verbena::test {
namespace {

using Catch::Matchers::Contains;

constexpr uint32_t kTable = 7;
constexpr uint32_t kRun = 3;  // generation
constexpr uint64_t kFirst = 11, kSecond = 12, kJoined = 13;

struct Ledger {
  Ledger() {
    job.set_generation(kRun);
    Member(kFirst, 0);
    Member(kSecond, 1);
  }
  v1::Worker* Member(uint64_t incarnation, int rank) {
    v1::Worker* member = job.add_members();
    member->set_incarnation(incarnation);
    member->set_rank(rank);
    members.Joined(incarnation, kRun);
    return member;
  }
  // It counts from this step on.
  void Join(uint64_t step) {
    Member(kJoined, 2)->set_admission(1);
    v1::MemberAdmission* admission = job.add_admissions();
    admission->set_number(1);
    admission->add_first_steps()->set_table(kTable);
    admission->mutable_first_steps(0)->set_step(step);
  }
  std::string Commit(uint64_t step, const std::vector<uint64_t>& workers, uint32_t divisor,
                     bool rows = false) const {
    return members.Check({kTable, 0, step, workers, divisor}, rows, job);
  }

  SwarmMembers members;
  v1::Job job;
};

TEST_CASE("swarm members: a step of all workers is right, and one without a worker is not") {
  Ledger l;
  l.members.Pushed(kFirst, kTable, 0, 0);
  l.members.Pushed(kSecond, kTable, 0, 0);
  CHECK(l.Commit(0, {kFirst, kSecond}, 2).empty());
  CHECK_THAT(l.Commit(0, {kFirst}, 1), Contains("of 1 workers, not of 2 to 2"));
  // It has pushed to another chunk only.
  l.members.Pushed(kFirst, kTable, 1, 0);
  l.members.Pushed(kSecond, kTable, 1, 1);
  CHECK_THAT(l.Commit(1, {kFirst}, 2), Contains("without worker 12, whose first step is 0"));
  l.members.Ended(kSecond, kTable, 1);
  CHECK(l.Commit(1, {kFirst}, 2).empty());
  CHECK_THAT(l.Commit(1, {kFirst}, 3), Contains("of 3 workers, not of 2 to 2"));
}

TEST_CASE("swarm members: a worker that joins counts from its first step on") {
  Ledger l;
  l.Join(1);
  for (const uint64_t step : {0, 1}) {
    l.members.Ended(kFirst, kTable, step);
    l.members.Ended(kSecond, kTable, step);
  }
  CHECK(l.Commit(0, {kFirst, kSecond}, 2).empty());
  CHECK_THAT(l.Commit(0, {kFirst, kSecond}, 3), Contains("of 3 workers, not of 2 to 2"));
  CHECK_THAT(l.Commit(0, {kFirst, kJoined}, 2), Contains("with worker 13, whose first step is 1"));
  CHECK_THAT(l.Commit(1, {kFirst, kSecond}, 2), Contains("without worker 13"));
  l.members.Ended(kJoined, kTable, 1);
  CHECK(l.Commit(1, {kFirst, kJoined}, 3).empty());
  CHECK_THAT(l.Commit(1, {kFirst, kJoined}, 2), Contains("of 2 workers, not of 3 to 3"));
}

TEST_CASE("swarm members: steps of rows are ended, and a worker that has died may count") {
  Ledger l;
  l.members.Pushed(kFirst, kTable, 0, 0);
  l.members.Ended(kSecond, kTable, 0);
  CHECK_THAT(l.Commit(0, {kFirst, kSecond}, 2, true), Contains("without worker 11"));
  l.members.Ended(kFirst, kTable, 0);
  CHECK(l.Commit(0, {kFirst, kSecond}, 2, true).empty());
  l.job.mutable_members()->RemoveLast();
  CHECK(l.Commit(0, {kFirst}, 1).empty());
  CHECK(l.Commit(0, {kFirst}, 2).empty());
  CHECK_THAT(l.Commit(0, {kFirst}, 3), Contains("of 3 workers, not of 1 to 2"));
}

TEST_CASE("swarm members: commits of another run are not compared") {
  Ledger l;
  CHECK(l.members.IsOf({kTable, 0, 0, std::vector<uint64_t>{kFirst}, 1}, kRun));
  CHECK_FALSE(l.members.IsOf({kTable, 0, 0, std::vector<uint64_t>{kFirst}, 1}, kRun + 1));
  CHECK_FALSE(l.members.IsOf({kTable, 0, 0, {}, 1}, kRun));
  l.job.set_generation(kRun + 1);
  CHECK(l.Commit(0, {kFirst}, 1).empty());
}

}  // namespace
}  // namespace verbena::test
