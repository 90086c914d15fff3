// A checkpoint under training is exactly the state at its boundary; and training goes on.
#include <catch2/catch.hpp>

#include "shard/checkpoint/checkpoints.h"
#include "tests/shard/checkpoint_rig.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace {

// In no memory, little, much.
uint64_t MemoryOf(uint32_t seed) { return std::vector<uint64_t>{0, 300, 1000, 1 << 20}[seed % 4]; }

Saved StateAt(const CheckpointPlan& plan, uint64_t step) {
  CheckpointPlan other = plan;
  other.spares = 64;
  CheckpointRig rig(other);
  rig.SetGoal(step);
  REQUIRE(rig.Finish());
  return rig.CheckpointIdle();
}

TEST_CASE("checkpoint: a sync table is saved exactly at its step, under traffic") {
  const bool rows = GENERATE(false, true);
  uint64_t kept = 0, waits = 0;
  for (uint32_t seed = 1; seed <= test::SeedCount(150); ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_SYNC);
    plan.assigns = seed % 2 == 1;
    CAPTURE(seed, rows, plan.optimizer.name(), static_cast<int>(plan.dtype));
    CheckpointRig rig(plan);
    rig.SetGoal(12);
    for (uint32_t i = 0; i < seed * 3 % 200; ++i) rig.Act();
    REQUIRE(rig.Begin(rig.Newest() + seed % 3, MemoryOf(seed)) == absl::OkStatus());
    const uint64_t step = rig.step();
    rig.SetGoal(std::max<uint64_t>(12, step));
    const bool ok = rig.FinishCheckpoint();
    if (!ok) {
      fprintf(stderr, "done %d complete %d error %s newest %lu step %lu\n", rig.Done(),
              rig.CheckpointComplete(), rig.error.c_str(), rig.Newest(), step);
      for (size_t e = 0; e < rig.engines(); ++e) {
        auto p = *rig.engine(e).checkpoints().progress(rig.id());
        fprintf(stderr, "slices %u waiting %u ended %u aborted %u out %u mem %lu\n", p.slices,
                p.waiting, p.ended, p.aborted, p.out, p.memory_bytes);
      }
    }
    REQUIRE(ok);
    REQUIRE(rig.error == "");
    REQUIRE(rig.saved() == StateAt(plan, step));
    // Nor does a save change anything.
    REQUIRE(rig.CheckpointIdle() == StateAt(plan, std::max<uint64_t>(12, step)));
    for (size_t e = 0; e < rig.engines(); ++e) {
      kept += rig.engine(e).checkpoints().counters().kept_chunks +
              rig.engine(e).checkpoints().counters().kept_rows;
      waits += rig.engine(e).checkpoints().counters().waits;
      REQUIRE(rig.engine(e).checkpoints().counters().memory_bytes == 0);
    }
  }
  CHECK(kept > test::SeedCount(100));
  CHECK(waits > test::SeedCount(10));
}

TEST_CASE("checkpoint: async and ssp tables are saved as they are when it begins") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP);
  uint64_t kept = 0, waits = 0;
  for (uint32_t seed = 1; seed <= test::SeedCount(150); ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, rows, consistency);
    plan.assigns = seed % 2 == 1;
    CAPTURE(seed, rows, plan.optimizer.name(), static_cast<int>(plan.dtype));
    CheckpointRig rig(plan);
    rig.SetGoal(25);
    for (uint32_t i = 0; i < seed * 3 % 300; ++i) rig.Act();
    const Saved now = rig.CheckpointIdle();
    const auto acknowledged = rig.acknowledged();
    REQUIRE(rig.Begin(0, MemoryOf(seed)) == absl::OkStatus());
    REQUIRE(rig.FinishCheckpoint());
    REQUIRE(rig.error == "");
    REQUIRE(rig.saved() == now);
    // All that was acknowledged, and no more.
    for (const auto& [at, sequence] : acknowledged) {
      const auto slice = now.slices.find(at.second);
      if (slice != now.slices.end()) REQUIRE(slice->second.prefix.at(at.first) == sequence);
    }
    for (size_t e = 0; e < rig.engines(); ++e) {
      kept += rig.engine(e).checkpoints().counters().kept_chunks +
              rig.engine(e).checkpoints().counters().kept_rows;
      waits += rig.engine(e).checkpoints().counters().waits;
    }
  }
  CHECK(kept > test::SeedCount(100));
  CHECK(waits > test::SeedCount(10));
}

// For async and ssp: every push up to the reported sequences and none behind them, even if replicas
// have pushes that are not applied yet.
TEST_CASE("checkpoint: it contains exactly the pushes of its prefix, with replicas too") {
  const bool rows = GENERATE(false, true);
  const bool copies = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= test::SeedCount(80); ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_ASYNC);
    plan.optimizer = {};
    plan.optimizer.set_name("sgd");
    plan.optimizer.set_rate(0.125);
    plan.reduction = v1::REDUCTION_SUM;
    plan.exact = true;
    plan.row_dtype = v1::DTYPE_F32;  // the rounding depends on the order
    plan.stochastic = false;
    plan.gradient_dtype = v1::DTYPE_F32;
    plan.copies = copies;
    plan.servers = std::max(plan.servers, 2u);
    plan.partitions = std::max(plan.partitions, 2u);
    CAPTURE(seed, rows, copies);
    CheckpointRig rig(plan);
    rig.SetGoal(25);
    for (uint32_t i = 0; i < 20 + seed * 3 % 300; ++i) rig.Act();
    const auto acknowledged = rig.acknowledged();
    REQUIRE(rig.Begin(0, MemoryOf(seed)) == absl::OkStatus());
    REQUIRE(rig.FinishCheckpoint());
    REQUIRE(rig.error == "");
    CheckpointPlan alone = plan;
    alone.copies = false;
    alone.spares = 64;
    CheckpointRig twin(alone);
    for (uint32_t p = 0; p < plan.partitions; ++p) {
      for (uint32_t r = 0; r < plan.workers; ++r) twin.SetLimit(kFirstWorker + r, p, 0);
    }
    for (const auto& [partition, slice] : rig.saved().slices) {
      for (const auto& [worker, sequence] : slice.prefix) {
        twin.SetLimit(worker, partition, sequence);
        const auto it = acknowledged.find({worker, partition});
        const uint64_t had = it == acknowledged.end() ? 0 : it->second;
        REQUIRE(sequence >= had);
      }
    }
    REQUIRE(twin.Finish());
    const Saved expected = twin.CheckpointIdle();
    REQUIRE(rig.saved().chunks == expected.chunks);
    REQUIRE(rig.saved().rows == expected.rows);
  }
}

TEST_CASE("checkpoint: with replicas, a sync table is saved exactly at its step") {
  const bool rows = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= test::SeedCount(120); ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_SYNC);
    plan.servers = std::max(plan.servers, 2u);
    plan.partitions = std::max(plan.partitions, 2u);
    plan.copies = true;
    CAPTURE(seed, rows, plan.optimizer.name());
    CheckpointRig rig(plan);
    rig.SetGoal(8);
    for (uint32_t i = 0; i < seed * 5 % 200; ++i) rig.Act();
    const uint64_t wanted = std::min<uint64_t>(8, rig.Newest() + seed / 4 % 3);
    REQUIRE(rig.Begin(wanted, MemoryOf(seed)) == absl::OkStatus());
    const uint64_t step = rig.step();
    REQUIRE(rig.FinishCheckpoint());
    REQUIRE(rig.error == "");
    plan.copies = false;
    REQUIRE(rig.saved() == StateAt(plan, step));
  }
}

TEST_CASE("checkpoint: memory stays within its limit") {
  const bool rows = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    const CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_ASYNC);
    CAPTURE(seed, rows);
    CheckpointRig rig(plan);
    rig.SetGoal(30);
    for (uint32_t i = 0; i < 50; ++i) rig.Act();
    REQUIRE(rig.Begin(0, 2000) == absl::OkStatus());
    REQUIRE(rig.FinishCheckpoint());
    // A chunk with all its arrays is far less.
    REQUIRE(rig.most_memory <= 2000);
  }
}

}  // namespace
}  // namespace verbena::shard
