// A new run of a job begins while the follower has not acknowledged what the last one pushed: reads
// show nothing that a failover would take back.
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "shard/planted_bugs.h"
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
  // The follower takes everything, and says so.
  void Ship() {
    std::vector<ReplicaRecord> records;
    f_.engine->TakeReplicas(&records, 100);
    for (const ReplicaRecord& r : records) {
      const ReplicaBytes bytes(r);
      REQUIRE(follower_->Replicate({kServer, 0}, bytes.record(), bytes.payload()).status ==
              ReplyStatus::kOk);
      f_.engine->ReplicaAnswered(r.to, 0, r.group.sequence, ReplyStatus::kOk);
    }
  }
  void BeginAgain() {
    f_.job()->set_generation(f_.job()->generation() + 1);
    Apply();
  }
  void DropFollower() {
    f_.view.mutable_partitions(0)->clear_followers();
    Apply();
  }
  // The primary dies: from here on the fixture's engine is what was the follower.
  void FailOver() {
    v1::Partition* partition = f_.view.mutable_partitions(0);
    partition->clear_followers();
    partition->set_primary(kFollower);
    partition->set_epoch(partition->epoch() + 1);
    f_.engine = std::move(follower_);
    Apply();
  }
  absl::Status BeginSave() {
    SaveRequest request;
    request.id = 1;
    request.tables.push_back({});
    request.tables.back().table = kTable;
    std::vector<uint64_t> newest;
    return f_.engine->BeginSave(request, &newest);
  }

 private:
  void Apply() {
    REQUIRE(f_.Apply().ok());
    if (follower_ != nullptr) REQUIRE(follower_->ApplyView(f_.view).ok());
  }

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
  if (waits) REQUIRE(f.Pull(kObserver, 0, 1, /*lane=*/5).kind == PullOutcome::Kind::kParked);
  pair.BeginAgain();
  if (waits) CHECK(HasFailed(f.Events(), 5, ReplyStatus::kNotReady));
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == ReplyStatus::kNotReady);
  CHECK(absl::IsUnavailable(pair.BeginSave()));
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
  CHECK(absl::IsUnavailable(pair.BeginSave()));
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

TEST_CASE("planted bug: read what a new run has applied before the follower has it") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  planted_bugs().read_unacknowledged = true;
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
  planted_bugs().read_unacknowledged = false;
}

}  // namespace
}  // namespace verbena::shard
