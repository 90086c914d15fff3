// The limit of what learners of planned moves are sent.
#include <catch2/catch.hpp>
#include <vector>

#include "tests/shard/replica_pair.h"

namespace verbena::shard {
namespace {

std::vector<uint64_t> Keys(uint64_t count) {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < count; ++key) keys.push_back(key);
  return keys;
}

// A primary with rows and a learner of a planned move, which has nothing yet.
void Begin(Pair* pair) {
  pair->Push(Keys(2000));
  pair->primary.view.set_replicas(1);
  pair->AddLearner();
  pair->Apply();
}

TEST_CASE("pace: a learner of a planned move is sent no more than is allowed, and a record") {
  Pair pair(OnePartition(AnyConsistency()));
  Begin(&pair);
  Replicas& replicas = pair.primary.engine->replicas();
  const uint64_t all = replicas.ContentsOf(0).bytes;
  REQUIRE(replicas.ContentsOf(0).rows == 2000);
  replicas.AllowMoves(0);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  CHECK(replicas.moves_held_back());
  CHECK(pair.replica.engine->replicas().ContentsOf(0).bytes == 0);
  uint64_t sent = 0;
  int turns = 0;
  while (!replicas.CaughtUp(0)) {
    REQUIRE(++turns < 1000);
    const int64_t allowed = static_cast<int64_t>(all / 100);
    replicas.AllowMoves(allowed);
    REQUIRE(pair.Ship() == ReplyStatus::kOk);
    sent += static_cast<uint64_t>(allowed - replicas.moves_allowed());
    CHECK((replicas.moves_allowed() <= 0) == replicas.moves_held_back());
  }
  CHECK(sent == all);
  CHECK(turns > 1);
  CHECK_FALSE(replicas.moves_held_back());
  pair.Admit();
  const auto rows = pair.primary.Scan(0, 3000);
  pair.Promote();
  CHECK(pair.replica.Scan(0, 3000) == rows);
}

TEST_CASE(
    "pace: pushes to a partition that waits for it are applied, and on the learner in the end") {
  Pair pair(OnePartition(AnyConsistency()));
  Begin(&pair);
  Replicas& replicas = pair.primary.engine->replicas();
  replicas.AllowMoves(0);
  for (int i = 0; i < 100; ++i) {
    pair.Push({1, 3000 + static_cast<uint64_t>(i)});
    REQUIRE(pair.Ship() == ReplyStatus::kOk);
  }
  CHECK_FALSE(replicas.CaughtUp(0));
  replicas.AllowMoves(INT64_MAX);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  CHECK(replicas.moves_allowed() == INT64_MAX);
  REQUIRE(replicas.CaughtUp(0));
  pair.Admit();
  const auto rows = pair.primary.Scan(0, 3000);
  CHECK(rows.size() == 2100);
  pair.Promote();
  CHECK(pair.replica.Scan(0, 3000) == rows);
}

TEST_CASE("pace: a replica that is missing is copied without a limit") {
  Pair pair(OnePartition(AnyConsistency()));
  pair.Push(Keys(200));
  pair.primary.view.set_replicas(2);
  pair.AddLearner();
  pair.Apply();
  Replicas& replicas = pair.primary.engine->replicas();
  replicas.AllowMoves(0);
  REQUIRE(pair.Ship() == ReplyStatus::kOk);
  CHECK(replicas.CaughtUp(0));
  CHECK_FALSE(replicas.moves_held_back());
}

}  // namespace
}  // namespace verbena::shard
