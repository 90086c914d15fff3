// A checkpoint is loaded on other servers, and training goes on as without the interruption.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <numeric>

#include "proto/wire/row_applies.h"
#include "shard/checkpoint/checkpoints.h"
#include "shard/checkpoint/restores.h"
#include "shard/cold_events.h"
#include "shard/failpoints.h"
#include "tests/shard/checkpoint_rig.h"

namespace verbena::shard {
namespace restore_test {

constexpr uint64_t kGoal = 12;

// Wherever chunks end.
struct Flat {
  std::map<uint64_t, std::vector<std::byte>> bytes;  // of each element, all of it
  std::map<uint64_t, SavedRow> rows;
  bool operator==(const Flat&) const = default;
};
Flat Flatten(const Saved& saved) {
  Flat flat;
  flat.rows = saved.rows;
  for (const auto& [first, chunk] : saved.chunks) {
    const size_t each = chunk.parameters.size() / chunk.count;
    for (uint32_t i = 0; i < chunk.count; ++i) {
      std::vector<std::byte>& bytes = flat.bytes[first + i];
      const auto add = [&](const void* from, size_t n) {
        const auto* at = static_cast<const std::byte*>(from);
        bytes.insert(bytes.end(), at, at + n);
      };
      add(chunk.parameters.data() + i * each, each);
      if (!chunk.master.empty()) add(&chunk.master[i], sizeof(float));
      for (const auto& array : chunk.state) add(&array[i], sizeof(float));
      add(&chunk.applies, sizeof(chunk.applies));
      add(&chunk.version, sizeof(chunk.version));
    }
  }
  return flat;
}

// As `plan`, on other servers, with other partitions and chunks.
CheckpointPlan Elsewhere(CheckpointPlan plan, uint64_t step) {
  const bool by_chunk = plan.optimizer.name() == "lamb" || plan.optimizer.clip_chunk_norm() > 0 ||
                        plan.optimizer.clip_global_norm() > 0;
  plan.servers = std::vector<uint32_t>{1, 2, 5}[plan.seed % 3];
  plan.copies = plan.servers > 1 && plan.seed % 2 == 0;
  plan.partitions = plan.servers + plan.seed % 4;
  plan.table = kTable + plan.seed % 5;
  if (!by_chunk) plan.chunk_elements = std::vector<uint32_t>{16, 32, 48}[plan.seed % 3];
  plan.first_step = step;
  plan.restoring = true;
  ++plan.seed;
  return plan;
}

TEST_CASE("restore: training on other servers equals training without an interruption") {
  const bool rows = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= 100; ++seed) {
    const CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_SYNC);
    CAPTURE(seed, rows, plan.optimizer.name(), static_cast<int>(plan.dtype));
    CheckpointRig rig(plan);
    rig.SetGoal(kGoal);
    for (uint32_t i = 0; i < seed * 3 % 200; ++i) rig.Act();
    const uint64_t wanted = std::min(rig.Newest() + seed % 3, kGoal);
    REQUIRE(rig.Begin(wanted, seed % 2 == 0 ? 500 : 1 << 20) == absl::OkStatus());
    const uint64_t step = rig.step();
    REQUIRE(rig.FinishCheckpoint());
    const Flat whole = Flatten(rig.CheckpointIdle());

    CheckpointRig other(Elsewhere(plan, step));
    other.SetGoal(kGoal);
    other.Load(rig.saved(), static_cast<ElementType>(plan.dtype), step);
    REQUIRE(other.FinishRestore() == absl::OkStatus());
    other.DeliverAll();
    for (size_t e = 0; e < other.engines(); ++e) {
      REQUIRE(other.engine(e).restores().progress(other.plan.table)->complete());
    }
    other.Serve();
    REQUIRE(Flatten(other.CheckpointIdle()) == Flatten(rig.saved()));
    REQUIRE(other.Finish());
    REQUIRE(other.error == "");
    REQUIRE(Flatten(other.CheckpointIdle()) == whole);
  }
}

TEST_CASE("restore: replicas have the loaded content, and take over") {
  const bool rows = GENERATE(false, true);
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    CheckpointPlan plan = MakeCheckpointPlan(seed, rows, v1::CONSISTENCY_SYNC);
    plan.servers = 2;
    plan.partitions = 4;
    CAPTURE(seed, rows);
    CheckpointRig rig(plan);
    rig.SetGoal(5);
    REQUIRE(rig.Finish());
    const Saved saved = rig.CheckpointIdle();
    plan.restoring = plan.copies = true;
    plan.first_step = 5;
    CheckpointRig other(plan);
    other.Load(saved, static_cast<ElementType>(plan.dtype), 5);
    REQUIRE(other.FinishRestore() == absl::OkStatus());
    const absl::StatusOr<RestoreProgress> before = other.engine(0).restores().progress(plan.table);
    CHECK(before->unfinished == 0);
    CHECK(before->behind > 0);
    other.DeliverAll();
    CHECK(other.engine(0).restores().progress(plan.table)->complete());
    // A server that gets both views at once loses nothing.
    other.view().mutable_tables(0)->set_restoring(false);
    for (v1::Partition& p : *other.view().mutable_partitions()) {
      p.set_primary(p.followers(0).server());
      p.set_epoch(2);
      p.clear_followers();
    }
    other.ApplyView();
    PartitionCheckpointRequest request;
    request.id = 1;
    request.tables.push_back({plan.table, 5, 0, false});
    Flat flat;
    for (size_t e = 0; e < 2; ++e) {
      std::vector<uint64_t> newest;
      REQUIRE(other.engine(e).checkpoints().Begin(request, &newest) == absl::OkStatus());
      CheckpointPiece piece;
      while (other.engine(e).checkpoints().Take(1, &piece)) {
        if (piece.kind == CheckpointPiece::Kind::kChunk) {
          const SavedChunk& was = saved.chunks.at(piece.first_element);
          CHECK(std::equal(was.parameters.begin(), was.parameters.end(), piece.parameters.begin()));
          CHECK(was.version == piece.version);
          CHECK(was.applies == piece.applies);
          flat.bytes[piece.first_element];
        }
        for (uint32_t i = 0; i < piece.keys.size(); ++i) {
          const SavedRow& was = saved.rows.at(piece.keys[i]);
          CHECK(was.applies == piece.row_applies[i]);
          CHECK(std::memcmp(was.parameters.data(),
                            piece.parameters.data() + i * plan.dim * sizeof(float),
                            plan.dim * sizeof(float)) == 0);
          flat.rows[piece.keys[i]];
        }
        other.engine(e).checkpoints().Release(1, piece.id);
      }
    }
    CHECK(flat.bytes.size() == saved.chunks.size());
    CHECK(flat.rows.size() == saved.rows.size());
  }
}

// One server, one worker.
CheckpointPlan Small(bool rows) {
  CheckpointPlan plan;
  plan.rows = rows;
  plan.workers = 1;
  plan.optimizer.set_name("momentum");
  plan.optimizer.set_rate(0.125);
  return plan;
}
Saved Trained(const CheckpointPlan& plan) {
  CheckpointRig rig(plan);
  rig.SetGoal(4);
  REQUIRE(rig.Finish());
  return rig.CheckpointIdle();
}
ReplyStatus Scanned(CheckpointRig* rig, uint32_t partition) {
  Group group = rig->GroupOf(partition, 0);
  group.count = 1;
  return rig->engine(0).Scan({kFirstWorker, rig->plan.table, group}).answer.status;
}
ReplyStatus Pulled(CheckpointRig* rig, uint32_t chunk) {
  PullRequest r;
  r.worker = kFirstWorker;
  r.table = rig->plan.table;
  r.group = rig->GroupOf(PartitionOfChunk(rig->plan.table, chunk, rig->plan.partitions), 0);
  r.group.index = chunk;
  const PullOutcome out = rig->engine(0).Pull(r);
  rig->engine(0).Unpin(out.view.pin);
  return out.answer.status;
}

TEST_CASE("restore: the table is served only after the view completes the restore") {
  const bool rows = GENERATE(false, true);
  CheckpointPlan plan = Small(rows);
  const Saved saved = Trained(plan);
  plan.restoring = true;
  plan.first_step = 4;
  CheckpointRig rig(plan);
  const auto status = [&] { return rows ? Scanned(&rig, 0) : Pulled(&rig, 0); };
  CHECK(status() == ReplyStatus::kNotReady);
  CHECK(rig.Begin(4) != absl::OkStatus());
  rig.Load(saved, ElementType::kF32, 4);
  CHECK(rig.error == "");
  CHECK(status() == ReplyStatus::kNotReady);
  REQUIRE(rig.FinishRestore().ok());
  CHECK(status() == ReplyStatus::kNotReady);
  // A generation that begins meanwhile starts from the same content.
  rig.view().mutable_jobs(0)->set_generation(2);
  rig.ApplyView();
  rig.Serve();
  CHECK(status() == ReplyStatus::kOk);
  CHECK(rig.Newest() == 4);
  CHECK(rig.engine(0).restores().Finish(plan.table).code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE(
    "restore: partitions unfinished when the view completes the restore are lost, not initial") {
  const bool rows = GENERATE(false, true);
  CheckpointPlan plan = Small(rows);
  const Saved saved = Trained(plan);
  plan.restoring = true;
  CheckpointRig rig(plan);
  rig.Load(saved, ElementType::kF32, 4);
  SECTION("not finished") {}
  SECTION("finished in an epoch before") {
    REQUIRE(rig.FinishRestore().ok());
    for (v1::Partition& p : *rig.view().mutable_partitions()) p.set_epoch(2);
    rig.ApplyView();
    CHECK(rig.engine(0).restores().progress(plan.table)->unfinished > 0);
  }
  rig.Serve();
  CHECK((rows ? Scanned(&rig, 0) : Pulled(&rig, 0)) == ReplyStatus::kDataLoss);
}

// Reads a table whose partitions were lost while it was restored, and reset when it was served.
// The shard hears of the latter two together. `joins`: when they are lost.
ReplyStatus ReadAfterReset(bool rows, bool joins) {
  CheckpointPlan plan = Small(rows);
  const Saved saved = Trained(plan);
  plan.restoring = true;
  plan.lost = joins;
  CheckpointRig rig(plan);
  auto* lost = rig.view().mutable_tables(0)->mutable_lost_partitions();
  if (!joins) {
    rig.Load(saved, ElementType::kF32, 4);
    for (const v1::Partition& p : rig.view().partitions()) lost->Add(p.id());
    rig.ApplyView();
  }
  lost->Clear();
  rig.Serve();
  return rows ? Scanned(&rig, 0) : Pulled(&rig, 0);
}

TEST_CASE("regression: a partition lost during a restore and reset after it is served") {
  const bool rows = GENERATE(false, true), joins = GENERATE(false, true);
  CHECK(ReadAfterReset(rows, joins) == ReplyStatus::kOk);
  failpoints().lose_what_is_reset = true;
  const ReplyStatus lost = ReadAfterReset(rows, joins);
  failpoints().lose_what_is_reset = false;
  CHECK(lost == ReplyStatus::kDataLoss);
}

TEST_CASE("restore: a partition with a new primary is loaded again") {
  CheckpointPlan plan = Small(false);
  const Saved saved = Trained(plan);
  plan.restoring = true;
  plan.first_step = 4;
  CheckpointRig rig(plan);
  rig.Load(saved, ElementType::kF32, 4);
  REQUIRE(rig.FinishRestore().ok());
  v1::Partition* moved = rig.view().mutable_partitions(0);
  moved->set_epoch(2);
  moved->set_primary(kServer + 1);
  rig.ApplyView();
  moved->set_epoch(3);
  moved->set_primary(kServer);
  rig.ApplyView();
  CHECK(rig.engine(0).restores().progress(plan.table)->missing_elements > 0);
  CHECK(rig.FinishRestore().code() == absl::StatusCode::kFailedPrecondition);
  rig.Load(saved, ElementType::kF32, 4);
  REQUIRE(rig.FinishRestore() == absl::OkStatus());
  rig.Serve();
  CHECK(Flatten(rig.CheckpointIdle()) == Flatten(saved));
}

TEST_CASE("restore: a partly loaded partition is not served") {
  CheckpointPlan plan = Small(false);
  Saved saved = Trained(plan);
  saved.chunks.erase(0);
  plan.restoring = true;
  CheckpointRig rig(plan);
  RestoreRequest begin;
  begin.table = plan.table;
  begin.version = 4;
  REQUIRE(rig.engine(0).restores().Begin(begin).ok());
  begin.version = 5;
  CHECK(rig.engine(0).restores().Begin(begin).code() == absl::StatusCode::kFailedPrecondition);
  for (const auto& [first, chunk] : saved.chunks) {
    ElementsToRestore elements;
    elements.table = plan.table;
    elements.first_element = first;
    elements.count = chunk.count;
    elements.parameters = chunk.parameters;
    REQUIRE(rig.engine(0).restores().LoadElements(elements).ok());
  }
  CHECK_FALSE(rig.FinishRestore().ok());
  rig.Serve();
  CHECK(Pulled(&rig, 0) == ReplyStatus::kDataLoss);
}

TEST_CASE("restore: into another dtype, and without optimizer state") {
  CheckpointPlan plan = Small(false);
  plan.dtype = std::vector{v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}[GENERATE(0, 1, 2)];
  const Saved saved = Trained(plan);
  CheckpointPlan to = plan;
  to.dtype = std::vector{v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}[GENERATE(0, 1, 2)];
  to.restoring = true;
  CheckpointRig rig(to);
  rig.Load(saved, static_cast<ElementType>(plan.dtype), 0, /*state=*/false);
  REQUIRE(rig.error == "");
  REQUIRE(rig.FinishRestore().ok());
  rig.Serve();
  for (const auto& [first, chunk] : rig.CheckpointIdle().chunks) {
    // The optimizer continues with the weights that it had.
    const auto weights = [](const SavedChunk& c) {
      if (!c.master.empty()) return c.master;
      std::vector<float> floats(c.count);
      std::memcpy(floats.data(), c.parameters.data(), c.parameters.size());
      return floats;
    };
    if (to.chunk_elements == plan.chunk_elements && saved.chunks.contains(first) &&
        saved.chunks.at(first).count == chunk.count) {
      CHECK(weights(chunk) == weights(saved.chunks.at(first)));
    }
    CHECK(chunk.applies == 0);
    CHECK(chunk.state[0] == std::vector<float>(chunk.count, 0));
  }
}

TEST_CASE("restore: 16-bit parameters without a master copy are widened") {
  CheckpointPlan plan = Small(false);
  plan.dtype = v1::DTYPE_BF16;
  Saved saved = Trained(plan);
  for (auto& [first, chunk] : saved.chunks) chunk.master.clear();
  plan.restoring = true;
  CheckpointRig rig(plan);
  rig.Load(saved, ElementType::kBf16, 0);
  REQUIRE(rig.FinishRestore().ok());
  rig.Serve();
  for (const auto& [first, chunk] : rig.CheckpointIdle().chunks) {
    CHECK(chunk.parameters == saved.chunks.at(first).parameters);
    CHECK(chunk.master.size() == chunk.count);
  }
}

TEST_CASE("restore: content that does not fit the table's shape is refused") {
  const auto bad = absl::StatusCode::kInvalidArgument;
  CheckpointPlan plan = Small(false);
  plan.restoring = true;
  CheckpointRig rig(plan);
  const std::vector<float> numbers(plan.elements);
  ElementsToRestore elements;
  elements.table = plan.table;
  elements.count = plan.elements;
  elements.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), plan.elements * 4};
  CHECK(rig.engine(0).restores().LoadElements(elements).code() ==
        absl::StatusCode::kFailedPrecondition);
  REQUIRE(rig.engine(0).restores().Begin({plan.table, 0, 0}).ok());
  CHECK(rig.engine(0).restores().Begin({99, 0, 0}).code() == absl::StatusCode::kNotFound);
  CHECK(rig.engine(0).restores().LoadElements(elements).ok());
  elements.first_element = 1;
  CHECK(rig.engine(0).restores().LoadElements(elements).code() == bad);
  elements.first_element = UINT64_MAX;
  CHECK(rig.engine(0).restores().LoadElements(elements).code() == bad);
  elements.first_element = 0;
  elements.state.resize(2, numbers);
  CHECK(rig.engine(0).restores().LoadElements(elements).code() == bad);
  elements.state.assign(1, absl::MakeSpan(numbers).subspan(1));
  CHECK(rig.engine(0).restores().LoadElements(elements).code() == bad);
  elements.state.clear();
  elements.parameters.remove_suffix(1);
  CHECK(rig.engine(0).restores().LoadElements(elements).code() == bad);
  const std::vector<uint64_t> keys = {1, 2};
  RowsToRestore rows;
  rows.table = plan.table;
  rows.keys = keys;
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == bad);
  // A table that is not being restored in the view.
  plan.restoring = false;
  CheckpointRig served(plan);
  CHECK(served.engine(0).restores().Begin({plan.table, 0, 0}).code() ==
        absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("restore: rows of another shape than the table's are refused") {
  CheckpointPlan plan = Small(true);
  plan.restoring = true;
  CheckpointRig rig(plan);
  REQUIRE(rig.engine(0).restores().Begin({plan.table, 0, 0}).ok());
  const std::vector<uint64_t> keys = {1, 2};
  const std::vector<float> numbers(2 * plan.dim);
  const std::vector<uint32_t> applies(1);
  RowsToRestore rows;
  rows.table = plan.table;
  rows.keys = keys;
  rows.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
  CHECK(rig.engine(0).restores().LoadRows(rows).ok());
  rows.row_applies = applies;
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == absl::StatusCode::kInvalidArgument);
  rows.row_applies = {};
  rows.state.assign(1, absl::MakeSpan(numbers).subspan(1));
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == absl::StatusCode::kInvalidArgument);
  rows.state.assign(2, numbers);
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == absl::StatusCode::kInvalidArgument);
  rows.state.clear();
  rows.dtype = ElementType::kNone;
  rows.parameters = {};
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == absl::StatusCode::kInvalidArgument);
  rows.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
  rows.dtype = ElementType::kBf16;
  CHECK(rig.engine(0).restores().LoadRows(rows).code() == absl::StatusCode::kInvalidArgument);
  rows.parameters = rows.parameters.first(numbers.size() * 2);
  CHECK(rig.engine(0).restores().LoadRows(rows).ok());
  // Without a count they were changed once: rows that never were are none.
  REQUIRE(rig.FinishRestore().ok());
  rig.Serve();
  CHECK(rig.CheckpointIdle().rows.at(1).applies == 1);
}

// The most bytes that a partition's log for its follower has while rows are loaded at once.
uint64_t MostLogged(const ReplicaLogLimits& limits) {
  CheckpointPlan plan = Small(true);
  plan.servers = 2;
  plan.partitions = 2;
  plan.restoring = plan.copies = true;
  plan.log = limits;
  CheckpointRig rig(plan);
  for (size_t e = 0; e < 2; ++e) {
    REQUIRE(rig.engine(e).restores().Begin({plan.table, 0, 0}).ok());
  }
  std::vector<uint64_t> keys(500);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> numbers(keys.size() * plan.dim, 1.0f);
  RowsToRestore rows;
  rows.table = plan.table;
  rows.keys = keys;
  rows.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
  uint64_t most = 0;
  for (size_t e = 0; e < 2; ++e) {
    RowsLoaded loaded;
    absl::Status status;
    for (int calls = 0; calls < 1000; ++calls) {
      status = rig.engine(e).restores().LoadRows(rows, &loaded);
      most = std::max(most, rig.engine(e).counters().replica_log_partition_bytes);
      if (!absl::IsUnavailable(status)) break;
      rig.DeliverAll();
    }
    REQUIRE(status.ok());
  }
  rig.DeliverAll();
  REQUIRE(rig.FinishRestore().ok());
  rig.DeliverAll();
  rig.Serve();
  CHECK(rig.CheckpointIdle().rows.size() == keys.size());
  return most;
}

TEST_CASE("regression: restored rows wait for room in the log for their replicas") {
  const ReplicaLogLimits limits = {2048, 4096, 512, 512};
  // A record of 512 bytes of rows, with its keys and header, may be beyond the limit.
  const uint64_t record = 1024;
  CHECK(MostLogged(limits) <= limits.partition_bytes + record);
  failpoints().load_unbounded = true;
  const uint64_t unbounded = MostLogged(limits);
  failpoints().load_unbounded = false;
  CHECK(unbounded > limits.partition_bytes + record);
}

// Calls of LoadRows() until all is loaded; 0: it is not after many.
int CallsToLoad(CheckpointRig* rig, const RowsToRestore& rows) {
  RowsLoaded loaded;
  for (int calls = 1; calls <= 1000; ++calls) {
    const absl::Status status = rig->engine(0).restores().LoadRows(rows, &loaded);
    if (status.ok()) return calls;
    REQUIRE(absl::IsUnavailable(status));
    // Never far more rows in memory than fit.
    const ColdCounters cold = rig->engine(0).cold().counters();
    REQUIRE(cold.hot_bytes <= 2 * cold.hot_limit_bytes);
    rig->TakeEvents();  // the cold store writes its queue
  }
  return 0;
}

TEST_CASE("regression: rows beyond memory are loaded, even if few fit into it") {
  CheckpointPlan plan = Small(true);
  plan.cold = plan.restoring = true;
  plan.servers = 1;
  plan.partitions = GENERATE(1u, 4u);
  CheckpointRig rig(plan);
  REQUIRE(rig.engine(0).restores().Begin({plan.table, 0, 0}).ok());
  std::vector<uint64_t> keys(3000);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> numbers(keys.size() * plan.dim);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i);
  RowsToRestore rows;
  rows.table = plan.table;
  rows.keys = keys;
  rows.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
  failpoints().restart_windows = true;
  CHECK(CallsToLoad(&rig, rows) == 0);
  failpoints().restart_windows = false;
  CHECK(CallsToLoad(&rig, rows) > 1);
  REQUIRE(rig.FinishRestore().ok());
  rig.Serve();
  const Saved saved = rig.CheckpointIdle();
  REQUIRE(saved.rows.size() == keys.size());
  for (const uint64_t key : keys) {
    const auto from = numbers.begin() + static_cast<ptrdiff_t>(key * plan.dim);
    CHECK(saved.rows.at(key).parameters == std::vector<float>(from, from + plan.dim));
  }
}

TEST_CASE("regression: adam begins at its first step on rows that come without its state") {
  CheckpointPlan plan = Small(true);
  plan.optimizer.set_name("adam");
  plan.optimizer.set_rate(0.1);
  plan.restoring = true;
  CheckpointRig rig(plan);
  for (size_t i = 0; i < rig.engines(); ++i) {
    REQUIRE(rig.engine(i).restores().Begin({plan.table, 0, 0}).ok());
  }
  std::vector<uint64_t> keys(plan.keys);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> numbers(keys.size() * plan.dim, 8);
  RowsToRestore rows;
  rows.table = plan.table;
  rows.keys = keys;
  rows.parameters = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
  for (size_t i = 0; i < rig.engines(); ++i) CHECK(rig.engine(i).restores().LoadRows(rows).ok());
  REQUIRE(rig.FinishRestore().ok());
  rig.Serve();
  size_t moved = 0;
  for (const uint64_t goal : {1, 2, 3}) {
    rig.SetGoal(goal);
    REQUIRE(rig.Finish());
    for (const auto& [key, row] : rig.CheckpointIdle().rows) {
      INFO(key);
      CHECK((row.applies == kAppliesOfNewState || (row.applies > 0 && row.applies <= goal)));
      if (row.applies != 1) continue;
      for (const float w : row.parameters) {
        if (w == 8) continue;  // its gradient is zero
        CHECK(std::abs(std::abs(w - 8) - 0.1f) < 1e-4f);
        ++moved;
      }
    }
  }
  CHECK(moved > 0);
}

TEST_CASE("a row's count of applies skips the number that means none") {
  CHECK(NextApply(0) == 1);
  CHECK(NextApply(7) == 8);
  CHECK(NextApply(kAppliesOfNewState) == 1);
  CHECK(CountAfterApply(0) == 1);
  CHECK(CountAfterApply(kAppliesOfNewState) == 1);
  CHECK(CountAfterApply(kAppliesOfNewState - 2) == kAppliesOfNewState - 1);
  CHECK(CountAfterApply(kAppliesOfNewState - 1) == UINT32_MAX);
  CHECK(CountAfterApply(UINT32_MAX) == UINT32_MAX);
}

}  // namespace restore_test
}  // namespace verbena::shard
