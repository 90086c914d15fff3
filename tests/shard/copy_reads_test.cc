// Pulls that a follower answers: nothing that a failover could undo, and no version older than the
// reader's.
#include "shard/replica/copy_reads.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/proofs.h"
#include "shard/replica/replicas.h"
#include "tests/shard/engine_fixture.h"
#include "tests/shard/replica_bytes.h"

namespace verbena::shard {
namespace copy_reads_test {

constexpr uint64_t kFirst = kServer + 1, kSecond = kServer + 2;
constexpr uint64_t kObserver = 2000;

FixtureOptions OneChunk(v1::Consistency consistency) {
  FixtureOptions o;
  o.consistency = consistency;
  o.workers = o.observers = o.partitions = o.chunks = 1;
  return o;
}

// A primary, which is the fixture's engine, and its followers.
class Followers {
 public:
  Followers(v1::Consistency consistency, const std::vector<uint64_t>& servers)
      : f(OneChunk(consistency)) {
    for (const uint64_t server : servers) {
      v1::Replica* const r = f.view.mutable_partitions(0)->add_followers();
      r->set_server(server);
      r->set_since(2);
      EngineOptions options;
      options.server = server;
      engines[server] = std::make_unique<Engine>(options);
    }
    Apply();
    Ship(servers);
    Ship(servers);
  }
  void Apply() {
    REQUIRE(f.Apply().ok());
    for (auto& [server, engine] : engines) REQUIRE(engine->ApplyView(f.view).ok());
  }
  // The replicas on `to` take everything and acknowledge it; those elsewhere are cut off.
  void Ship(const std::vector<uint64_t>& to) {
    std::vector<ReplicaRecord> records;
    f.engine->replicas().Take(&records, 100);
    for (ReplicaRecord& r : records) {
      if (std::find(to.begin(), to.end(), r.to.server) == to.end()) continue;
      r.header.committed = f.engine->replicas().Settled(0);
      const ReplicaBytes bytes(r);
      REQUIRE(engines[r.to.server]
                  ->copies()
                  .Replicate({kServer, 0}, bytes.record(), bytes.payload())
                  .status == ReplyStatus::kOk);
      f.engine->replicas().Answered(r.to, 0, r.group.sequence, ReplyStatus::kOk);
    }
    f.Events();
  }
  void Beacon(uint64_t to) {
    Group group = {};
    group.epoch = f.view.partitions(0).epoch();
    SetSettled(f.engine->replicas().Settled(0), &group);
    engines[to]->copy_reads().Settle({kServer, 0}, group, SettledOf(group));
  }
  void Push() {
    const bool sync = f.options.consistency == v1::CONSISTENCY_SYNC;
    f.Push(0, 0, sync ? pushed : pushed + 1, 1);
    ++pushed;
  }
  PullOutcome Pull(uint64_t server, uint64_t floor = 0, uint64_t worker = kObserver) {
    PullRequest request;
    request.worker = worker;
    request.table = kTable;
    request.group.epoch = f.view.partitions(0).epoch();
    request.group.count = f.options.chunk_elements;
    request.dtype = ElementType::kF32;
    request.min_version = floor;
    return engines[server]->copy_reads().Pull(request);
  }
  ReplyStatus Status(uint64_t server, uint64_t floor = 0) {
    const PullOutcome outcome = Pull(server, floor);
    if (outcome.kind == PullOutcome::Kind::kReady) engines[server]->Unpin(outcome.view.pin);
    return outcome.answer.status;
  }

  Fixture f;
  std::map<uint64_t, std::unique_ptr<Engine>> engines;
  uint64_t pushed = 0;
};

v1::Consistency SyncOrAsync() { return GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC); }

TEST_CASE("follower reads: a chunk is shown when all followers have what changed it") {
  Followers w(SyncOrAsync(), {kFirst, kSecond});
  w.Beacon(kFirst);
  REQUIRE(w.Status(kFirst) == ReplyStatus::kOk);
  w.Push();
  w.Ship({kFirst});  // a failover to the second one would undo it
  w.Beacon(kFirst);
  CHECK(w.Status(kFirst) == ReplyStatus::kNotReady);
  for (const CopyStatus& copy : w.f.engine->replicas().Status()) {
    w.f.engine->replicas().Resend(copy.copy, 0);
  }
  w.Ship({kSecond});
  CHECK(w.Status(kFirst) == ReplyStatus::kNotReady);  // its primary has not told
  w.Beacon(kFirst);
  const PullOutcome pulled = w.Pull(kFirst);
  REQUIRE(pulled.kind == PullOutcome::Kind::kReady);
  CHECK(pulled.answer.version == 1);
  CHECK(Fixture::Values(pulled.view) == Fixture::Values(w.f.Pull(kFirstWorker, 0, 1).view));
  w.engines[kFirst]->Unpin(pulled.view.pin);
}

TEST_CASE("failpoint: follower reads: a follower shows records that may be undone") {
  Followers w(SyncOrAsync(), {kFirst, kSecond});
  w.Beacon(kFirst);
  w.Push();
  w.Ship({kFirst});
  w.Beacon(kFirst);
  REQUIRE(w.Status(kFirst) == ReplyStatus::kNotReady);
  failpoints().follower_answers_unapplied = true;
  CHECK(w.Status(kFirst) == ReplyStatus::kOk);
  failpoints().follower_answers_unapplied = false;
}

TEST_CASE("follower reads: the next record tells that those before it are settled") {
  Followers w(SyncOrAsync(), {kFirst});
  w.Push();
  w.Ship({kFirst});
  REQUIRE(w.Status(kFirst) == ReplyStatus::kNotReady);
  REQUIRE(w.f.engine->proofs().AuditFollowers(1 << 20));
  w.Ship({kFirst});
  CHECK(w.Status(kFirst) == ReplyStatus::kOk);
}

TEST_CASE(
    "follower reads: a change by a view, which shows before followers have it, is waited for") {
  Followers w(SyncOrAsync(), {kFirst});
  w.Push();
  w.Ship({kFirst});
  REQUIRE(w.f.engine->replicas().SettledForReads(0) > 0);
  w.f.job()->set_generation(w.f.job()->generation() + 1);  // versions begin anew
  w.Apply();
  CHECK(w.f.engine->replicas().SettledForReads(0) == 0);
  w.Ship({kFirst});
  CHECK(w.f.engine->replicas().SettledForReads(0) > 0);
}

TEST_CASE("follower reads: a version older than the reader's is not shown") {
  Followers w(SyncOrAsync(), {kFirst});
  w.Push();
  w.Ship({kFirst});
  w.Beacon(kFirst);
  CHECK(w.Status(kFirst, 1) == ReplyStatus::kOk);
  CHECK(w.Status(kFirst, 2) == ReplyStatus::kNotReady);
  failpoints().follower_ignores_floor = true;
  CHECK(w.Status(kFirst, 2) == ReplyStatus::kOk);
  failpoints().follower_ignores_floor = false;
}

TEST_CASE("follower reads: learners, primaries, other epochs and ssp tables are not read") {
  SECTION("ssp") {
    Followers w(v1::CONSISTENCY_SSP, {kFirst});
    w.Beacon(kFirst);
    CHECK(w.Status(kFirst) == ReplyStatus::kNotReady);
  }
  Followers w(SyncOrAsync(), {kFirst});
  w.Beacon(kFirst);
  REQUIRE(w.Status(kFirst) == ReplyStatus::kOk);
  v1::Partition* const partition = w.f.view.mutable_partitions(0);
  SECTION("the next epoch has to be begun") {
    partition->set_epoch(partition->epoch() + 1);
    w.Apply();
    CHECK(w.Status(kFirst) != ReplyStatus::kOk);
  }
  SECTION("the follower is the primary") {
    partition->clear_followers();
    partition->set_primary(kFirst);
    partition->set_epoch(partition->epoch() + 1);
    w.Apply();
    CHECK(w.Status(kFirst) == ReplyStatus::kWrongEpoch);
  }
  SECTION("the follower was dropped") {
    partition->clear_followers();
    w.Apply();
    CHECK(w.Status(kFirst) == ReplyStatus::kWrongEpoch);
  }
  SECTION("a client that the job does not know") {
    CHECK(w.Pull(kFirst, 0, 4711).answer.status == ReplyStatus::kExpired);
  }
}

}  // namespace copy_reads_test
}  // namespace verbena::shard
