// Changes of the values of a table's optimizer: the apply from which they are in force, at the
// primary, at replicas, in checkpoints; and refusals.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "proto/spec/optimizer_values.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"
#include "shard/table/table_optimizer.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace set_optimizer_test {

constexpr auto kOk = ReplyStatus::kOk;
constexpr uint64_t kObserver = 2000;

using Values = std::vector<std::pair<std::string, double>>;

// A change for one partition.
struct Change {
  uint64_t worker = kFirstWorker;
  uint32_t partition = 0;
  uint64_t sequence = 0;  // sync: the step
  uint32_t number = 1;    // of the client's changes
};

GroupsOutcome Set(Engine* engine, const Change& c, const Values& values, uint64_t epoch = 1) {
  static Group group;
  group = {c.partition, c.number, epoch, c.sequence, 0, 0};
  std::vector<NamedValue> named;
  for (const auto& [name, value] : values) named.push_back(MakeNamedValue(name, value));
  return engine->SetOptimizer({{9, 0, 0}, c.worker, kTable, {&group, 1}}, named);
}

FixtureOptions OneChunk(v1::Consistency consistency) {
  FixtureOptions o;
  o.consistency = consistency;
  o.chunks = o.partitions = 1;
  return o;
}

void AllowWrites(v1::ClusterView* view) {
  for (v1::Worker& w : *view->mutable_jobs(0)->mutable_members()) w.set_may_write(true);
}

TEST_CASE("set optimizer: sync: takes effect exactly at its step") {
  Fixture f(OneChunk(v1::CONSISTENCY_SYNC));
  const auto make = [&](uint64_t step, float expected) {
    f.Push(0, 0, step, 1);
    f.Push(1, 0, step, 1);
    CHECK(f.Version(0) == step + 1);
    CHECK(f.Read(0) == Filled(16, expected));
  };
  // For the next step, while this one is open.
  const GroupsOutcome out = Set(f.engine.get(), {.sequence = 1}, {{"rate", 0.5}});
  CHECK(out.answer.status == kOk);
  CHECK(out.answer.version == 1);
  CHECK(out.answer.detail == 0);
  make(0, -2);
  make(1, -3);
  // For the open step.
  CHECK(Set(f.engine.get(), {.sequence = 2, .number = 2}, {{"rate", 2}}).answer.version == 2);
  make(2, -7);
  make(3, -11);
  // No step is skipped.
  CHECK(Set(f.engine.get(), {.sequence = 7, .number = 3}, {{"rate", 4}}).answer.status ==
        ReplyStatus::kWrongStep);
}

TEST_CASE("set optimizer: sync: the worker with the greatest rank counts, in any order") {
  const bool reversed = GENERATE(false, true);
  FixtureOptions o = OneChunk(v1::CONSISTENCY_SYNC);
  o.optimizer = "momentum";
  Fixture f(o);
  const auto change = [&](uint32_t rank) {
    const Change c = {.worker = kFirstWorker + rank, .sequence = 0};
    Values values = {{"rate", rank == 0 ? 8 : 2}};
    if (rank == 0) values.emplace_back("momentum", 0.5);
    CHECK(Set(f.engine.get(), c, values).answer.status == kOk);
  };
  change(reversed ? 1 : 0);
  change(reversed ? 0 : 1);
  // The same worker again: its last value.
  const Change again = {.worker = kFirstWorker + 1, .sequence = 0, .number = 2};
  CHECK(Set(f.engine.get(), again, {{"rate", 4}}).answer.status == kOk);
  // Sent again: the one before does not come back.
  const Change resent = {.worker = kFirstWorker + 1, .sequence = 0, .number = 1};
  CHECK(Set(f.engine.get(), resent, {{"rate", 2}}).group_status[0] == ReplyStatus::kDuplicate);
  const v1::Optimizer now = f.engine->tables()[0].optimizer;
  CHECK(now.rate() == 4);
  CHECK(now.parameters().at("momentum") == 0.5);
  CHECK(f.engine->tables()[0].optimizer_changes == 3);
}

TEST_CASE("set optimizer: async and ssp: takes effect at once, in the worker's sequence") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  Fixture f(OneChunk(consistency));
  f.Push(0, 0, 1, 1);
  CHECK(Set(f.engine.get(), {.sequence = 3}, {{"rate", 4}}).answer.status ==
        ReplyStatus::kSequenceGap);
  CHECK(Set(f.engine.get(), {.sequence = 2}, {{"rate", 4}}).answer.status == kOk);
  f.Push(0, 0, 3, 1);
  CHECK(f.Read(0) == Filled(16, -5));
  // Sent again, it has no effect.
  CHECK(Set(f.engine.get(), {.worker = kFirstWorker + 1, .sequence = 1}, {{"rate", 2}})
            .answer.status == kOk);
  CHECK(Set(f.engine.get(), {.sequence = 2}, {{"rate", 4}}).group_status[0] ==
        ReplyStatus::kDuplicate);
  f.Push(1, 0, 2, 1);
  CHECK(f.Read(0) == Filled(16, -7));
  // Without values it only settles its sequence.
  CHECK(Set(f.engine.get(), {.sequence = 4}, {}).answer.status == kOk);
  CHECK(f.Push(0, 0, 5, 1).answer.status == kOk);
}

TEST_CASE(
    "set optimizer: an observer with write access changes the first step that has not begun") {
  FixtureOptions o = OneChunk(v1::CONSISTENCY_SYNC);
  o.observers = 1;
  Fixture f(o);
  CHECK(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}).answer.status ==
        ReplyStatus::kPermissionDenied);
  AllowWrites(&f.view);
  REQUIRE(f.Apply().ok());
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  f.Push(0, 0, 1, 1);
  CHECK(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}).answer.version == 1);
  f.Push(1, 0, 1, 1);
  CHECK(f.Read(0) == Filled(16, -6));
  // Sent again, it is the one that is there.
  CHECK(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}).group_status[0] ==
        ReplyStatus::kDuplicate);
  CHECK(f.engine->tables()[0].optimizer_changes == 1);
  CHECK(f.engine->tables()[0].optimizer_from == 1);
}

TEST_CASE("regression: set optimizer: a change that an observer sends again counts once") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  FixtureOptions o = OneChunk(consistency);
  o.observers = 2;
  Fixture f(o);
  AllowWrites(&f.view);
  REQUIRE(f.Apply().ok());
  const Change mine = {.worker = kObserver}, other = {.worker = kObserver + 1};
  CHECK(Set(f.engine.get(), mine, {{"rate", 2}}).group_status[0] == kOk);
  CHECK(Set(f.engine.get(), other, {{"rate", 4}}).group_status[0] == kOk);
  // Its answer was lost.
  CHECK(Set(f.engine.get(), mine, {{"rate", 2}}).group_status[0] == ReplyStatus::kDuplicate);
  CHECK(f.engine->tables()[0].optimizer.rate() == 4);
  CHECK(f.engine->tables()[0].optimizer_changes == 2);
  const Change next = {.worker = kObserver, .number = 2};
  CHECK(Set(f.engine.get(), next, {{"rate", 8}}).group_status[0] == kOk);
}

TEST_CASE(
    "regression: set optimizer: an observer's value is in force from the step in its answer") {
  FixtureOptions o = OneChunk(v1::CONSISTENCY_SYNC);
  o.optimizer = "momentum";
  o.observers = 1;
  Fixture f(o);
  AllowWrites(&f.view);
  REQUIRE(f.Apply().ok());
  const auto rate_after = [&](uint64_t step) {
    f.Push(0, 0, step, 1);
    f.Push(1, 0, step, 1);
    REQUIRE(f.Version(0) == step + 1);
    return f.engine->tables()[0].optimizer.rate();
  };
  // Workers have values for the open step and for the next one, and may end before these steps.
  CHECK(Set(f.engine.get(), {.sequence = 0}, {{"rate", 8}}).answer.status == kOk);
  const Change next = {.worker = kFirstWorker + 1, .sequence = 1};
  CHECK(Set(f.engine.get(), next, {{"rate", 4}}).answer.status == kOk);
  CHECK(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}).answer.version == 2);
  // A value that no worker has set.
  const Change other = {.worker = kObserver, .number = 2};
  CHECK(Set(f.engine.get(), other, {{"momentum", 0.5}}).answer.version == 0);
  CHECK(f.engine->tables()[0].optimizer.parameters().at("momentum") == 0.5);
  CHECK(rate_after(0) == 4);
  CHECK(rate_after(1) == 2);
}

TEST_CASE("set optimizer: a step in two phases has the values that its norms were measured with") {
  FixtureOptions o = OneChunk(v1::CONSISTENCY_SYNC);
  o.optimizer = "lamb";
  o.rate = 0.1;
  o.initial = 2;
  o.observers = 1;
  const auto run = [&](bool change) {
    Fixture f(o);
    AllowWrites(&f.view);
    REQUIRE(f.Apply().ok());
    f.Push(0, 0, 0, 1);
    f.Push(1, 0, 0, 2);
    if (change) {
      const Values values = {{"rate", 0.5}, {"beta1", 0.1}, {"weight_decay", 3}};
      CHECK(Set(f.engine.get(), {.worker = kObserver}, values).answer.version == 1);
    }
    Group group = {0, static_cast<uint32_t>(NormKind::kTrust), 1, 0, 0, 0};
    CHECK(
        f.engine->Totals({{0, 8, 0}, kFirstWorker, kTable, {&group, 1}}, {64, 16}).answer.status ==
        kOk);
    CHECK(f.Version(0) == 1);
    return f.Read(0);
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("set optimizer: rows of two partitions with other values at the same apply") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  RowOptions o;
  o.workers = 1;
  o.partitions = 2;
  o.dim = 4;
  o.consistency = consistency;
  o.optimizer.set_name("adam");
  o.optimizer.set_rate(1);
  o.initializer.set_kind(v1::Initializer::CONSTANT);
  RowFixture f(o);
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  const auto key_in = [&](uint32_t partition) {
    uint64_t key = 0;
    while (PartitionOfKey(kTable, key, o.partitions) != partition) ++key;
    return key;
  };
  // Adam's first apply moves each number by the rate.
  CHECK(Set(f.engine.get(), {.partition = 1, .sequence = sync ? 0u : 1u}, {{"rate", 0.25}})
            .answer.status == kOk);
  for (uint32_t p = 0; p < 2; ++p) {
    const uint64_t first = sync ? 0 : p + 1;  // behind the change
    REQUIRE(f.PushValue(0, p, first, {key_in(p)}, 1) == kOk);
    if (sync) REQUIRE(f.EndStatus(0, p, 0, 1) == kOk);
  }
  CHECK(f.ReadRow(key_in(0))[0] == Approx(-1).epsilon(1e-5));
  CHECK(f.ReadRow(key_in(1))[0] == Approx(-0.25).epsilon(1e-5));
}

TEST_CASE("set optimizer: values that the table does not have are refused") {
  FixtureOptions o = OneChunk(v1::CONSISTENCY_ASYNC);
  o.optimizer = "momentum";
  o.more.set_clip_value(1);
  Fixture f(o);
  for (const Values& values :
       {Values{{"beta1", 0.5}}, Values{{"momentum", 1}}, Values{{"rate", -1}},
        Values{{"clip_chunk_norm", 1}}, Values{{"rate", 1}, {"rate", 2}}}) {
    CHECK(Set(f.engine.get(), {.sequence = 1}, values).answer.status == ReplyStatus::kOutOfRange);
  }
  CHECK(Set(f.engine.get(), {.sequence = 1}, {{"clip_value", 2}, {"weight_decay", 1}})
            .answer.status == kOk);
  CHECK(f.engine->tables()[0].optimizer.clip_value() == 2);
}

TEST_CASE(
    "set optimizer: values stay when the job begins anew, and not when the partition is reset") {
  Fixture f(OneChunk(v1::CONSISTENCY_SYNC));
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  CHECK(Set(f.engine.get(), {.sequence = 1}, {{"rate", 4}}).answer.status == kOk);
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  CHECK(f.Read(0) == Filled(16, -10));
  f.view.mutable_tables(0)->add_lost_partitions(0);
  REQUIRE(f.Apply().ok());
  f.view.mutable_tables(0)->clear_lost_partitions();
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->tables()[0].optimizer_changes == 0);
}

TEST_CASE("set optimizer: ftrl's sums stay those of the rates at which they were made") {
  FixtureOptions o = OneChunk(v1::CONSISTENCY_ASYNC);
  o.workers = 1;
  o.optimizer = "ftrl";
  o.rate = 0.5;
  o.more.mutable_parameters()->insert({"l1", 0.25});
  Fixture f(o);
  f.Push(0, 0, 1, 2);
  const float before = f.Read(0)[0];
  REQUIRE(Set(f.engine.get(), {.sequence = 2}, {{"rate", 0.125}}).answer.status == kOk);
  f.Push(0, 0, 3, 0);
  // Without a gradient the weights stay: z follows the rate.
  CHECK(f.Read(0)[0] == Approx(before).epsilon(1e-5));
}

// ---- replicas -----------------------------------------------------------------------------------

struct Copy {
  explicit Copy(Fixture* primary) : f(*primary) {
    EngineOptions options;
    options.server = kServer + 1;
    engine = std::make_unique<Engine>(options);
  }
  void Add(bool learner) {
    v1::Partition* partition = f.view.mutable_partitions(0);
    partition->clear_learners();
    partition->clear_followers();
    v1::Replica* replica = learner ? partition->add_learners() : partition->add_followers();
    replica->set_server(kServer + 1);
    replica->set_since(since);
    REQUIRE(f.Apply().ok());
    REQUIRE(engine->ApplyView(f.view).ok());
  }
  ReplyStatus Ship() {
    ReplyStatus worst = kOk;
    std::vector<ReplicaRecord> records;
    while (f.engine->replicas().Take(&records, 100)) {
      for (const ReplicaRecord& r : records) {
        const ReplicaBytes bytes(r);
        const ReplyStatus status =
            engine->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status;
        f.engine->replicas().Answered(r.to, 0, r.group.sequence, status);
        worst = std::max(worst, status);
      }
      records.clear();
    }
    return worst;
  }
  // It becomes the primary.
  void Promote() {
    v1::Partition* partition = f.view.mutable_partitions(0);
    partition->clear_learners();
    partition->clear_followers();
    partition->set_primary(kServer + 1);
    partition->set_epoch(partition->epoch() + 1);
    REQUIRE(f.Apply().ok());
    REQUIRE(engine->ApplyView(f.view).ok());
    std::swap(f.engine, engine);
  }
  Fixture& f;
  std::unique_ptr<Engine> engine;
  uint64_t since = 2;
};

TEST_CASE("set optimizer: a follower has a change before it is acknowledged, and applies with it") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  Fixture f(OneChunk(consistency));
  Copy copy(&f);
  copy.Add(false);
  REQUIRE(copy.Ship() == kOk);
  const uint64_t first = consistency == v1::CONSISTENCY_SYNC ? 0 : 1;
  // A push before the change is applied with the value before, although it waits for the follower.
  if (first == 1) f.Push(0, 0, 1, 1);
  const Change change = {.worker = kFirstWorker + 1, .sequence = first};
  CHECK(Set(f.engine.get(), change, {{"rate", 4}}).replicating);
  // Sent again before the follower has it: it waits, too.
  CHECK(Set(f.engine.get(), change, {{"rate", 4}}).replicating);
  REQUIRE(copy.Ship() == kOk);
  f.Push(0, 0, first == 0 ? 0 : 2, 1);
  f.Push(1, 0, first == 0 ? 0 : 2, 1);
  REQUIRE(copy.Ship() == kOk);
  const float expected = first == 0 ? -8 : -9;
  CHECK(f.Read(0) == Filled(16, expected));
  copy.Promote();
  CHECK(f.Read(0) == Filled(16, expected));
  CHECK(f.engine->tables()[0].optimizer.rate() == 4);
}

TEST_CASE("set optimizer: a learner gets the values, and proves them") {
  Fixture f(OneChunk(v1::CONSISTENCY_SYNC));
  REQUIRE(Set(f.engine.get(), {.sequence = 0}, {{"rate", 2}}).answer.status == kOk);
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  REQUIRE(Set(f.engine.get(), {.sequence = 1, .number = 2}, {{"rate", 4}}).answer.status == kOk);
  REQUIRE(Set(f.engine.get(), {.sequence = 2, .number = 3}, {{"rate", 8}}).answer.status == kOk);
  Copy copy(&f);
  copy.Add(true);
  for (int i = 0; i < 20 && !f.engine->replicas().CaughtUp(0); ++i) REQUIRE(copy.Ship() == kOk);
  REQUIRE(f.engine->replicas().CaughtUp(0));
  copy.Promote();
  CHECK(f.Read(0) == Filled(16, -4));
  for (uint64_t step = 1; step < 3; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) f.Push(rank, 0, step, 1);
  }
  CHECK(f.Read(0) == Filled(16, -28));
}

TEST_CASE("set optimizer: a change counts once, also at a replica that has caught up since") {
  FixtureOptions o = OneChunk(GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC));
  o.observers = 2;
  Fixture f(o);
  AllowWrites(&f.view);
  REQUIRE(f.Apply().ok());
  REQUIRE(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}).answer.status == kOk);
  REQUIRE(Set(f.engine.get(), {.worker = kObserver + 1}, {{"rate", 4}}).answer.status == kOk);
  Copy copy(&f);
  copy.Add(true);
  for (int i = 0; i < 20 && !f.engine->replicas().CaughtUp(0); ++i) REQUIRE(copy.Ship() == kOk);
  REQUIRE(f.engine->replicas().CaughtUp(0));
  copy.Promote();
  CHECK(Set(f.engine.get(), {.worker = kObserver}, {{"rate", 2}}, 2).group_status[0] ==
        ReplyStatus::kDuplicate);
  CHECK(f.engine->tables()[0].optimizer.rate() == 4);
  CHECK(f.engine->tables()[0].optimizer_changes == 2);
}

TEST_CASE("failpoint: a replica does not get changes of the optimizer") {
  Fixture f(OneChunk(v1::CONSISTENCY_SYNC));
  Copy copy(&f);
  copy.Add(false);
  REQUIRE(copy.Ship() == kOk);
  failpoints().keep_optimizer = true;
  CHECK_FALSE(Set(f.engine.get(), {.sequence = 0}, {{"rate", 4}}).replicating);
  failpoints().keep_optimizer = false;
  REQUIRE(f.engine->proofs().AuditFollowers(1 << 20));
  ReplyStatus worst = copy.Ship();
  for (int i = 0; i < 4 && worst == kOk; ++i) {
    f.engine->proofs().AuditFollowers(1 << 20);
    worst = copy.Ship();
  }
  CHECK(worst == ReplyStatus::kDataLoss);
}

TEST_CASE("set optimizer: a primary's changes are all checked before one is made") {
  v1::Optimizer spec;
  spec.set_name("momentum");
  TableOptimizer optimizer(spec, *MakeOptimizer(spec));
  OptimizerChange change = {3, 1000, 1, 0, {}};
  CHECK_FALSE(optimizer.AddEncoded(0, 1, TableOptimizer::Encode({3, 0, 0, 0, {}}), 0));
  change.values = {MakeNamedValue("rate", 2)};
  const std::vector<std::byte> good = TableOptimizer::Encode(change);
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    CHECK_FALSE(optimizer.AddEncoded(0, 1, absl::MakeConstSpan(good).first(bytes), 0));
  }
  CHECK_FALSE(optimizer.AddEncoded(0, 0, good, 0));
  CHECK_FALSE(optimizer.AddEncoded(0, 2, good, 0));
  change.values = {MakeNamedValue("momentum", 1)};
  CHECK_FALSE(optimizer.AddEncoded(0, 1, TableOptimizer::Encode(change), 0));
  CHECK(optimizer.Count(0) == 0);
  CHECK(optimizer.AddEncoded(0, 1, good, 0));
  CHECK(optimizer.Count(0) == 2);  // and the client that has made it
  CHECK(optimizer.At(0, 2).get() == &optimizer.initial());
  CHECK(optimizer.At(0, 3).get() != &optimizer.initial());
}

TEST_CASE("set optimizer: a slice keeps as many changes as workers can make for two steps") {
  v1::Optimizer spec;
  spec.set_name("sgd");
  TableOptimizer optimizer(spec, *MakeOptimizer(spec));
  for (uint64_t step = 0; step < 100; ++step) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      bool added = false;
      const OptimizerChange change = {step,
                                      1000u + static_cast<uint64_t>(rank),
                                      step + 1,
                                      rank,
                                      {MakeNamedValue("rate", 1 + rank)}};
      optimizer.Add(0, change, step, &added);
      CHECK(added);
      CHECK(optimizer.Count(0) <= 1 + 4 + 4);  // and the clients
    }
  }
  uint64_t changes = 0;
  CHECK(optimizer.SpecAt(0, 99, &changes).rate() == 4);
  CHECK(changes == 400);
}

// ---- checkpoints --------------------------------------------------------------------------------

TEST_CASE("set optimizer: a checkpoint has the values of its step") {
  Fixture f(OneChunk(v1::CONSISTENCY_SYNC));
  REQUIRE(Set(f.engine.get(), {.sequence = 1}, {{"rate", 2}}).answer.status == kOk);
  PartitionCheckpointRequest request;
  request.id = 1;
  request.tables = {{kTable, 1}};
  std::vector<uint64_t> newest;
  REQUIRE(f.engine->checkpoints().Begin(request, &newest).ok());
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint32_t rank = 0; rank < 2; ++rank) f.Push(rank, 0, step, 1);
    const Change change = {.sequence = step + 2, .number = static_cast<uint32_t>(step) + 2};
    REQUIRE(Set(f.engine.get(), change, {{"rate", 16}}).answer.status == kOk);
  }
  CheckpointPiece piece;
  while (f.engine->checkpoints().Take(1, &piece) && piece.kind != CheckpointPiece::Kind::kEnd) {
    f.engine->checkpoints().Release(1, piece.id);
  }
  REQUIRE(piece.kind == CheckpointPiece::Kind::kEnd);
  CHECK(piece.optimizer_changes == 1);
  CHECK(piece.optimizer.rate() == 2);
  CHECK(piece.optimizer.changed());
  f.engine->checkpoints().Commit(1);
}

}  // namespace set_optimizer_test
}  // namespace verbena::shard
