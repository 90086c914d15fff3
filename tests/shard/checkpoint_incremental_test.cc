// Checkpoints of the rows that have changed since another: with it they are all rows.
#include <catch2/catch.hpp>

#include "shard/checkpoint/checkpoints.h"
#include "tests/shard/checkpoint_rig.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace {

Saved Joined(Saved base, const Saved& later) {
  for (const auto& [key, row] : later.rows) {
    base.rows[key] = row;
    if (row.applies == 0) base.rows.erase(key);  // it was dropped
  }
  base.slices = later.slices;
  base.incremental = 0;
  return base;
}

PartitionCheckpointRequest Of(CheckpointRig* rig, uint64_t base, uint64_t memory) {
  const bool sync = rig->plan.consistency == v1::CONSISTENCY_SYNC;
  PartitionCheckpointRequest request;
  request.tables.push_back({rig->plan.table, sync ? rig->Newest() : 0, base, true});
  request.memory_bytes = memory;
  request.piece_bytes = 200;
  return request;
}

// Takes everything, under traffic.
void CheckpointAll(CheckpointRig* rig, const PartitionCheckpointRequest& request) {
  uint64_t newest = 0;
  REQUIRE(rig->Begin(request, &newest) == absl::OkStatus());
  for (int i = 0; i < 100000 && !rig->CheckpointComplete(); ++i) {
    rig->ActCheckpoint();
    rig->Act();
  }
  REQUIRE(rig->CheckpointComplete());
  REQUIRE(rig->error == "");
}

void End(CheckpointRig* rig, bool committed) {
  for (size_t e = 0; e < rig->engines(); ++e) {
    if (committed) {
      rig->engine(e).checkpoints().Commit(rig->id());
    } else {
      rig->engine(e).checkpoints().Abort(rig->id());
    }
  }
}

TEST_CASE("incremental: the base and the later checkpoints together are the whole content") {
  const v1::Consistency consistency =
      GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  const v1::Eviction::Kind evicts =
      GENERATE(v1::Eviction::NEVER, v1::Eviction::LRU, v1::Eviction::TTL_STEPS);
  uint64_t left_out = 0, dropped = 0;
  for (uint32_t seed = 1; seed <= test::SeedCount(80); ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, true, consistency);
    plan.eviction.set_kind(evicts);
    plan.assigns = seed % 2 == 1;
    if (evicts == v1::Eviction::LRU) plan.eviction.set_max_rows(uint64_t{plan.partitions} * 9);
    if (evicts == v1::Eviction::TTL_STEPS) plan.eviction.set_ttl(2);
    CAPTURE(seed, static_cast<int>(consistency), static_cast<int>(evicts));
    const uint64_t memory = seed % 2 == 0 ? 400 : 1 << 20;
    CheckpointRig rig(plan);
    rig.SetGoal(3);
    REQUIRE(rig.Finish());
    rig.SetGoal(4 + seed % 3);
    CheckpointAll(&rig, Of(&rig, 0, memory));
    REQUIRE(rig.saved().incremental == 0);
    Saved base = rig.saved();
    uint64_t base_id = rig.id();
    End(&rig, true);
    for (uint32_t i = 0; i < 4; ++i) {
      for (uint32_t k = 0; k < seed % 20; ++k) rig.Act();
      if (consistency == v1::CONSISTENCY_SYNC) REQUIRE(rig.Finish());  // all at one step
      const Saved now = rig.CheckpointIdle();
      rig.SetGoal(6 + i * 2);
      CheckpointAll(&rig, Of(&rig, base_id, memory));
      REQUIRE(rig.saved().incremental == plan.partitions);
      REQUIRE(Joined(base, rig.saved()) == now);
      for (const auto& [key, row] : base.rows) left_out += rig.saved().rows.contains(key) ? 0 : 1;
      for (const auto& [key, row] : rig.saved().rows) dropped += row.applies == 0 ? 1 : 0;
      // An uncommitted checkpoint is no base: the next one contains its rows as well.
      const bool committed = (seed + i) % 3 != 0;
      End(&rig, committed);
      if (!committed) continue;
      base = Joined(base, rig.saved());
      base_id = rig.id();
    }
  }
  CHECK(left_out > test::SeedCount(100));
  CHECK((evicts == v1::Eviction::NEVER ? dropped == 0 : dropped > test::SeedCount(100)));
}

TEST_CASE("incremental: a full checkpoint where the base is not known") {
  CheckpointPlan plan = MakeCheckpointPlan(3, true, v1::CONSISTENCY_ASYNC);
  plan.servers = 1;
  CheckpointRig rig(plan);
  rig.SetGoal(4);
  REQUIRE(rig.Finish());
  const Saved now = rig.CheckpointIdle();
  CheckpointAll(&rig, Of(&rig, 0, 1 << 20));
  const uint64_t base = rig.id();
  End(&rig, true);
  SECTION("another base") {
    CheckpointAll(&rig, Of(&rig, base + 100, 1 << 20));
    CHECK(rig.saved().incremental == 0);
    CHECK(rig.saved() == now);
  }
  SECTION("a new epoch") {
    for (v1::Partition& p : *rig.view().mutable_partitions()) p.set_epoch(2);
    rig.ApplyView();
    CheckpointAll(&rig, Of(&rig, base, 1 << 20));
    CHECK(rig.saved().incremental == 0);
    CHECK(rig.saved() == now);
  }
  SECTION("nothing has changed") {
    CheckpointAll(&rig, Of(&rig, base, 1 << 20));
    CHECK(rig.saved().incremental == plan.partitions);
    CHECK(rig.saved().rows.empty());
  }
  SECTION("a full one in between is no base, and does not matter") {
    PartitionCheckpointRequest whole = Of(&rig, 0, 1 << 20);
    whole.tables[0].track = false;
    CheckpointAll(&rig, whole);
    CHECK(rig.saved() == now);
    End(&rig, true);
    CheckpointAll(&rig, Of(&rig, base, 1 << 20));
    CHECK(rig.saved().incremental == plan.partitions);
    CHECK(rig.saved().rows.empty());
  }
}

}  // namespace
}  // namespace verbena::shard
