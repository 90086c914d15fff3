// A replica has every row that its primary acknowledged: tables that are created, lost and reset
// while a learner begins, and rows that are not in memory. Comparisons of replicas:
// replica_proof_test.cc.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "shard/checkpoint/restores.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"
#include "tests/shard/fake_cold_store.h"
#include "tests/shard/replica_pair.h"

namespace verbena::shard {
namespace replica_content_test {

// Pushes, promotes the replica, and checks that it has the pushes.
void CheckPromoted(Pair* pair) {
  pair->Push({5, 6});
  REQUIRE(pair->Ship() == ReplyStatus::kOk);
  const Rows rows = pair->primary.Scan(0, 100);
  CHECK(rows == Rows{{5, pair->primary.Filled(2)}, {6, pair->primary.Filled(2)}});
  pair->Promote();
  CHECK(pair->replica.Scan(0, 100) == rows);
}

TEST_CASE("a table created before a learner's first record is on the replica") {
  Pair pair(OnePartition(AnyConsistency()));
  CreateUnderLearner(&pair);
  SECTION("pushed to while it learns") {
    pair.Push({5, 6});
    REQUIRE(pair.Ship() == ReplyStatus::kOk);
    REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
    const Rows rows = pair.primary.Scan(0, 100);
    CHECK(rows.size() == 2);
    pair.Promote();
    CHECK(pair.replica.Scan(0, 100) == rows);
  }
  SECTION("pushed to when it is a follower") {
    REQUIRE(pair.Ship() == ReplyStatus::kOk);
    REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
    pair.Admit();
    CheckPromoted(&pair);
  }
  SECTION("not in the replica's view yet") {
    v1::Table later = pair.primary.view.tables(1);
    later.set_id(9);
    later.mutable_spec()->set_name("later");
    *pair.primary.view.add_tables() = later;
    pair.ApplyPrimary();
    // A learner is not complete before it has the table.
    CHECK(pair.Ship() == ReplyStatus::kNotReady);
    CHECK_FALSE(pair.primary.engine->replicas().CaughtUp(0));
    pair.ApplyReplica();
    pair.primary.engine->replicas().Resend({kReplica, 0}, 0);
    CHECK(pair.Ship() == ReplyStatus::kOk);
    CHECK(pair.primary.engine->replicas().CaughtUp(0));
  }
}

TEST_CASE("a partition lost when a learner begins and reset later is on the replica") {
  Pair pair(OnePartition(AnyConsistency()));
  const bool pushed_before = GENERATE(false, true);
  if (pushed_before) pair.Push({1, 2, 3});
  pair.primary.view.mutable_tables(0)->add_lost_partitions(0);
  pair.ApplyPrimary();
  pair.AddLearner();
  pair.Apply();
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  const bool admitted = GENERATE(false, true);
  CAPTURE(pushed_before, admitted);
  if (admitted) {
    REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
    pair.Admit();
  }
  pair.primary.view.mutable_tables(0)->clear_lost_partitions();
  pair.primary.job()->set_generation(2);
  pair.Apply();
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  if (!admitted) {
    REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
    pair.Admit();
  }
  pair.BeginGeneration();
  CheckPromoted(&pair);
}

TEST_CASE("a partition lost and reset while its rows are sent to a learner is empty there") {
  RowOptions o = OnePartition(v1::CONSISTENCY_ASYNC);
  o.dim = 1024;
  Pair pair(o);
  // More than a learner may have unanswered.
  for (uint64_t key = 0; key < 2000; key += 50) {
    std::vector<uint64_t> keys(50);
    for (uint64_t& k : keys) k = key + static_cast<uint64_t>(&k - keys.data());
    pair.Push(keys);
  }
  pair.AddLearner();
  pair.Apply();
  pair.Take();
  REQUIRE(pair.Deliver() == ReplyStatus::kOk);
  REQUIRE_FALSE(pair.primary.engine->replicas().CaughtUp(0));
  pair.primary.view.mutable_tables(0)->add_lost_partitions(0);
  pair.ApplyPrimary();
  pair.primary.view.mutable_tables(0)->clear_lost_partitions();
  pair.primary.job()->set_generation(2);
  pair.ApplyPrimary();
  const bool seen_lost = GENERATE(false, true);
  CAPTURE(seen_lost);
  if (seen_lost) {
    v1::ClusterView lost = pair.primary.view;
    lost.mutable_tables(0)->add_lost_partitions(0);
    REQUIRE(pair.replica.engine->ApplyView(lost).ok());
  }
  pair.ApplyReplica();
  REQUIRE(pair.primary.PushValue(0, 0, 1, {5, 5000}, 1) == ReplyStatus::kOk);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
  pair.Admit();
  pair.Promote();
  CHECK(pair.replica.Scan(0, 100) ==
        Rows{{5, pair.primary.Filled(2)}, {5000, pair.primary.Filled(2)}});
}

// Views have their tables in the order of their ids.
void AddInOrder(v1::ClusterView* view, const v1::Table& table) {
  *view->add_tables() = table;
  std::sort(view->mutable_tables()->pointer_begin(), view->mutable_tables()->pointer_end(),
            [](const v1::Table* a, const v1::Table* b) { return a->id() < b->id(); });
}

// The learner is still being sent a dense table of 8 MiB that comes before the rows.
void BeginBehindDense(Pair* pair) {
  v1::Table dense;
  dense.set_id(3);
  dense.mutable_spec()->set_name("dense");
  dense.mutable_spec()->set_job(pair->primary.view.tables(0).spec().job());
  dense.mutable_spec()->add_shape(2 << 20);
  dense.mutable_spec()->set_dtype(v1::DTYPE_F32);
  dense.mutable_spec()->set_chunk_bytes(256 << 10);
  dense.mutable_spec()->set_consistency(v1::CONSISTENCY_ASYNC);
  dense.mutable_spec()->mutable_optimizer()->set_name("sgd");
  AddInOrder(&pair->primary.view, dense);
  pair->Apply();
  pair->Push({1, 2});
  pair->AddLearner();
  pair->Apply();
  pair->Take();
  REQUIRE(pair->Deliver() == ReplyStatus::kOk);
  REQUIRE_FALSE(pair->primary.engine->replicas().CaughtUp(0));
}

TEST_CASE("a push that creates rows while a learner gets another table is on the replica") {
  Pair pair(OnePartition(AnyConsistency()));
  BeginBehindDense(&pair);
  // They are records though the table's turn has not come. Key 1 is sent later, with these applies.
  const uint64_t before = pair.primary.engine->replicas().Status()[0].sequence;
  pair.Push({1, 5});
  pair.Push({1, 2});
  pair.Push({5, 6});
  CHECK(pair.primary.engine->replicas().Status()[0].sequence > before);
  const bool lost = GENERATE(false, true);
  CAPTURE(lost);
  if (lost) {
    pair.Take();
    REQUIRE(pair.Deliver() == ReplyStatus::kOk);
    v1::Table* table = pair.primary.view.mutable_tables(1);  // behind the dense one
    table->add_lost_partitions(0);
    pair.ApplyPrimary();
    table->clear_lost_partitions();
    pair.primary.job()->set_generation(2);
    pair.Apply();
    pair.BeginGeneration();
    pair.Push({5, 5000});
  }
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
  pair.Admit();
  const Rows rows = pair.primary.Scan(0, 100);
  CHECK(rows.size() == (lost ? 2 : 4));
  pair.Promote();
  CHECK(pair.replica.Scan(0, 100) == rows);
}

// Whether a follower takes an embedding table that is restored without rows, and that is created
// while the log is full of pushes to another table.
bool TakesEmptyRestore() {
  Pair pair(OnePartition(v1::CONSISTENCY_ASYNC));
  pair.Restart({1, 1 << 20, 1 << 20});
  pair.Apply();
  pair.AddLearner();
  pair.Apply();
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
  pair.Admit();
  REQUIRE(pair.primary.PushValue(0, 0, 1, {5}, 1) == ReplyStatus::kOk);
  v1::Table restored = pair.primary.view.tables(0);
  restored.set_id(3);
  restored.mutable_spec()->set_name("restored");
  restored.set_restoring(true);
  AddInOrder(&pair.primary.view, restored);
  pair.Apply();
  RestoreRequest request;
  request.table = restored.id();
  request.version = 7;
  REQUIRE(pair.primary.engine->restores().Begin(request).ok());
  for (int i = 0; i < 10; ++i) {
    const bool finished = pair.primary.engine->restores().Finish(restored.id()).ok();
    if (pair.Ship() != ReplyStatus::kOk) return false;
    if (finished) return pair.primary.engine->restores().progress(restored.id())->complete();
  }
  return false;
}

TEST_CASE("regression: the end of a restored slice waits for the notes of its partition") {
  CHECK(TakesEmptyRestore());
}

TEST_CASE("failpoint: the end of a restored slice overtakes the notes") {
  const Planted planted(&Failpoints::end_before_notes);
  CHECK_FALSE(TakesEmptyRestore());
}

TEST_CASE("a replica with a lost partition does not take records for it") {
  Pair pair(OnePartition(AnyConsistency()));
  pair.AddLearner();
  pair.Apply();
  pair.Push({1, 2});
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  pair.Admit();
  // The view with the loss came to the replica alone.
  v1::ClusterView lost = pair.primary.view;
  lost.set_revision(lost.revision() + 1);
  lost.mutable_tables(0)->add_lost_partitions(0);
  REQUIRE(pair.replica.engine->ApplyView(lost).ok());
  pair.Apply();
  pair.Push({1, 2});
  CHECK(pair.Ship() == ReplyStatus::kDataLoss);
}

// The store of rows that are not in memory, of each side.
struct Tiered {
  FakeColdStore of_primary{1}, of_replica{2};
  RowOptions options, options_of_replica;

  Tiered() {
    of_primary.slow = of_replica.slow = false;
    options = OnePartition(v1::CONSISTENCY_ASYNC);
    options.dim = 1024;
    options.hot_bytes = 1;
    options.record_rows = 8;
    options.cold = &of_primary;
    options_of_replica = options;
    options_of_replica.cold = &of_replica;
  }
};

// The primary has rows with the keys 0 to `rows`, and gets a learner. Returns the last sequence.
uint64_t FillAndLearn(Pair* pair, uint64_t rows) {
  uint64_t sequence = 0;
  for (uint64_t key = 0; key < rows; ++key) {
    REQUIRE(pair->primary.PushValue(0, 0, ++sequence, {key}, 1) == ReplyStatus::kOk);
    pair->Collect();
  }
  pair->AddLearner();
  pair->Apply();
  return sequence;
}

// A push to a row that is not in memory waits for it while the learner's cursor passes the row.
// Whether the replica takes everything and equals the primary.
bool PassesAppliesThatWait() {
  constexpr uint64_t kRows = 3000, kKey = 1500;
  Tiered tiered;
  Pair pair(tiered.options, tiered.options_of_replica);
  uint64_t sequence = FillAndLearn(&pair, kRows);
  pair.Take();  // as much as may be unanswered
  tiered.of_primary.stopped = true;
  const uint64_t before = pair.acknowledged;
  const GroupsOutcome out = pair.primary.Push(0, 0, ++sequence, {{kKey, pair.primary.Filled(1)}});
  REQUIRE(out.replicating);
  if (pair.Ship() != ReplyStatus::kOk) return false;
  tiered.of_primary.stopped = false;
  for (int i = 0; i < 100; ++i) pair.Collect();
  CHECK(pair.acknowledged == before + 1);
  if (pair.Ship() != ReplyStatus::kOk || !pair.primary.engine->replicas().CaughtUp(0)) return false;
  pair.Admit();
  const Rows there = pair.primary.Scan(0, kRows);
  REQUIRE(there.size() == kRows);
  CHECK(there.at(kKey) == pair.primary.Filled(1));
  pair.Promote();
  return pair.replica.Scan(0, kRows) == there;
}

TEST_CASE("a push that waits for a cold row is in the row that a learner gets") {
  CHECK(PassesAppliesThatWait());
}

// A replicated push waits for a cold row that cannot be read, and the job begins anew. Whether the
// primary knows that the follower has more.
bool KnowsThatReplicaDiffers() {
  constexpr uint64_t kRows = 3000, kKey = 1500;
  Tiered tiered;
  Pair pair(tiered.options, tiered.options_of_replica);
  uint64_t sequence = FillAndLearn(&pair, kRows);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
  pair.Admit();
  tiered.of_primary.stopped = tiered.of_primary.lose_all = true;
  const GroupsOutcome out = pair.primary.Push(0, 0, ++sequence, {{kKey, pair.primary.Filled(1)}});
  REQUIRE(out.replicating);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  v1::Job* job = pair.primary.view.mutable_jobs(0);
  job->set_generation(job->generation() + 1);
  pair.primary.Apply().IgnoreError();
  const std::vector<Event> events = pair.primary.Events();
  const bool refused = std::any_of(events.begin(), events.end(), [](const Event& event) {
    return event.kind == Event::Kind::kReplicated && event.answer.status != ReplyStatus::kOk;
  });
  return refused && pair.primary.engine->replicas().Differs({kReplica, 0}, 0);
}

TEST_CASE("regression: a replicated push that cannot be applied makes its replica differ") {
  CHECK(KnowsThatReplicaDiffers());
}

TEST_CASE("failpoint: a push that cannot be applied when a job begins anew is forgotten") {
  const Planted failpoint(&Failpoints::forget_unapplied);
  CHECK_FALSE(KnowsThatReplicaDiffers());
}

TEST_CASE("failpoint: a learner gets a row without an apply whose record came before") {
  const Planted failpoint(&Failpoints::cursor_before_apply);
  const bool skip_proof = GENERATE(false, true);
  const Planted unproved(&Failpoints::skip_proof, skip_proof);
  CHECK_FALSE(PassesAppliesThatWait());
}

}  // namespace replica_content_test
}  // namespace verbena::shard
