// Former findings of the swarm, each reproduced without the rest of a cluster.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/optimizer_values.h"
#include "shard/checkpoint/restores.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/cluster/replica_compare.h"
#include "tests/cluster/seeds.h"
#include "tests/cluster/sim_inputs.h"
#include "tests/cluster/swarm.h"
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
  void Take() { primary.engine->replicas().Take(&records, 64); }
  bool Deliver() {
    for (const ReplicaRecord& record : std::exchange(records, {})) {
      const ReplicaBytes bytes(record);
      const Answer answer =
          copy.engine->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload());
      if (answer.status == ReplyStatus::kDataLoss) return false;  // it is no copy of its primary
      REQUIRE(answer.status == ReplyStatus::kOk);
      primary.engine->replicas().Answered(record.to, 0, record.group.sequence, answer.status);
    }
    return true;
  }

  Fixture primary, copy;
  std::vector<ReplicaRecord> records;
};

// Whether the copy equals the primary after a push to a new table. The table is created when all
// earlier tables were sent to the learner, which has not answered yet.
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
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
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
  failpoints().skip_next_table = true;
  const bool reaches = NewTableReachesLearner();
  failpoints().skip_next_table = false;
  CHECK_FALSE(reaches);
}

// Whether a push that a learner is sent is answered only when pulls show it, while pulls that
// nobody ends hold all buffers.
bool AnswersAreApplied() {
  FixtureOptions options;
  options.workers = options.partitions = options.chunks = 1;
  options.consistency = v1::CONSISTENCY_ASYNC;
  Pair pair(options);
  EngineOptions engine;
  engine.server = kServer;
  engine.spare_buffers = 2;
  pair.primary.engine = std::make_unique<Engine>(engine);
  pair.Apply();
  v1::Replica* learner = pair.partition()->add_learners();
  learner->set_server(kCopy);
  learner->set_since(2);
  pair.partition()->set_configuration(2);
  pair.Apply();
  pair.Take();
  std::vector<uint64_t> pins;
  for (uint64_t pushed = 1; pushed <= 8; ++pushed) {
    const PushOutcome push = pair.primary.Push(0, 0, pushed, 1.0f);
    REQUIRE_FALSE(push.held);
    REQUIRE(push.answer.status == ReplyStatus::kOk);
    const PullOutcome pull = pair.primary.Pull(kFirstWorker, 0, 0);
    REQUIRE(pull.kind == PullOutcome::Kind::kReady);
    pins.push_back(pull.view.pin);
    if (!push.replicating && pull.view.version < pushed) return false;
    if (!push.replicating) continue;
    for (const uint64_t pin : pins) pair.primary.engine->Unpin(pin);
    const std::vector<Event> events = pair.primary.Events();
    const bool answered = std::any_of(events.begin(), events.end(), [](const Event& event) {
      return event.kind == Event::Kind::kReplicated && event.answer.status == ReplyStatus::kOk;
    });
    return answered && pair.primary.Version(0) == pushed;
  }
  return false;
}

TEST_CASE("regression: a push that a learner is sent is answered when it is applied") {
  CHECK(AnswersAreApplied());
}

TEST_CASE("failpoint: a push that a learner is sent is answered before it is applied") {
  failpoints().answer_unapplied = true;
  const bool applied = AnswersAreApplied();
  failpoints().answer_unapplied = false;
  CHECK_FALSE(applied);
}

// Result of the swarm's check of a primary's log with that limit, while a learner catches up and
// workers push to chunks.
std::string ExcessOfCatchUp(uint64_t limit) {
  FixtureOptions options;
  options.workers = options.partitions = 1;
  options.chunks = 12;
  options.consistency = v1::CONSISTENCY_ASYNC;
  Pair pair(options);
  EngineOptions engine;
  engine.server = kServer;
  engine.replica_log = {limit, limit, limit};
  pair.primary.engine = std::make_unique<Engine>(engine);
  pair.Apply();
  uint64_t sequence = 0;
  for (uint32_t chunk = 0; chunk < options.chunks; ++chunk) {
    REQUIRE(pair.primary.Push(0, chunk, ++sequence, 1.0f).answer.status == ReplyStatus::kOk);
  }
  // The learner is sent the change, too.
  const Group group{0, 1, 1, ++sequence, 0, 0};
  const GroupsRequest change{{9, 0, 0}, kFirstWorker, kTable, {&group, 1}};
  const NamedValue rate = MakeNamedValue("rate", 2);
  REQUIRE(pair.primary.engine->SetOptimizer(change, {&rate, 1}).answer.status == ReplyStatus::kOk);
  v1::Replica* learner = pair.partition()->add_learners();
  learner->set_server(kCopy);
  learner->set_since(2);
  pair.partition()->set_configuration(2);
  pair.Apply();
  for (int round = 0; round < 40; ++round) {
    pair.Take();
    const std::string excess = test::ReplicaLogExcess(*pair.primary.engine);
    if (!excess.empty()) return excess;
    if (failpoints().unbounded_log) pair.primary.Push(0, 0, ++sequence, 1.0f);
    if (!failpoints().unbounded_log) REQUIRE(pair.Deliver());
  }
  REQUIRE((failpoints().unbounded_log || pair.primary.engine->replicas().CaughtUp(0)));
  return "";
}

TEST_CASE("regression: the ends of a catch-up are beside the limits of the log, and nothing else") {
  for (uint64_t limit = 512; limit <= 8192; limit += 16) {
    CAPTURE(limit);
    CHECK(ExcessOfCatchUp(limit) == "");
  }
  failpoints().unbounded_log = true;
  const std::string excess = ExcessOfCatchUp(512);
  failpoints().unbounded_log = false;
  CHECK(excess != "");
}

TEST_CASE("simulator: a process that is not due has nothing to do") {
  test::SimIdleCheck& check = test::sim_idle_check();
  const bool was_on = std::exchange(check.on, true);
  const uint64_t run = check.run, did = check.did_something;
  // A sanitizer is ten times slower, and finds nothing more here.
  const uint64_t seeds =
      std::min<uint64_t>(20, test::SeedsFromEnvironment("VERBENA_SEEDS_AT_LEAST", 40) / 2);
  for (uint64_t seed = 1; seed <= seeds; ++seed) test::RunSwarm(seed);
  CHECK(check.run > run + 1000);
  CHECK(check.did_something == did);
  check.forget_calls = true;
  test::RunSwarm(1);
  check.forget_calls = false;
  CHECK(check.did_something > did);
  check.on = was_on;
}

// The values that a copy with all data of its primary serves after its next view, in which it is
// the primary itself. `reset`: the partition was lost and reset meanwhile.
std::vector<float> ServedAfterReset(bool reset) {
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
  REQUIRE(pair.primary.engine->replicas().CaughtUp(0));
  pair.copy.view = pair.primary.view;
  v1::Partition* partition = pair.copy.view.mutable_partitions(0);
  partition->clear_learners();
  partition->set_primary(kCopy);
  partition->set_epoch(partition->epoch() + 2);
  if (reset) partition->set_renewed_epoch(partition->epoch());
  partition->set_configuration(5);
  REQUIRE(pair.copy.Apply().ok());
  return pair.copy.Read(0);
}

TEST_CASE("regression: a copy that missed that its partition was lost and reset starts anew") {
  // A promoted copy goes on with its data.
  CHECK(ServedAfterReset(false).front() == -1);
  CHECK(ServedAfterReset(true).front() == 0);
  failpoints().keep_lost = true;
  const std::vector<float> kept = ServedAfterReset(true);
  failpoints().keep_lost = false;
  CHECK(kept.front() == -1);
}

// Whether a copy serves the loaded values if it becomes the primary when its table was loaded and
// the view does not show this yet.
bool CopyKeepsWhatWasRestored() {
  FixtureOptions options;
  options.workers = options.partitions = options.chunks = 1;
  options.consistency = v1::CONSISTENCY_ASYNC;
  Pair pair(options);
  pair.primary.view.mutable_tables(0)->set_restoring(true);
  v1::Replica* follower = pair.partition()->add_followers();
  follower->set_server(kCopy);
  follower->set_since(1);
  pair.partition()->set_configuration(1);
  pair.Apply();
  const std::vector<float> values(options.chunk_elements, 3.0f);
  ElementsToRestore elements;
  elements.table = kTable;
  elements.count = values.size();
  elements.parameters = {reinterpret_cast<const std::byte*>(values.data()),
                         values.size() * sizeof(float)};
  elements.applies = 1;
  RestoreRequest request;
  request.table = kTable;
  REQUIRE(pair.primary.engine->restores().Begin(request).ok());
  for (int i = 0; i < 4; ++i) {
    (void)pair.primary.engine->restores().LoadElements(elements);
    (void)pair.primary.engine->restores().Finish(kTable);
    pair.Take();
    REQUIRE(pair.Deliver());
  }
  REQUIRE(pair.primary.engine->restores().progress(kTable)->complete());
  pair.partition()->clear_followers();
  pair.partition()->set_primary(kCopy);
  pair.partition()->set_epoch(2);
  pair.partition()->set_configuration(2);
  v1::ClusterView& view = pair.primary.view;
  view.set_revision(view.revision() + 1);
  REQUIRE(pair.copy.engine->ApplyView(view).ok());
  view.mutable_tables(0)->set_restoring(false);
  view.set_revision(view.revision() + 1);
  REQUIRE(pair.copy.engine->ApplyView(view).ok());
  pair.copy.view = view;
  return pair.copy.Read(0) == values;
}

TEST_CASE("regression: a copy that becomes the primary during a restore has the loaded values") {
  CHECK(CopyKeepsWhatWasRestored());
  failpoints().forget_inherited = true;
  const bool keeps = CopyKeepsWhatWasRestored();
  failpoints().forget_inherited = false;
  CHECK_FALSE(keeps);
}

}  // namespace
}  // namespace verbena::shard
