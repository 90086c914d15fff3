// Comparisons of a primary with its replicas: before a learner is admitted, and the audit of
// followers.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_pair.h"

namespace verbena::shard {
namespace replica_proof_test {

TEST_CASE("failpoint: rows of a table created during catch-up are never sent") {
  const Planted failpoint(&Failpoints::rows_never_come);
  Pair pair(OnePartition(AnyConsistency()));
  CreateUnderLearner(&pair);
  SECTION("the proof detects it") {
    pair.Push({5, 6});
    CHECK(pair.Ship() == ReplyStatus::kDataLoss);
    CHECK_FALSE(pair.primary.engine->replicas().CaughtUp(0));
  }
  SECTION("without the proof the rows are lost with the primary") {
    const Planted unproved(&Failpoints::skip_proof);
    pair.Push({5, 6});
    CHECK(pair.Ship() == ReplyStatus::kOk);
    CHECK(pair.primary.engine->replicas().CaughtUp(0));
    pair.Admit();
    pair.Promote();
    CHECK(pair.replica.Scan(0, 100).empty());
  }
}

// Rows that are made when the learner was compared, and before it is admitted.
ReplyStatus PushAfterProof(Pair* pair) {
  pair->Apply();
  pair->Push({5, 6});
  pair->AddLearner();
  pair->Apply();
  pair->Take();  // contents, and their comparison
  pair->Push({7, 8});
  return pair->Ship();
}

TEST_CASE("regression: a learner is compared once more right before it is admitted") {
  const bool bug = GENERATE(false, true);
  const bool once = GENERATE(false, true);
  const Planted forgets(&Failpoints::forget_proved, bug);
  const Planted unproved(&Failpoints::prove_once, once);
  Pair pair(OnePartition(AnyConsistency()));
  const ReplyStatus shipped = PushAfterProof(&pair);
  if (bug && !once) {
    CHECK(shipped == ReplyStatus::kDataLoss);
    CHECK_FALSE(pair.primary.engine->replicas().CaughtUp(0));
    return;
  }
  CHECK(shipped == ReplyStatus::kOk);
  CHECK(pair.primary.engine->replicas().CaughtUp(0));
  const Rows rows = pair.primary.Scan(0, 100);
  pair.Admit();
  pair.Promote();
  CHECK((pair.replica.Scan(0, 100) == rows) == !bug);
}

// The audit has gone through the one partition a few times.
ReplyStatus Audit(Pair* pair) {
  ReplyStatus status = ReplyStatus::kOk;
  for (int i = 0; i < 10 && status == ReplyStatus::kOk; ++i) {
    REQUIRE(pair->primary.engine->proofs().AuditFollowers(4096));
    status = pair->Ship();
  }
  return status;
}

TEST_CASE("the audit passes a follower that is equal, while pushes go on") {
  Pair pair(OnePartition(AnyConsistency()));
  CHECK_FALSE(pair.primary.engine->proofs().AuditFollowers(4096));
  pair.AddLearner();
  pair.Apply();
  pair.Push({1, 2});
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  pair.Admit();
  CHECK(Audit(&pair) == ReplyStatus::kOk);
  pair.Push({2, 3});
  // Its applies wait for the follower: there is nothing to compare now.
  REQUIRE(pair.primary.engine->proofs().AuditFollowers(4096));
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  CHECK(Audit(&pair) == ReplyStatus::kOk);
}

TEST_CASE("regression: a follower that has not answered the audit gets no more audit records") {
  const bool hurry = GENERATE(false, true);
  Pair pair(OnePartition(AnyConsistency()));
  pair.AddLearner();
  pair.Apply();
  pair.Push({1, 2});
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  pair.Admit();
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  const Planted failpoint(&Failpoints::hurry_audit, hurry);
  REQUIRE(pair.primary.engine->proofs().AuditFollowers(4096));
  pair.Take();
  std::vector<ReplicaRecord> more;
  for (int i = 0; i < 10; ++i) {
    REQUIRE(pair.primary.engine->proofs().AuditFollowers(4096));
    pair.primary.engine->replicas().Take(&more, 1000);
    CHECK(more.empty() != hurry);
  }
  if (hurry) return;
  REQUIRE(pair.Deliver() == ReplyStatus::kOk);
  REQUIRE(pair.primary.engine->proofs().AuditFollowers(4096));
  pair.primary.engine->replicas().Take(&more, 1000);
  CHECK_FALSE(more.empty());
}

TEST_CASE("the audit finds a follower without rows") {
  Pair pair(OnePartition(AnyConsistency()));
  {
    const Planted failpoint(&Failpoints::rows_never_come), unproved(&Failpoints::skip_proof);
    CreateUnderLearner(&pair);
    pair.Push({5, 6});
    REQUIRE(pair.Ship() == ReplyStatus::kOk);
    REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
    pair.Admit();
  }
  CHECK(Audit(&pair) == ReplyStatus::kDataLoss);
}

}  // namespace replica_proof_test
}  // namespace verbena::shard
