// Events that abort a checkpoint, requests that are refused; neither disturbs training or the
// pieces being read.
#include <catch2/catch.hpp>

#include "shard/checkpoint/checkpoints.h"
#include "tests/shard/checkpoint_rig.h"
#include "tests/support/seed_count.h"

namespace verbena::shard {
namespace checkpoint_abort_test {

using PieceKind = CheckpointPiece::Kind;

CheckpointPlan Small(bool rows, v1::Consistency consistency = v1::CONSISTENCY_SYNC) {
  CheckpointPlan plan;
  plan.rows = rows;
  plan.consistency = consistency;
  plan.workers = 1;
  plan.optimizer.set_name("momentum");
  plan.optimizer.set_rate(0.125);
  return plan;
}

PartitionCheckpointRequest Of(const CheckpointPlan& plan, uint64_t id, uint64_t step) {
  PartitionCheckpointRequest request;
  request.id = id;
  request.tables.push_back({plan.table, step, 0, false});
  return request;
}

TEST_CASE("checkpoint: a step that has passed is refused with the earliest possible one") {
  const bool rows = GENERATE(false, true);
  CheckpointPlan plan = Small(rows);
  CheckpointRig rig(plan);
  rig.SetGoal(4);
  REQUIRE(rig.Finish());
  std::vector<uint64_t> newest;
  CHECK(rig.engine(0).checkpoints().Begin(Of(plan, 1, 3), &newest).code() ==
        absl::StatusCode::kOutOfRange);
  CHECK(newest == std::vector<uint64_t>{4});
  CHECK_FALSE(rig.engine(0).checkpoints().progress(1).ok());
  CHECK(rig.engine(0).checkpoints().Begin(Of(plan, 1, newest[0]), &newest).ok());
  CHECK(newest == std::vector<uint64_t>{4});
}

TEST_CASE("checkpoint: invalid requests are refused") {
  CheckpointPlan plan = Small(false);
  CheckpointRig rig(plan);
  Engine& engine = rig.engine(0);
  std::vector<uint64_t> newest;
  const auto code = [&](const PartitionCheckpointRequest& r) {
    return engine.checkpoints().Begin(r, &newest).code();
  };
  CHECK(code(Of(plan, 0, 0)) == absl::StatusCode::kInvalidArgument);
  PartitionCheckpointRequest twice = Of(plan, 1, 0);
  twice.tables.push_back(twice.tables[0]);
  CHECK(code(twice) == absl::StatusCode::kInvalidArgument);
  PartitionCheckpointRequest none = Of(plan, 1, 0);
  none.tables.clear();
  CHECK(code(none) == absl::StatusCode::kInvalidArgument);
  PartitionCheckpointRequest other = Of(plan, 1, 0);
  other.tables[0].table = 99;
  CHECK(code(other) == absl::StatusCode::kNotFound);
  REQUIRE(code(Of(plan, 1, 0)) == absl::StatusCode::kOk);
  CHECK(code(Of(plan, 1, 0)) == absl::StatusCode::kInvalidArgument);
  CHECK(code(Of(plan, 2, 0)) == absl::StatusCode::kFailedPrecondition);
  engine.checkpoints().Abort(1);
  CHECK(code(Of(plan, 2, 0)) == absl::StatusCode::kOk);
  engine.checkpoints().Abort(2);
  rig.view().mutable_tables(0)->add_lost_partitions(
      PartitionOfChunk(plan.table, 0, plan.partitions));
  rig.ApplyView();
  CHECK(code(Of(plan, 3, 0)) == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("checkpoint: a new epoch, another primary, a loss or another generation abort it") {
  const bool rows = GENERATE(false, true);
  const v1::Consistency consistency = GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC);
  const int what = GENERATE(0, 1, 2, 3, 4);
  CheckpointPlan plan = Small(rows, consistency);
  CheckpointRig rig(plan);
  rig.SetGoal(6);
  for (int i = 0; i < 60; ++i) rig.Act();
  PartitionCheckpointRequest request = Of(plan, 1, 6);
  request.piece_bytes = 1;
  std::vector<uint64_t> newest;
  Engine& engine = rig.engine(0);
  REQUIRE(engine.checkpoints().Begin(request, &newest).ok());
  // Some is out, some was changed before it is taken.
  std::vector<CheckpointPiece> out;
  CheckpointPiece piece;
  while (out.size() < 2 && engine.checkpoints().Take(1, &piece)) out.push_back(piece);
  std::vector<std::vector<std::byte>> content;
  for (const CheckpointPiece& p : out)
    content.emplace_back(p.parameters.begin(), p.parameters.end());
  for (int i = 0; i < 10; ++i) rig.Act();

  v1::Partition* first = rig.view().mutable_partitions(0);
  switch (what) {
    case 0:
      for (v1::Partition& p : *rig.view().mutable_partitions()) p.set_epoch(2);
      break;
    case 1:
      first->set_epoch(2);
      first->set_primary(kServer + 1);
      break;
    case 2:
      for (uint32_t p = 0; p < plan.partitions; ++p) {
        rig.view().mutable_tables(0)->add_lost_partitions(p);
      }
      break;
    case 3:
      rig.view().mutable_jobs(0)->set_generation(2);
      break;
    default:
      rig.view().clear_tables();
  }
  rig.ApplyView();
  const absl::StatusOr<CheckpointProgress> progress = engine.checkpoints().progress(1);
  REQUIRE(progress.ok());
  CHECK(progress->aborted >= 1);
  CHECK_FALSE(progress->status.ok());
  CHECK_FALSE(progress->complete());
  CHECK(progress->status.code() ==
        (what == 4 ? absl::StatusCode::kNotFound : absl::StatusCode::kAborted));
  if (what != 1) {
    CHECK(progress->aborted == progress->slices);
    CHECK_FALSE(engine.checkpoints().Take(1, &piece));
  }
  // Pieces that were taken stay unchanged, because they are being read.
  if (what == 0) {
    for (int i = 0; i < 200; ++i) rig.Act();
  }
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK(std::equal(content[i].begin(), content[i].end(), out[i].parameters.begin()));
  }
  engine.checkpoints().Abort(1);
  CHECK_FALSE(engine.checkpoints().progress(1).ok());
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK(std::equal(content[i].begin(), content[i].end(), out[i].parameters.begin()));
    engine.checkpoints().Release(1, out[i].id);
  }
  CHECK(engine.checkpoints().counters().memory_bytes == 0);
  CHECK(engine.checkpoints().counters().aborted == 1);
  if (what == 0) {
    rig.SetGoal(10);
    CHECK(rig.Finish());
    // The next one finds nothing of it.
    CHECK(rig.CheckpointIdle().slices.size() > 0);
  }
}

TEST_CASE("checkpoint: an abort at a random time changes nothing and leaks no memory") {
  const bool rows = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= test::SeedCount(80); ++seed) {
    const CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_SYNC);
    CAPTURE(seed, rows);
    CheckpointRig rig(plan);
    rig.SetGoal(12);
    for (uint32_t i = 0; i < seed; ++i) rig.Act();
    REQUIRE(rig.Begin(rig.Newest() + 1, 600) == absl::OkStatus());
    for (uint32_t i = 0; i < seed * 2 % 150; ++i) {
      rig.Act();
      rig.ActCheckpoint();
    }
    for (size_t e = 0; e < rig.engines(); ++e) rig.engine(e).checkpoints().Abort(rig.id());
    for (uint32_t i = 0; i < 40; ++i) rig.Act();  // while pieces are out
    rig.ReleaseAll();
    REQUIRE(rig.Finish());
    CheckpointPlan other = plan;
    CheckpointRig twin(other);
    twin.SetGoal(12);
    REQUIRE(twin.Finish());
    REQUIRE(rig.CheckpointIdle() == twin.CheckpointIdle());
    for (size_t e = 0; e < rig.engines(); ++e) {
      REQUIRE(rig.engine(e).checkpoints().counters().memory_bytes == 0);
    }
  }
}

TEST_CASE("checkpoint: an apply without memory waits, and continues when a piece is released") {
  CheckpointPlan plan = Small(false, v1::CONSISTENCY_ASYNC);
  plan.elements = 48;
  plan.partitions = 1;
  CheckpointRig rig(plan);
  Engine& engine = rig.engine(0);
  PartitionCheckpointRequest request = Of(plan, 1, 0);
  request.memory_bytes = 0;
  std::vector<uint64_t> newest;
  REQUIRE(engine.checkpoints().Begin(request, &newest).ok());
  // With nothing in use one chunk may be kept, whatever the limit.
  rig.SetGoal(2);
  for (int i = 0; i < 50; ++i) rig.Act();
  CHECK_FALSE(rig.Done());
  CHECK(engine.checkpoints().counters().kept_chunks == 1);
  CHECK(engine.checkpoints().counters().waits == 1);
  // First the piece that an apply waits for.
  CheckpointPiece piece;
  REQUIRE(engine.checkpoints().Take(1, &piece));
  CHECK(piece.chunk == 1);
  for (int i = 0; i < 50; ++i) rig.Act();
  CHECK_FALSE(rig.Done());
  engine.checkpoints().Release(1, piece.id);
  for (int i = 0; i < 50; ++i) rig.Act();
  CHECK(rig.Done());
}

TEST_CASE("checkpoint: the default memory suffices for all changes of a dense table") {
  CheckpointPlan plan = Small(false, v1::CONSISTENCY_ASYNC);
  CheckpointRig rig(plan);
  Engine& engine = rig.engine(0);
  PartitionCheckpointRequest request = Of(plan, 1, 0);
  request.memory_bytes = std::nullopt;
  std::vector<uint64_t> newest;
  REQUIRE(engine.checkpoints().Begin(request, &newest).ok());
  rig.SetGoal(3);
  for (int i = 0; i < 500 && !rig.Done(); ++i) rig.Act();
  CHECK(rig.Done());
  const CheckpointProgress progress = *engine.checkpoints().progress(1);
  CHECK(engine.checkpoints().counters().kept_chunks > 1);
  CHECK(engine.checkpoints().counters().waits == 0);
  // Everything was changed, and is kept.
  CHECK(progress.memory_limit == PartitionCheckpointRequest::kRowMemory + progress.memory_bytes);
}

TEST_CASE("checkpoint: an apply to a chunk that is being written out uses another buffer") {
  CheckpointPlan plan = Small(false, GENERATE(v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC));
  plan.elements = 48;
  plan.spares = 0;
  CheckpointRig rig(plan);
  Engine& engine = rig.engine(0);
  std::vector<uint64_t> newest;
  REQUIRE(engine.checkpoints().Begin(Of(plan, 1, 0), &newest).ok());
  std::vector<CheckpointPiece> out;
  std::vector<std::vector<std::byte>> parameters;
  CheckpointPiece piece;
  while (engine.checkpoints().Take(1, &piece)) {
    if (piece.kind == PieceKind::kEnd) continue;
    out.push_back(piece);
    parameters.emplace_back(piece.parameters.begin(), piece.parameters.end());
  }
  REQUIRE(out.size() == 3);
  rig.SetGoal(4);
  CHECK(rig.Finish());
  CHECK(engine.checkpoints().counters().kept_chunks == 3);
  CHECK(engine.checkpoints().counters().waits == 0);
  for (size_t i = 0; i < out.size(); ++i) {
    CHECK(std::equal(parameters[i].begin(), parameters[i].end(), out[i].parameters.begin()));
    CHECK(out[i].state[0] == std::vector<float>(out[i].count, 0));
    engine.checkpoints().Release(1, out[i].id);
  }
  CHECK(engine.checkpoints().progress(1)->complete());
}

TEST_CASE("checkpoint: a replicated push waits for memory, and so do the pushes behind it") {
  CheckpointPlan plan = Small(true, v1::CONSISTENCY_ASYNC);
  plan.servers = plan.partitions = 2;
  plan.copies = true;
  CheckpointRig rig(plan);
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; keys.size() < 3; ++key) {
    if (PartitionOfKey(plan.table, key, 2) == 0) keys.push_back(key);
  }
  Engine& engine = rig.engine(0);
  const std::vector<float> ones(2 * plan.dim, 1);
  const auto push = [&](uint64_t sequence, absl::Span<const uint64_t> of) {
    Group group = rig.GroupOf(0, sequence);
    group.count = static_cast<uint32_t>(of.size());
    return engine
        .PushRows({{},
                   kFirstWorker,
                   plan.table,
                   {&group, 1},
                   of,
                   {reinterpret_cast<const std::byte*>(ones.data()), of.size() * plan.dim * 4}})
        .group_status[0];
  };
  const auto both = absl::MakeConstSpan(keys).subspan(0, 2);
  REQUIRE(push(1, both) == ReplyStatus::kOk);
  rig.DeliverAll();
  REQUIRE(push(2, both) == ReplyStatus::kOk);
  PartitionCheckpointRequest request = Of(plan, 1, 0);
  request.memory_bytes = 0;
  std::vector<uint64_t> newest;
  REQUIRE(engine.checkpoints().Begin(request, &newest).ok());
  rig.DeliverAll();  // one of the two rows can be kept
  CHECK(rig.Newest() == 1);
  for (v1::Partition& p : *rig.view().mutable_partitions()) p.clear_followers();
  rig.ApplyView();
  CHECK(push(3, absl::MakeConstSpan(keys).subspan(2)) == ReplyStatus::kResourceExhausted);
  CheckpointPiece piece;
  uint32_t rows = 0;
  while (engine.checkpoints().Take(1, &piece)) {
    for (const uint32_t applies : piece.row_applies) CHECK(applies == 1);
    rows += static_cast<uint32_t>(piece.keys.size());
    if (piece.kind == CheckpointPiece::Kind::kEnd) {
      REQUIRE(piece.prefix.size() == 1);
      CHECK(piece.prefix[0].sequence == 1);
    }
    engine.checkpoints().Release(1, piece.id);
  }
  CHECK(rows == 2);
  CHECK(rig.Newest() == 2);
  CHECK(push(3, absl::MakeConstSpan(keys).subspan(2)) == ReplyStatus::kOk);
  CHECK(rig.Newest() == 3);
}

}  // namespace checkpoint_abort_test
}  // namespace verbena::shard
