// What the swarm found, each shown without the rest of a cluster.
#include <catch2/catch.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "shard/planted_bugs.h"
#include "tests/cluster/replica_compare.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_bytes.h"

namespace verbena::shard {
namespace {

constexpr uint64_t kCopy = kServer + 1;

// A primary and a copy, by the same view.
struct Pair {
  explicit Pair(const FixtureOptions& options) : primary(options), copy(options) {
    EngineOptions engine;
    engine.server = kServer;
    primary.engine = std::make_unique<Engine>(engine);
    engine.server = kCopy;
    copy.engine = std::make_unique<Engine>(engine);
  }
  void Apply() {
    REQUIRE(primary.Apply().ok());
    REQUIRE(copy.engine->ApplyView(primary.view).ok());
  }
  v1::Partition* partition() { return primary.view.mutable_partitions(0); }
  // Nothing is answered yet.
  void Take() { primary.engine->TakeReplicas(&records, 64); }
  bool Deliver() {
    for (const ReplicaRecord& record : std::exchange(records, {})) {
      const ReplicaBytes bytes(record);
      const Answer answer = copy.engine->Replicate({kServer, 0}, bytes.record(), bytes.payload());
      if (answer.status == ReplyStatus::kDataLoss) return false;  // it is no copy of its primary
      REQUIRE(answer.status == ReplyStatus::kOk);
      primary.engine->ReplicaAnswered(record.to, 0, record.group.sequence, answer.status);
    }
    return true;
  }

  Fixture primary, copy;
  std::vector<ReplicaRecord> records;
};

// Whether the copy is what the primary is after a push to a table that is made when the learner was
// sent all of the tables that there were, and has not answered.
bool NewTableReachesLearner() {
  FixtureOptions options;
  options.workers = options.partitions = options.chunks = 1;
  options.consistency = v1::CONSISTENCY_ASYNC;
  Pair pair(options);
  pair.primary.view.clear_tables();
  *pair.primary.view.add_tables() = pair.primary.MakeTable(kTable - 1, "before");
  pair.Apply();
  v1::Replica* learner = pair.partition()->add_learners();
  learner->set_server(kCopy);
  learner->set_since(2);
  pair.partition()->set_configuration(2);
  pair.Apply();
  pair.Take();
  *pair.primary.view.add_tables() = pair.primary.MakeTable(kTable, "after");
  pair.Apply();
  REQUIRE(pair.primary.Push(0, 0, 1, 1.0f).answer.status == ReplyStatus::kOk);
  for (int i = 0; i < 4; ++i) {
    if (!pair.Deliver()) return false;
    pair.Take();
  }
  if (!pair.Deliver()) return false;
  REQUIRE(pair.primary.engine->CaughtUp(0));
  *pair.partition()->add_followers() = pair.partition()->learners(0);
  pair.partition()->clear_learners();
  pair.partition()->set_configuration(3);
  pair.Apply();
  const test::ReplicaComparison comparison =
      test::CompareReplicas(*pair.primary.engine, *pair.copy.engine, 0);
  REQUIRE(comparison.comparable);
  return comparison.difference.empty();
}

TEST_CASE(
    "regression: a dense push to a table made while a learner catches up reaches the learner") {
  CHECK(NewTableReachesLearner());
  planted_bugs().skip_next_table = true;
  const bool reaches = NewTableReachesLearner();
  planted_bugs().skip_next_table = false;
  CHECK_FALSE(reaches);
}

// What a copy that has all of its primary serves, where it next hears that it is the primary itself
// of a partition that was lost and reset meanwhile.
std::vector<float> ServedAfterReset(uint64_t epochs) {
  FixtureOptions options;
  options.workers = options.partitions = options.chunks = 1;
  options.consistency = v1::CONSISTENCY_ASYNC;
  Pair pair(options);
  pair.Apply();
  v1::Replica* learner = pair.partition()->add_learners();
  learner->set_server(kCopy);
  learner->set_since(2);
  pair.partition()->set_configuration(2);
  pair.Apply();
  REQUIRE(pair.primary.Push(0, 0, 1, 1.0f).answer.status == ReplyStatus::kOk);
  for (int i = 0; i < 5; ++i) {
    pair.Take();
    REQUIRE(pair.Deliver());
  }
  REQUIRE(pair.primary.engine->CaughtUp(0));
  pair.copy.view = pair.primary.view;
  v1::Partition* partition = pair.copy.view.mutable_partitions(0);
  partition->clear_learners();
  partition->set_primary(kCopy);
  partition->set_epoch(partition->epoch() + epochs);
  partition->set_configuration(5);
  REQUIRE(pair.copy.Apply().ok());
  return pair.copy.Read(0);
}

TEST_CASE("regression: a copy that missed that its partition was lost and reset starts anew") {
  // Promoted, it goes on with what it has.
  CHECK(ServedAfterReset(1).front() == -1);
  CHECK(ServedAfterReset(2).front() == 0);
  planted_bugs().keep_lost = true;
  const std::vector<float> kept = ServedAfterReset(2);
  planted_bugs().keep_lost = false;
  CHECK(kept.front() == -1);
}

}  // namespace
}  // namespace verbena::shard
