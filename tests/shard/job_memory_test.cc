// The limit of a job's memory on a server: by use, over shards, and in an engine.
#include "shard/job_memory.h"

#include <catch2/catch.hpp>
#include <memory>
#include <vector>

#include "shard/table/dense_table.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_CASE("tables end at fifteen sixteenths of the limit, and scratch may use the rest") {
  JobMemory job;
  CHECK(job.Take(1000 * kMiB, MemoryUse::kTables));  // no limit yet
  job.Give(1000 * kMiB, MemoryUse::kTables);
  job.SetLimit(1600 * kMiB);
  CHECK_FALSE(job.Take(1501 * kMiB, MemoryUse::kTables));
  CHECK(job.Take(1000 * kMiB, MemoryUse::kTables));
  CHECK_FALSE(job.Take(601 * kMiB, MemoryUse::kScratch));
  CHECK(job.Take(600 * kMiB, MemoryUse::kScratch));
  CHECK_FALSE(job.Take(1, MemoryUse::kTables));
  CHECK(job.Take(5000 * kMiB, MemoryUse::kSums));
  job.Give(600 * kMiB, MemoryUse::kScratch);
  CHECK(job.Take(500 * kMiB, MemoryUse::kTables));
  CHECK_FALSE(job.Take(1, MemoryUse::kTables));
  CHECK(job.Take(100 * kMiB, MemoryUse::kScratch));
  CHECK_FALSE(job.Take(1, MemoryUse::kScratch));
  CHECK(job.used(MemoryUse::kTables) == 1500 * kMiB);
  CHECK(job.used(MemoryUse::kScratch) == 100 * kMiB);
}

TEST_CASE("under a lowered limit no memory grows, and existing tables are served") {
  JobMemory job;
  CHECK(job.Take(100 * kMiB, MemoryUse::kTables));
  for (const uint64_t limit : {50 * kMiB, uint64_t{1}, uint64_t{0}}) {
    job.SetLimit(limit);
    CHECK_FALSE(job.Take(1, MemoryUse::kTables));
    CHECK(job.Take(JobMemory::kLeastScratch, MemoryUse::kScratch));
    CHECK_FALSE(job.Take(1, MemoryUse::kScratch));
    job.Give(JobMemory::kLeastScratch, MemoryUse::kScratch);
  }
  CHECK(job.used(MemoryUse::kTables) == 100 * kMiB);
  CHECK_FALSE(job.Take(UINT64_MAX - 1, MemoryUse::kTables));  // a sum that would overflow
  CHECK(job.used(MemoryUse::kTables) == 100 * kMiB);
}

TEST_CASE("shards share a server's limit, and return their part when they end") {
  auto job = std::make_shared<JobMemory>();
  job->SetLimit(160 * kMiB);
  auto first = std::make_unique<JobAccount>(job);
  JobAccount second(job);
  CHECK(first->Take(100 * kMiB, MemoryUse::kTables));
  CHECK_FALSE(second.Take(60 * kMiB, MemoryUse::kTables));
  CHECK(second.Take(50 * kMiB, MemoryUse::kTables));
  CHECK(second.bytes() == 50 * kMiB);
  first.reset();
  CHECK(second.Take(100 * kMiB, MemoryUse::kTables));
  CHECK(job->used(MemoryUse::kTables) == 150 * kMiB);
}

RowOptions Wide() {
  RowOptions o;
  o.workers = 1;
  o.dim = 64;
  o.optimizer.set_name("adagrad");
  return o;
}

// Pushes new rows of partition 0 until they are refused. How many there are.
size_t Fill(RowFixture* f, const std::vector<uint64_t>& keys, uint64_t* sequence, Status wanted) {
  for (size_t i = 0; i < keys.size(); ++i) {
    const Status status = f->PushValue(0, 0, ++*sequence, {keys[i]}, 1);
    if (status == Status::kOk) continue;
    CHECK(status == wanted);
    --*sequence;  // which a refused push does not take
    return i;
  }
  FAIL("the limit was not reached");
  return 0;
}

TEST_CASE("rows beyond the job's limit are refused with the job's status, whole groups at a time") {
  RowFixture f(Wide());
  // This server has three of the four partitions.
  f.view.mutable_partitions(3)->set_primary(kServer + 1);
  f.job()->mutable_limits()->set_memory_bytes(4 * kMiB);
  REQUIRE(f.Apply().ok());
  const std::vector<uint64_t> keys = f.KeysIn(0, 10000);
  uint64_t sequence = 0;
  const size_t rows = Fill(&f, keys, &sequence, Status::kJobMemoryLimit);
  CHECK(rows > 2000);  // of 524 bytes each
  CHECK(f.engine->counters().resident_bytes <= 3 * kMiB / 16 * 15);
  REQUIRE(f.engine->jobs().size() == 1);
  CHECK(f.engine->jobs()[0].name == "job");
  CHECK(f.engine->jobs()[0].memory_limit == 3 * kMiB);
  CHECK(f.engine->jobs()[0].memory_bytes == f.engine->counters().resident_bytes);

  const GroupsOutcome refused = f.Push(0, 0, ++sequence, {{keys[rows], f.Filled(1)}});
  CHECK(refused.group_status[0] == Status::kJobMemoryLimit);
  CHECK(refused.answer.detail == 3);  // MiB
  const Row first = f.ReadRow(keys[0]);
  CHECK(f.PushValue(0, 0, sequence, {keys[0], keys[rows]}, 1) == Status::kJobMemoryLimit);
  CHECK(SameBits(f.ReadRow(keys[0]), first));
  CHECK(f.engine->tables()[0].rows == rows);
  CHECK(f.PushValue(0, 0, sequence, {keys[0]}, 1) == Status::kOk);
  CHECK_FALSE(SameBits(f.ReadRow(keys[0]), first));

  SECTION("with a higher limit they fit") {
    f.job()->mutable_limits()->set_memory_bytes(8 * kMiB);
    REQUIRE(f.Apply().ok());
    CHECK(f.PushValue(0, 0, ++sequence, {keys[rows]}, 1) == Status::kOk);
  }
  SECTION("without a limit they fit, too") {
    f.job()->clear_limits();
    REQUIRE(f.Apply().ok());
    CHECK(f.PushValue(0, 0, ++sequence, {keys[rows]}, 1) == Status::kOk);
  }
  SECTION("a lower limit frees no rows, and a new generation keeps it") {
    f.job()->mutable_limits()->set_memory_bytes(1);
    f.job()->set_generation(2);
    REQUIRE(f.Apply().ok());
    CHECK(f.engine->tables()[0].rows == rows);
    CHECK(f.PushValue(0, 0, 1, {keys[1]}, 1) == Status::kOk);
    CHECK(f.PushValue(0, 0, 2, {keys[rows]}, 1) == Status::kJobMemoryLimit);
    CHECK(f.Scan(0, 100).size() == rows);
  }
  SECTION("a dropped table frees all memory") {
    f.view.clear_tables();
    REQUIRE(f.Apply().ok());
    REQUIRE(f.engine->jobs().size() == 1);
    CHECK(f.engine->jobs()[0].memory_bytes == 0);
    f.view.clear_jobs();
    REQUIRE(f.Apply().ok());
    CHECK(f.engine->jobs().empty());
  }
}

TEST_CASE("when both limits are near, the refusal names the limit that was reached") {
  RowFixture f(Wide());
  f.job()->mutable_limits()->set_memory_bytes(4 * kMiB);
  REQUIRE(f.Apply().ok());
  f.allocator.limit = 2 * kMiB;
  const std::vector<uint64_t> keys = f.KeysIn(0, 10000);
  uint64_t sequence = 0;
  const size_t rows = Fill(&f, keys, &sequence, Status::kMemoryLimit);
  f.allocator.limit = SIZE_MAX;
  const std::vector<uint64_t> more(keys.begin() + static_cast<ptrdiff_t>(rows), keys.end());
  CHECK(Fill(&f, more, &sequence, Status::kJobMemoryLimit) > 0);
}

TEST_CASE("a sync push beyond the job's limit is refused again when repeated, until it is empty") {
  RowOptions o = Wide();
  o.consistency = v1::CONSISTENCY_SYNC;
  RowFixture f(o);
  const std::vector<uint64_t> keys = f.KeysIn(0, 100);
  CHECK(f.PushValue(0, 0, 0, {keys[0]}, 1) == Status::kOk);
  f.job()->mutable_limits()->set_memory_bytes(1);
  REQUIRE(f.Apply().ok());
  CHECK(f.PushValue(0, 0, 0, keys, 1, 1) == Status::kJobMemoryLimit);
  CHECK(f.PushValue(0, 0, 0, keys, 1, 1) == Status::kJobMemoryLimit);
  CHECK(f.PushValue(0, 0, 0, {keys[0]}, 1, 2) == Status::kOk);
  CHECK(f.PushStatus(0, 0, 0, {}, 1) == Status::kOk);
  CHECK(f.EndStatus(0, 0, 0, 3) == Status::kOk);
  CHECK(f.commits.size() == 1);
  CHECK(f.engine->tables()[0].rows == 1);
}

// A dense table of 4 chunks of 64 KiB, with a chunk in each partition.
FixtureOptions Dense() {
  FixtureOptions o;
  o.chunk_elements = o.last_elements = 16384;
  return o;
}
constexpr uint64_t kDense = 4 * 65536;

TEST_CASE("a dense table beyond the limit is refused for memory until it fits") {
  Fixture f(Dense());
  v1::Table more = f.MakeTable(kTable + 1, "more");
  f.job()->mutable_limits()->set_memory_bytes(2 * kDense);
  *f.view.add_tables() = more;
  const absl::Status status = f.Apply();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("table 8 \"more\"") &&
                                                Catch::Contains("memory limit of job \"job\"") &&
                                                Catch::Contains("524288 bytes"));
  CHECK(f.engine->jobs()[0].memory_bytes < kDense + 8192);  // with its state for each worker
  // The first one goes on.
  CHECK(f.Push(1, 0, 0, 1).held);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Version(0) == 1);
  f.job()->mutable_limits()->set_memory_bytes(3 * kDense);
  CHECK(f.Apply().ok());
  CHECK(f.engine->jobs()[0].memory_bytes >= 2 * kDense);
}

TEST_CASE("the coordinator's estimate for a dense table is its memory") {
  FixtureOptions o = Dense();
  o.last_elements = 100;
  o.dtype = GENERATE(v1::DTYPE_F32, v1::DTYPE_BF16);
  o.optimizer = GENERATE("sgd", "adam");
  o.consistency = v1::CONSISTENCY_ASYNC;
  Fixture f(o);
  const uint64_t chunk = DenseTable::MemoryOfChunk(f.view.tables(0).spec());
  CHECK(f.engine->jobs()[0].memory_bytes == o.chunks * chunk);
}

TEST_CASE("a job whose limit was lowered trains on, and its sums are counted") {
  Fixture f(Dense());
  f.job()->mutable_limits()->set_memory_bytes(1);
  REQUIRE(f.Apply().ok());
  const uint64_t before = f.engine->jobs()[0].memory_bytes;
  for (uint64_t step = 0; step < 3; ++step) {
    CHECK_FALSE(f.Push(0, 0, step, 1).held);
    CHECK(f.engine->jobs()[0].memory_bytes == before + 65536);
    const PullOutcome pinned = f.Pull(kFirstWorker, 0, step);
    REQUIRE(pinned.kind == PullOutcome::Kind::kReady);
    CHECK(f.Push(1, 0, step, 1).answer.status == Status::kOk);  // to a spare, which is nobody's
    CHECK(f.engine->jobs()[0].memory_bytes == before);
    f.engine->Unpin(pinned.view.pin);
    CHECK(f.engine->jobs()[0].memory_bytes == before);
    CHECK(f.Version(0) == step + 1);
  }
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->jobs()[0].memory_bytes == 0);
  CHECK(f.allocator.used == 0);
}

TEST_CASE("regression: a job above its lowered limit keeps its memory when partitions move") {
  Fixture f(Dense());
  f.job()->mutable_limits()->set_memory_bytes(1);
  REQUIRE(f.Apply().ok());
  // Nothing is to be allocated.
  f.view.mutable_partitions(3)->set_primary(kServer + 1);
  f.view.mutable_partitions(3)->set_epoch(f.view.partitions(3).epoch() + 1);
  const absl::Status moved = f.Apply();
  INFO(moved);
  CHECK(moved.ok());
  CHECK_FALSE(f.Push(0, 0, 0, 1).held);
  CHECK(f.Push(1, 0, 0, 1).answer.status == Status::kOk);
  CHECK(f.Version(0) == 1);
}

TEST_CASE("a sync table's state for each worker counts, and is never refused") {
  FixtureOptions o = Dense();
  Fixture f(o);
  f.job()->mutable_limits()->set_memory_bytes(3 * kDense);
  REQUIRE(f.Apply().ok());
  const uint64_t two = f.engine->jobs()[0].memory_bytes;
  CHECK(f.allocator.counted == static_cast<int64_t>(two - kDense));
  // A later run has very many: a table for which there was room does not fit any more.
  f.job()->set_generation(2);
  f.job()->set_expected_workers(20'000);
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->jobs()[0].memory_bytes > kDense + 4 * 20'000 * 40);
  CHECK(f.allocator.counted > 4 * 20'000 * 40);
  *f.view.add_tables() = f.MakeTable(kTable + 1, "more");
  CHECK(absl::IsResourceExhausted(f.Apply()));
  f.job()->set_generation(3);
  f.job()->set_expected_workers(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->jobs()[0].memory_bytes == 2 * two);
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->jobs()[0].memory_bytes == 0);
  CHECK(f.allocator.counted == 0);
}

TEST_CASE("rows being sent count until they are written, also when their job is gone") {
  RowFixture f(Wide());
  const std::vector<uint64_t> keys = f.KeysIn(0, 10);
  CHECK(f.PushValue(0, 0, 1, keys, 1) == Status::kOk);
  const uint64_t rows = f.engine->jobs()[0].memory_bytes;
  const PullOutcome out = f.Lookup(kFirstWorker, keys, 0);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(f.engine->jobs()[0].memory_bytes >= rows + 10 * 64 * sizeof(float));
  f.view.clear_tables();
  f.view.clear_jobs();
  REQUIRE(f.Apply().ok());
  REQUIRE(f.engine->jobs().size() == 1);
  CHECK(f.engine->jobs()[0].memory_bytes > 0);
  f.engine->Unpin(out.view.pin);
  CHECK(f.engine->jobs()[0].memory_bytes == 0);
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->jobs().empty());
}

TEST_CASE("an engine that ends returns its jobs' memory to the server") {
  auto memory = std::make_shared<JobMemory>();
  RowFixture f(Wide());
  EngineOptions options;
  options.allocator = &f.allocator;
  options.server = kServer;
  options.job_memory = [&](const std::string& job) {
    CHECK(job == "job");
    return memory;
  };
  f.engine = std::make_unique<Engine>(options);
  REQUIRE(f.engine->ApplyView(f.view).ok());
  CHECK(f.PushValue(0, 0, 1, f.KeysIn(0, 100), 1) == Status::kOk);
  CHECK(f.Lookup(kFirstWorker, f.KeysIn(0, 100), 0).kind == PullOutcome::Kind::kReady);
  CHECK(memory->used(MemoryUse::kTables) > 0);
  CHECK(memory->used(MemoryUse::kScratch) > 0);
  f.engine.reset();
  CHECK(memory->used(MemoryUse::kTables) == 0);
  CHECK(memory->used(MemoryUse::kScratch) == 0);
}

}  // namespace
}  // namespace verbena::shard
