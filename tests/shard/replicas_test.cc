// Copies of partitions: nothing that was acknowledged is lost or applied twice, whatever becomes of
// primaries, copies and the links between them; and failpoints that this finds.
#include "shard/replica/replicas.h"

#include <catch2/catch.hpp>
#include <cstdio>

#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/proofs.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/replica_cluster.h"

namespace verbena::shard {
namespace {

using Contents = std::map<uint64_t, std::vector<float>>;

// The same pushes, by one server that nothing happens to.
Contents Undisturbed(ReplicaPlan plan) {
  plan.replicas = 1;
  plan.faults = plan.promote_learners = false;
  ReplicaCluster cluster(plan);
  REQUIRE(cluster.Run());
  return cluster.Contents();
}

// The first problem found, or an empty string.
std::string Finding(const ReplicaPlan& plan, const Contents& expected) {
  ReplicaCluster cluster(plan);
  const bool ended = cluster.Run();
  if (!cluster.error.empty()) return cluster.error;
  if (!ended) return "workers did not go on";
  if (cluster.Contents() != expected) return "primaries have something else";
  // The copies have the same.
  cluster.PromoteAll();
  if (cluster.Contents() != expected) return "copies have something else";
  return cluster.error;
}

TEST_CASE("replicas: each acknowledged push is applied once under failures") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    const ReplicaPlan plan = MakeReplicaPlan(seed, rows, consistency);
    CAPTURE(plan.seed, plan.rows, static_cast<int>(plan.consistency));
    REQUIRE(Finding(plan, Undisturbed(plan)) == "");
  }
}

TEST_CASE("replicas: evicted rows are dropped on every replica, by the same apply") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const v1::Eviction::Kind kind =
      GENERATE(v1::Eviction::TTL_STEPS, v1::Eviction::LRU, v1::Eviction::LFU);
  uint64_t evicted = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, true, consistency);
    plan.eviction.set_kind(kind);
    if (kind == v1::Eviction::TTL_STEPS) {
      plan.eviction.set_ttl(2);
    } else {
      plan.eviction.set_max_rows(uint64_t{plan.partitions} * 4);
    }
    CAPTURE(seed, static_cast<int>(consistency), static_cast<int>(kind));
    Contents expected;
    ReplicaPlan everything = plan;
    everything.eviction.Clear();
    const size_t all = Undisturbed(everything).size();
    if (consistency == v1::CONSISTENCY_SYNC) {
      expected = Undisturbed(plan);
    } else {
      // The dropped rows depend on the order of pushes, which faults change: the replicas are
      // compared.
      ReplicaCluster cluster(plan);
      REQUIRE(cluster.Run());
      expected = cluster.Contents();
    }
    evicted += all - expected.size();
    REQUIRE(Finding(plan, expected) == "");
  }
  CHECK(evicted > 100);
}

TEST_CASE("replicas: each replica has exactly the admitted rows") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const bool evicts = GENERATE(false, true);
  uint64_t refused = 0;
  for (uint32_t seed = 1; seed <= 30; ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, true, consistency);
    const size_t all = Undisturbed(plan).size();
    plan.admission.set_kind(v1::Admission::MIN_COUNT);
    plan.admission.set_min_count(3);
    plan.admission.set_sketch_bytes(65536);
    if (evicts) {
      plan.eviction.set_kind(v1::Eviction::TTL_STEPS);
      plan.eviction.set_ttl(3);
    }
    CAPTURE(seed, static_cast<int>(consistency), evicts);
    // Admission counts are lost with a server, so faults change the keys that get a row.
    ReplicaCluster cluster(plan);
    REQUIRE(cluster.Run());
    const Contents expected = cluster.Contents();
    refused += all - expected.size();
    REQUIRE(Finding(plan, expected) == "");
  }
  CHECK(refused > 100);
}

TEST_CASE("replicas: changes of the optimizer take effect at the same apply on every replica") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, rows, consistency);
    const Contents unchanged = Undisturbed(plan);
    plan.changes = true;
    CAPTURE(seed, rows, static_cast<int>(consistency));
    Contents expected;
    if (consistency == v1::CONSISTENCY_SYNC) {
      expected = Undisturbed(plan);
    } else {
      // The pushes that a change of another worker precedes depend on their order, which faults
      // change: the copies are compared.
      ReplicaCluster cluster(plan);
      REQUIRE(cluster.Run());
      expected = cluster.Contents();
    }
    CHECK(expected != unchanged);
    REQUIRE(Finding(plan, expected) == "");
  }
}

// The first problem that `count` seeds find with a failpoint set.
std::string FirstFinding(Failpoint Failpoints::*bug, bool rows, v1::Consistency consistency,
                         uint32_t count, bool promote_learners = false) {
  for (uint32_t seed = 1; seed <= count; ++seed) {
    ReplicaPlan plan = MakeReplicaPlan(seed, rows, consistency);
    plan.promote_learners = promote_learners;
    const Contents expected = Undisturbed(plan);
    if (bug != nullptr) failpoints().*bug = true;
    const std::string finding = Finding(plan, expected);
    if (bug != nullptr) failpoints().*bug = false;
    if (finding.empty()) continue;
    std::fprintf(stderr, "found by seed %u: %s\n", seed, finding.c_str());
    return finding;
  }
  return "";
}

TEST_CASE(
    "regression: a mean is divided by the workers of its record, also after a new run begins") {
  FixtureOptions options;
  options.consistency = v1::CONSISTENCY_ASYNC;
  options.reduction = v1::REDUCTION_MEAN;
  options.workers = 4;
  options.partitions = options.chunks = 1;
  Fixture f(options);
  v1::Replica* follower = f.view.mutable_partitions(0)->add_followers();
  follower->set_server(kServer + 1);
  follower->set_since(2);
  REQUIRE(f.Apply().ok());
  EngineOptions of_replica;
  of_replica.server = kServer + 1;
  Engine replica(of_replica);
  REQUIRE(replica.ApplyView(f.view).ok());
  const auto ship = [&] {
    ReplyStatus worst = ReplyStatus::kOk;
    std::vector<ReplicaRecord> records;
    f.engine->replicas().Take(&records, 100);
    for (const ReplicaRecord& r : records) {
      const ReplicaBytes bytes(r);
      const ReplyStatus status =
          replica.copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status;
      f.engine->replicas().Answered(r.to, 0, r.group.sequence, status);
      worst = std::max(worst, status);
    }
    return worst;
  };
  REQUIRE(ship() == ReplyStatus::kOk);
  REQUIRE(f.Push(0, 0, 1, 8).replicating);
  // The job begins again with fewer workers before the follower has answered.
  f.job()->set_generation(2);
  f.job()->set_expected_workers(2);
  REQUIRE(f.Apply().ok());
  REQUIRE(replica.ApplyView(f.view).ok());
  REQUIRE(ship() == ReplyStatus::kOk);
  CHECK(f.Read(0) == Filled(16, -2));
  for (int i = 0; i < 4; ++i) {
    REQUIRE(f.engine->proofs().AuditFollowers(1 << 20));
    CHECK(ship() == ReplyStatus::kOk);
  }
}

TEST_CASE(
    "replicas: with fewer replicas than min_replicas pushes and end-steps wait, pulls do not") {
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  FixtureOptions options;
  options.consistency = consistency;
  options.workers = 1;
  Fixture f(options);
  f.view.set_replicas(2);
  f.view.set_min_replicas(2);
  REQUIRE(f.Apply().ok());
  const uint64_t first = consistency == v1::CONSISTENCY_SYNC ? 0 : 1;
  CHECK(f.Push(0, 0, first, 1).answer.status == ReplyStatus::kNotReady);
  CHECK(f.EndStep(0, 0, first, 0).answer.status == ReplyStatus::kNotReady);
  CHECK(f.Read(0) == Filled(16, 0));
  // A learner is no copy yet.
  v1::Partition* partition = f.view.mutable_partitions(static_cast<int>(f.PartitionOf(0)));
  partition->add_learners()->set_server(kServer + 1);
  REQUIRE(f.Apply().ok());
  CHECK(f.Push(0, 0, first, 1).answer.status == ReplyStatus::kNotReady);
  partition->clear_learners();
  v1::Replica* follower = partition->add_followers();
  follower->set_server(kServer + 1);
  follower->set_since(1);
  REQUIRE(f.Apply().ok());
  const PushOutcome pushed = f.Push(0, 0, first, 1);
  CHECK(pushed.answer.status == ReplyStatus::kOk);
  CHECK(pushed.replicating == (consistency == v1::CONSISTENCY_ASYNC));
}

TEST_CASE("failpoint: apply an applied push again") {
  const bool rows = GENERATE(false, true);
  CHECK_FALSE(FirstFinding(&Failpoints::skip_dedupe, rows, v1::CONSISTENCY_ASYNC, 20).empty());
}

TEST_CASE("failpoint: accept a push to a committed step") {
  CHECK_FALSE(FirstFinding(&Failpoints::skip_dedupe, false, v1::CONSISTENCY_SYNC, 20).empty());
}

TEST_CASE("failpoint: acknowledge before the replica has it") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  CHECK_FALSE(FirstFinding(&Failpoints::acknowledge_early, rows, consistency, 20).empty());
}

TEST_CASE("failpoint: forget deferred requests when their partition moves") {
  CHECK(FirstFinding(&Failpoints::forget_deferred, false, v1::CONSISTENCY_SYNC, 20) ==
        "a pull is deferred for good");
}

TEST_CASE("failpoint: send replicas the bytes of the worker's slot") {
  // The contents at the end, or the audit before.
  CHECK_THAT(FirstFinding(&Failpoints::replicate_from_slot, false, v1::CONSISTENCY_ASYNC, 20),
             Catch::Contains("something else") || Catch::Contains("data loss"));
}

TEST_CASE("failpoint: promote a learner") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  CHECK_FALSE(FirstFinding(nullptr, rows, consistency, 20, /*promote_learners=*/true).empty());
}

}  // namespace
}  // namespace verbena::shard
