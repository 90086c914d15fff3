// A new run of a job begins while the follower has not acknowledged the pushes of the last one:
// reads show nothing that a failover would revert.
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "proto/spec/optimizer_values.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

constexpr uint64_t kFollower = kServer + 1;
constexpr uint64_t kObserver = 2000;
constexpr float kPushed = 8;

// A primary, which is the fixture's engine, and its follower.
template <typename F>
class WithFollower {
 public:
  explicit WithFollower(F* fixture) : f_(*fixture) {
    v1::Replica* follower = f_.view.mutable_partitions(0)->add_followers();
    follower->set_server(kFollower);
    follower->set_since(2);
    EngineOptions options;
    options.server = kFollower;
    follower_ = std::make_unique<Engine>(options);
    Apply();
    Ship();
  }
  // The follower takes everything and acknowledges it.
  void Ship() {
    std::vector<ReplicaRecord> records;
    f_.engine->replicas().Take(&records, 100);
    for (const ReplicaRecord& r : records) {
      const ReplicaBytes bytes(r);
      REQUIRE(follower_->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status ==
              ReplyStatus::kOk);
      f_.engine->replicas().Answered(r.to, 0, r.group.sequence, ReplyStatus::kOk);
    }
  }
  // `slow`: the follower does not get that view.
  void BeginAgain(bool slow = false) {
    f_.job()->set_generation(f_.job()->generation() + 1);
    REQUIRE(f_.Apply().ok());
    if (!slow) REQUIRE(follower_->ApplyView(f_.view).ok());
  }
  void DropFollower() {
    f_.view.mutable_partitions(0)->clear_followers();
    Apply();
  }
  // The primary dies: from here on the fixture's engine is the former follower.
  void FailOver() {
    v1::Partition* partition = f_.view.mutable_partitions(0);
    partition->clear_followers();
    partition->set_primary(kFollower);
    partition->set_epoch(partition->epoch() + 1);
    f_.engine = std::move(follower_);
    Apply();
  }
  absl::Status BeginCheckpoint() {
    PartitionCheckpointRequest request;
    request.id = 1;
    request.tables.push_back({});
    request.tables.back().table = kTable;
    std::vector<uint64_t> newest;
    return f_.engine->checkpoints().Begin(request, &newest);
  }

  void Apply() {
    REQUIRE(f_.Apply().ok());
    if (follower_ != nullptr) REQUIRE(follower_->ApplyView(f_.view).ok());
  }
  Engine* follower() { return follower_.get(); }

 private:
  F& f_;
  std::unique_ptr<Engine> follower_;
};

FixtureOptions DenseOfOne(v1::Consistency consistency) {
  FixtureOptions options;
  options.consistency = consistency;
  options.workers = options.observers = options.partitions = options.chunks = 1;
  return options;
}

RowOptions RowsOfOne(v1::Consistency consistency) {
  RowOptions options;
  options.consistency = consistency;
  options.workers = options.observers = options.partitions = 1;
  return options;
}

bool HasFailed(const std::vector<Event>& events, uint32_t lane, ReplyStatus why) {
  for (const Event& e : events) {
    if (e.token.lane == lane) return e.kind == Event::Kind::kPullFailed && e.answer.status == why;
  }
  return false;
}

TEST_CASE("regression: a new run reads a chunk only when its follower has it") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  enum class Then { kFailOver, kAnswer, kDrop };
  const Then then = GENERATE(Then::kFailOver, Then::kAnswer, Then::kDrop);
  Fixture f(DenseOfOne(consistency));
  WithFollower<Fixture> pair(&f);
  const std::vector<float> before = f.Read(0);
  REQUIRE(f.Push(0, 0, consistency == v1::CONSISTENCY_SYNC ? 0 : 1, kPushed).answer.status ==
          ReplyStatus::kOk);
  REQUIRE(f.Read(0) == before);
  // An ssp observer waits for nothing.
  const bool waits = consistency != v1::CONSISTENCY_SSP;
  if (waits) REQUIRE(f.Pull(kObserver, 0, 1, /*lane=*/5).kind == PullOutcome::Kind::kDeferred);
  pair.BeginAgain();
  if (waits) CHECK(HasFailed(f.Events(), 5, ReplyStatus::kNotReady));
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == ReplyStatus::kNotReady);
  CHECK(absl::IsUnavailable(pair.BeginCheckpoint()));
  if (then == Then::kFailOver) {
    pair.FailOver();
    CHECK(f.Read(0) == before);
    return;
  }
  if (then == Then::kAnswer) pair.Ship();
  if (then == Then::kDrop) pair.DropFollower();
  const std::vector<float> after = f.Read(0);
  CHECK(after == Filled(f.elements(0), before[0] - kPushed));
  if (then == Then::kDrop) return;
  pair.FailOver();
  CHECK(f.Read(0) == after);
}

TEST_CASE("regression: a new run reads rows only when their follower has them") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const bool fails_over = GENERATE(false, true);
  RowFixture f(RowsOfOne(consistency));
  WithFollower<RowFixture> pair(&f);
  const std::vector<uint64_t> keys = {3, 5};
  const Rows before = f.Read(keys);
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  REQUIRE(f.PushValue(0, 0, sync ? 0 : 1, keys, kPushed) == ReplyStatus::kOk);
  if (sync) REQUIRE(f.EndStatus(0, 0, 0, 1) == ReplyStatus::kOk);
  REQUIRE(SameRows(f.Read(keys), before));
  pair.BeginAgain();
  CHECK(f.Lookup(kFirstWorker, keys, 0).answer.status == ReplyStatus::kNotReady);
  CHECK(f.ScanAt(0, 0, 10).answer.status == ReplyStatus::kNotReady);
  CHECK(absl::IsUnavailable(pair.BeginCheckpoint()));
  if (fails_over) {
    pair.FailOver();
    CHECK(SameRows(f.Read(keys), before));
    return;
  }
  pair.Ship();
  const Rows after = f.Read(keys);
  CHECK_FALSE(SameRows(after, before));
  CHECK_FALSE(f.Scan(0, 10).empty());
  pair.FailOver();
  CHECK(SameRows(f.Read(keys), after));
}

// A follower may learn by one view that a run has begun and that it is the primary, when it has
// steps of that run. Whether it has them still.
bool KeepsChunk(v1::Consistency consistency, bool slow) {
  const uint64_t first = consistency == v1::CONSISTENCY_SYNC ? 0 : 1;
  Fixture f(DenseOfOne(consistency));
  WithFollower<Fixture> pair(&f);
  pair.BeginAgain(slow);
  pair.Ship();
  REQUIRE(f.Push(0, 0, first, kPushed).answer.status == ReplyStatus::kOk);
  pair.Ship();
  const std::vector<float> after = f.Read(0);
  pair.FailOver();
  return f.Push(0, 0, first, kPushed).answer.status == ReplyStatus::kDuplicate &&
         f.Read(0) == after && f.Push(0, 0, first + 1, kPushed).answer.status == ReplyStatus::kOk;
}

bool KeepsRows(v1::Consistency consistency, bool slow) {
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  const uint64_t first = sync ? 0 : 1;
  const std::vector<uint64_t> keys = {3, 5};
  RowFixture f(RowsOfOne(consistency));
  WithFollower<RowFixture> pair(&f);
  pair.BeginAgain(slow);
  pair.Ship();
  REQUIRE(f.PushValue(0, 0, first, keys, kPushed) == ReplyStatus::kOk);
  if (sync) REQUIRE(f.EndStatus(0, 0, 0, 1) == ReplyStatus::kOk);
  pair.Ship();
  const Rows after = f.Read(keys);
  pair.FailOver();
  return f.PushValue(0, 0, first, keys, kPushed) == ReplyStatus::kDuplicate &&
         SameRows(f.Read(keys), after) &&
         f.PushValue(0, 0, first + 1, keys, kPushed) == ReplyStatus::kOk;
}

TEST_CASE("regression: a follower that missed the start of a run keeps the steps of that run") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const bool slow = GENERATE(false, true);
  CHECK(KeepsChunk(consistency, slow));
  CHECK(KeepsRows(consistency, slow));
}

TEST_CASE("failpoint: a follower that missed the start of a run resets the steps of that run") {
  failpoints().reset_promoted = true;
  CHECK_FALSE(KeepsChunk(v1::CONSISTENCY_SYNC, /*slow=*/true));
  CHECK_FALSE(KeepsRows(v1::CONSISTENCY_SYNC, /*slow=*/true));
  CHECK(KeepsChunk(v1::CONSISTENCY_SYNC, /*slow=*/false));
  failpoints().reset_promoted = false;
}

// Workers that push and leave, within one run.
TEST_CASE("regression: replicas forget the workers that have left") {
  const bool bug = GENERATE(false, true);
  failpoints().keep_retired = bug;
  Fixture f(DenseOfOne(v1::CONSISTENCY_ASYNC));
  WithFollower<Fixture> pair(&f);
  constexpr uint32_t kWorkers = 50;
  for (uint32_t i = 0; i < kWorkers; ++i) {
    f.job()->mutable_members(0)->set_incarnation(kFirstWorker + i);
    pair.Apply();
    REQUIRE(f.Push(i, 0, 1, kPushed).answer.status == ReplyStatus::kOk);
    pair.Ship();
  }
  const uint64_t known = pair.follower()->counters().replica_marks;
  failpoints().keep_retired = false;
  CHECK(known == (bug ? kWorkers : 1));
  pair.FailOver();
  CHECK(f.Push(kWorkers - 1, 0, 1, kPushed).answer.status == ReplyStatus::kDuplicate);
  CHECK(f.Push(kWorkers - 1, 0, 2, kPushed).answer.status == ReplyStatus::kOk);
}

// Observers that change the optimizer, one after the other: the job's workers stay.
TEST_CASE("regression: copies forget the observers that have left") {
  Fixture f(DenseOfOne(v1::CONSISTENCY_ASYNC));
  WithFollower<Fixture> pair(&f);
  v1::Worker* observer = f.job()->mutable_members(1);
  observer->set_may_write(true);
  const NamedValue rate = MakeNamedValue("rate", 2);
  uint64_t epoch = 1;
  const auto change = [&](uint64_t from) {
    observer->set_incarnation(from);
    pair.Apply();
    const Group group = {0, 1, epoch, 0, 0, 0};
    return f.engine->SetOptimizer({{9, 0, 0}, from, kTable, {&group, 1}}, {&rate, 1})
        .group_status[0];
  };
  for (uint32_t i = 0; i < 50; ++i) {
    REQUIRE(change(kObserver + i) == ReplyStatus::kOk);
    pair.Ship();
  }
  CHECK(pair.follower()->counters().replica_marks <= 1);
  pair.FailOver();
  epoch = f.view.partitions(0).epoch();
  // The last one is there; of the others nothing is left that would know their changes.
  CHECK(change(kObserver + 49) == ReplyStatus::kDuplicate);
  CHECK(change(kObserver) == ReplyStatus::kOk);
}

// Its mark must be there when the view that names it comes.
TEST_CASE("replicas keep a worker that is newer than their view") {
  constexpr uint32_t kLater = 2007, kLast = 2009;  // the observer came before
  Fixture f(DenseOfOne(v1::CONSISTENCY_ASYNC));
  WithFollower<Fixture> pair(&f);
  const v1::ClusterView before = f.view;
  f.job()->mutable_members(0)->set_incarnation(kFirstWorker + kLast);
  REQUIRE(f.Apply().ok());
  REQUIRE(f.Push(kLast, 0, 1, kPushed).answer.status == ReplyStatus::kOk);
  pair.Ship();
  v1::ClusterView between = before;
  between.mutable_jobs(0)->mutable_members(0)->set_incarnation(kFirstWorker + kLater);
  REQUIRE(pair.follower()->ApplyView(between).ok());
  pair.FailOver();
  CHECK(f.Push(kLast, 0, 1, kPushed).answer.status == ReplyStatus::kDuplicate);
  CHECK(f.Push(kLast, 0, 2, kPushed).answer.status == ReplyStatus::kOk);
}

TEST_CASE("failpoint: reads of a new run show applies that the follower does not have") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  failpoints().read_unacknowledged = true;
  Fixture f(DenseOfOne(consistency));
  WithFollower<Fixture> pair(&f);
  f.Push(0, 0, consistency == v1::CONSISTENCY_SYNC ? 0 : 1, kPushed);
  pair.BeginAgain();
  const std::vector<float> read = f.Read(0);
  pair.FailOver();
  CHECK(f.Read(0) != read);
  RowFixture rows(RowsOfOne(consistency));
  WithFollower<RowFixture> rows_pair(&rows);
  const std::vector<uint64_t> keys = {3, 5};
  rows.PushValue(0, 0, consistency == v1::CONSISTENCY_SYNC ? 0 : 1, keys, kPushed);
  rows.EndStatus(0, 0, consistency == v1::CONSISTENCY_SYNC ? 0 : 2, 1);
  rows_pair.BeginAgain();
  const Rows rows_read = rows.Read(keys);
  rows_pair.FailOver();
  CHECK_FALSE(SameRows(rows.Read(keys), rows_read));
  failpoints().read_unacknowledged = false;
}

}  // namespace
}  // namespace verbena::shard
