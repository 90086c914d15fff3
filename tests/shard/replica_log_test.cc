// The bounds of the logs for copies: workers push as fast as they can, a copy applies less than
// that, and yet catch-up ends, memory stays within the bounds, and pushes go on.
#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/notes.h"
#include "tests/shard/replica_load.h"

namespace verbena::shard {
namespace {

uint32_t RoundsWithoutLoad(const LoadPlan& plan) {
  Load load(plan);
  load.Fill();
  load.Drain();
  load.AddLearner();
  return load.CatchUp(false, 10'000);
}

TEST_CASE("regression: replica log: catch-up ends under full load, within the bounds") {
  LoadPlan plan;
  plan.clients = GENERATE(3u, 16u);
  const bool narrow = GENERATE(false, true);
  plan.consistency = narrow ? v1::CONSISTENCY_SSP : v1::CONSISTENCY_ASYNC;
  plan.dtype = narrow ? v1::DTYPE_BF16 : v1::DTYPE_F32;
  const uint32_t idle = RoundsWithoutLoad(plan);
  REQUIRE(idle > 0);
  Load load(plan);
  load.Fill();
  load.AddLearner();
  const uint64_t before = load.answered();
  const uint32_t rounds = load.CatchUp(true, 10'000);
  CAPTURE(plan.clients, static_cast<int>(plan.consistency), idle, rounds, load.most_bytes());
  CHECK(rounds > 0);
  CHECK(rounds <= 3 * idle);
  CHECK(load.within_bounds());
  // As many as the copy takes, about.
  CHECK(load.answered() - before > rounds * plan.bytes_of_round / 8 / kLoadRecord);
  // The followers have the bounds of the whole: pushes go on.
  for (uint32_t round = 0; round < 50; ++round) load.Round(true);
  CHECK(load.within_bounds());
  CHECK(load.most_idle() <= 10);
  load.Drain();
  load.CheckSums(load.primary());
  load.CheckSums(load.Promote());
}

LoadPlan GrowingPlan(uint32_t clients) {
  LoadPlan plan;
  plan.clients = clients;
  plan.grows = true;
  plan.bytes_of_round = 256 << 10;  // about a record of rows with their state
  plan.limits = {1 << 20, 8 << 20, 256 << 10};
  return plan;
}

// There are rows, and a learner begins.
void GrowAndLearn(Load* load) {
  for (uint32_t round = 0; round < 5; ++round) load->Round(true);
  load->Drain();
  load->AddLearner();
}

TEST_CASE("regression: replica log: catch-up ends while pushes make rows with much state") {
  const LoadPlan plan = GrowingPlan(GENERATE(3u, 16u));
  Load quiet(plan), load(plan);
  GrowAndLearn(&quiet);
  const uint32_t idle = quiet.CatchUp(false, 10'000);
  GrowAndLearn(&load);
  const uint32_t rounds = load.CatchUp(true, 10'000);
  CAPTURE(plan.clients, idle, rounds);
  REQUIRE(idle > 0);
  CHECK(rounds > 0);
  CHECK(rounds <= 3 * idle);
  for (uint32_t round = 0; round < 20; ++round) load.Round(true);
  load.Drain();
  const auto scan = [&](Engine* engine) {
    std::map<uint64_t, std::vector<float>> rows;
    for (uint32_t p = 0; p < kLoadPartitions; ++p) load.ScanInto(engine, p, &rows);
    return rows;
  };
  const auto before = scan(load.primary());
  CHECK(before.size() > 1000);
  CHECK(scan(load.Promote()) == before);
}

TEST_CASE("failpoint: replica log: a learner does not get the list of new rows") {
  failpoints().forget_new_rows = true;
  Load load(GrowingPlan(16));
  GrowAndLearn(&load);
  for (uint32_t round = 0; round < 200 && !load.differs(); ++round) load.Round(true);
  failpoints().forget_new_rows = false;
  CHECK(load.differs());
}

// In how many rounds a learner catches up under load; 0: not within three times those without it.
uint32_t GrowingRounds(Failpoint Failpoints::*bug) {
  const LoadPlan plan = GrowingPlan(16);
  failpoints().*bug = true;
  Load quiet(plan), load(plan);
  GrowAndLearn(&quiet);
  const uint32_t idle = quiet.CatchUp(false, 10'000);
  GrowAndLearn(&load);
  const uint32_t rounds = load.CatchUp(true, 3 * idle);
  failpoints().*bug = false;
  return rounds;
}

TEST_CASE("failpoint: replica log: the cursor chases rows that pushes make") {
  CHECK(GrowingRounds(&Failpoints::chase_new_rows) == 0);
}

TEST_CASE("failpoint: replica log: a slice with new rows waits for its turn") {
  CHECK(GrowingRounds(&Failpoints::announce_late) == 0);
}

TEST_CASE(
    "regression: replica log: a push to many partitions proceeds beside another table's pushes") {
  LoadPlan plan;
  plan.clients = 16;
  plan.wide = kLoadPartitions;
  plan.limits = {4 << 10, 1 << 20, 4 << 10};
  Load load(plan);
  load.AddLearner();
  REQUIRE(load.CatchUp(false, 10'000) > 0);
  for (uint32_t round = 0; round < 100; ++round) load.Round(true);
  const uint64_t all = load.answered(), wide = load.wide_answered();
  CAPTURE(all, wide);
  CHECK(all > 1000);
  CHECK(wide >= 25);
  load.Drain();
}

// Views change the same things for as long as a copy does not answer.
bool ViewsStayWithinBounds() {
  LoadPlan plan;
  plan.consistency = v1::CONSISTENCY_SSP;
  plan.limits = {16 << 10, 128 << 10, 16 << 10};
  Load load(plan);
  load.AddLearner();
  REQUIRE(load.CatchUp(false, 10'000) > 0);
  load.BeginGenerations(50);
  const bool within_bounds = load.within_bounds();
  // The replica gets all of it, in the right order: it takes the next records.
  for (uint32_t round = 0; round < 100; ++round) load.Round(true);
  load.Drain();
  CHECK(load.answered() > 100);
  return within_bounds;
}

TEST_CASE("regression: replica log: records of view changes stay within the limits, too") {
  CHECK(ViewsStayWithinBounds());
}

TEST_CASE("failpoint: replica log: records of view changes ignore the limits") {
  failpoints().unbounded_notes = true;
  const bool within_bounds = ViewsStayWithinBounds();
  failpoints().unbounded_notes = false;
  CHECK_FALSE(within_bounds);
}

TEST_CASE("replica notes: a later note replaces an earlier one") {
  ReplicaNotes notes;
  const auto put = [&](uint32_t table, ReplicaKind kind, uint32_t generation, uint64_t worker = 0,
                       uint64_t clock = 0) {
    ReplicaHeader header = {};
    header.kind = kind;
    header.generation = generation;
    header.worker = worker;
    header.worker_clock = clock;
    notes.Put(table, header, false);
  };
  put(2, ReplicaKind::kReset, 1);
  put(1, ReplicaKind::kSettle, 1, 7, 3);
  put(1, ReplicaKind::kSettle, 1, 7, 5);
  put(1, ReplicaKind::kSettle, 1);  // a restore: workers stay
  put(2, ReplicaKind::kSettle, 1, 8, 1);
  put(2, ReplicaKind::kFresh, 2);  // as new: its workers are not known any more
  put(2, ReplicaKind::kReset, 3);
  put(3, ReplicaKind::kFresh, 1);
  notes.ForgetTable(3);
  const auto take = [&](uint32_t table, ReplicaKind kind, uint32_t generation, uint64_t worker,
                        uint64_t clock) {
    REQUIRE_FALSE(notes.empty());
    const ReplicaNotes::Note note = notes.Take();
    CHECK(note.table == table);
    CHECK(note.header.kind == kind);
    CHECK(note.header.generation == generation);
    CHECK(note.header.worker == worker);
    CHECK(note.header.worker_clock == clock);
  };
  take(1, ReplicaKind::kSettle, 1, 0, 0);
  take(1, ReplicaKind::kSettle, 1, 7, 5);
  take(2, ReplicaKind::kFresh, 3, 0, 0);
  CHECK(notes.empty());
}

TEST_CASE("failpoint: replica log: applies do not wait, and catch-up waits for the log") {
  LoadPlan plan;
  plan.clients = 16;
  plan.limits = {16 << 10, 64 << 10, 16 << 10};
  failpoints().unbounded_log = true;
  const uint32_t idle = RoundsWithoutLoad(plan);
  Load load(plan);
  load.Fill();
  load.AddLearner();
  const uint32_t rounds = load.CatchUp(true, 20 * idle);
  const bool within_bounds = load.within_bounds();
  failpoints().unbounded_log = false;
  CHECK(rounds == 0);
  CHECK_FALSE(within_bounds);
}

}  // namespace
}  // namespace verbena::shard
