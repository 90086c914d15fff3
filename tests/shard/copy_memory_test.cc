// Partitions whose copy is on a server that has no memory for it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shard/failpoints.h"
#include "shard/replica/copies.h"
#include "shard/replica/replicas.h"
#include "tests/shard/replica_bytes.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

constexpr uint64_t kCopy = kServer + 1;
constexpr CopyId kCopyId = {kCopy, 0};

// Limits as a server's (server/executor/memory_budget.h).
class ServerMemory final : public Allocator {
 public:
  void SetFor(MemoryFor whom) override { whom_ = whom; }
  Buffer Allocate(size_t bytes) override { return used + bytes > Most() ? Buffer() : Take(bytes); }
  Buffer AllocateScratch(size_t bytes) override { return Take(bytes); }
  void Free(const Buffer& buffer) override {
    used -= buffer.bytes;
    heap_.Free(buffer);
  }
  uint64_t limit_bytes() const override { return limit; }
  uint64_t RoomForRows() const override { return Most() - std::min<uint64_t>(Most(), used); }

  uint64_t limit = uint64_t{2} << 20;
  uint64_t used = 0;

 private:
  uint64_t Most() const {
    if (whom_ == MemoryFor::kFollower) return limit;
    return whom_ == MemoryFor::kPrimaryBesideCopies ? limit / 8 * 7 : limit / 16 * 15;
  }
  Buffer Take(size_t bytes) {
    used += bytes;
    return heap_.Allocate(bytes);
  }
  MemoryFor whom_ = MemoryFor::kPrimary;
  HeapAllocator heap_;
};

RowOptions Options(v1::Consistency consistency = v1::CONSISTENCY_ASYNC) {
  RowOptions o;
  o.consistency = consistency;
  o.workers = o.partitions = 1;
  o.dim = 64;
  o.optimizer.set_name("adagrad");
  return o;
}

// A primary without a limit, which is the fixture's engine, and a copy of its partition.
class Pair {
 public:
  explicit Pair(const RowOptions& o) : f(o) {}
  ~Pair() { failpoints() = {}; }

  void AddCopy(bool learner) {
    v1::Partition* p = f.view.mutable_partitions(0);
    v1::Replica* replica = learner ? p->add_learners() : p->add_followers();
    replica->set_server(kCopy);
    replica->set_since(f.view.revision() + 1);
    EngineOptions options;
    options.server = kCopy;
    options.allocator = &memory;
    copy = std::make_unique<Engine>(options);
    Apply();
  }
  void Apply() {
    REQUIRE(f.Apply().ok());
    REQUIRE(copy->ApplyView(f.view).ok());
  }
  // The replica answers all records; returns the worst of its answers.
  Status Ship() {
    Status worst = Status::kOk;
    std::vector<ReplicaRecord> records;
    for (int round = 0; round < 100; ++round) {
      records.clear();
      f.engine->replicas().Take(&records, 1000);
      if (records.empty()) break;
      for (const ReplicaRecord& r : records) {
        const ReplicaBytes bytes(r);
        const Status status =
            copy->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status;
        f.engine->replicas().SetRoom(kCopyId, copy->copies().Room());
        f.engine->replicas().Answered(r.to, 0, r.group.sequence, status);
        if (worst == Status::kOk) worst = status;
      }
    }
    for (const Event& e : f.Events()) answered += e.kind == Event::Kind::kReplicated ? 1 : 0;
    return worst;
  }
  // A worker's next push, and its commit.
  GroupsOutcome Push(const std::vector<uint64_t>& keys) {
    Rows rows;
    for (const uint64_t key : keys) rows[key] = f.Filled(1);
    const bool sync = f.options.consistency == v1::CONSISTENCY_SYNC;
    GroupsOutcome out = f.Push(0, 0, sync ? step : sequence, rows);
    if (sync || out.answer.status == Status::kOk) ++sequence;
    if (!sync) return out;
    if (out.answer.status != Status::kOk) REQUIRE(f.PushStatus(0, 0, step, {}) == Status::kOk);
    REQUIRE(f.EndStep(0, 0, step++, 1).answer.status == Status::kOk);
    return out;
  }
  uint64_t RowsOf(const Engine& engine) { return engine.tables()[0].rows; }

  RowFixture f;
  ServerMemory memory;  // of the copy
  std::unique_ptr<Engine> copy;
  uint64_t sequence = 1, step = 0;
  size_t answered = 0;  // pushes, after their copy had them
};

TEST_CASE("regression: rows that do not fit the follower's memory are refused, and others go on") {
  Pair pair(Options(GENERATE(v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC)));
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 10'000);
  size_t next = 0;
  Status status = Status::kOk;
  uint32_t detail = 0;
  while (status == Status::kOk) {
    REQUIRE(next + 20 < keys.size());
    const GroupsOutcome out = pair.Push({keys.begin() + next, keys.begin() + next + 20});
    status = out.answer.status;
    detail = out.answer.detail;
    if (status == Status::kOk) next += 20;
    REQUIRE(pair.Ship() == Status::kOk);  // whatever was logged can be applied
  }
  CHECK(status == Status::kCopyMemoryLimit);
  CHECK(detail == 2);  // MiB
  CHECK(next > 1000);  // of 1.5 MiB, 520 bytes each
  CHECK(pair.RowsOf(*pair.f.engine) == next);
  CHECK(pair.RowsOf(*pair.copy) == next);

  // Rows that are there go on, and lookups.
  REQUIRE(pair.Push({keys[0], keys[1]}).answer.status == Status::kOk);
  REQUIRE(pair.Ship() == Status::kOk);
  CHECK_FALSE(pair.f.Read({keys[0], keys[next]}).empty());
  CHECK(pair.Push({keys[0], keys[next]}).answer.status == Status::kCopyMemoryLimit);
  REQUIRE(pair.Ship() == Status::kOk);

  // There is room again.
  pair.memory.limit *= 2;
  pair.f.engine->replicas().SetRoom(kCopyId, pair.copy->copies().Room());
  REQUIRE(pair.Push({keys[0], keys[next]}).answer.status == Status::kOk);
  REQUIRE(pair.Ship() == Status::kOk);
  CHECK(pair.RowsOf(*pair.copy) == next + 1);
}

TEST_CASE("no more rows are in flight to a follower than fit its memory") {
  Pair pair(Options());
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 10'000);
  size_t next = 0;
  Status status = Status::kOk;
  while (status == Status::kOk && next + 100 < keys.size()) {
    status = pair.Push({keys.begin() + next, keys.begin() + next + 100}).answer.status;
    if (status == Status::kOk) next += 100;
  }
  CHECK(status == Status::kResourceExhausted);  // it is to come again
  REQUIRE(pair.Ship() == Status::kOk);
  CHECK(pair.RowsOf(*pair.copy) == next);
  CHECK(pair.Push({keys[next]}).answer.status == Status::kOk);
  REQUIRE(pair.Ship() == Status::kOk);
}

TEST_CASE("rows of an open step count as in flight") {
  Pair pair(Options(v1::CONSISTENCY_SYNC));
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 10'000);
  Status status = Status::kOk;
  uint32_t index = 0;
  while (status == Status::kOk && index < 90) {
    Rows rows;
    for (size_t i = 0; i < 100; ++i) rows[keys[index * 100 + i]] = pair.f.Filled(1);
    status = pair.f.PushStatus(0, 0, 0, rows, index++);
  }
  CHECK(status == Status::kCopyMemoryLimit);
  CHECK(index > 10);
  REQUIRE(pair.f.PushStatus(0, 0, 0, {}, index - 1) == Status::kOk);  // the step goes on without it
  REQUIRE(pair.f.EndStep(0, 0, 0, index).answer.status == Status::kOk);
  CHECK(pair.Ship() == Status::kOk);
}

// Rows that a step has made take the follower's room until the step ends, which may be never.
GroupsOutcome PushBesideOpenStep() {
  Pair pair(Options());
  v1::Table* steps = pair.f.view.add_tables();
  *steps = pair.f.view.tables(0);
  steps->set_id(kTable + 1);
  steps->mutable_spec()->set_name("steps");
  steps->mutable_spec()->set_consistency(v1::CONSISTENCY_SYNC);
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 10'000);
  Status status = Status::kOk;
  for (uint32_t index = 0; status == Status::kOk && index < 90; ++index) {
    pair.f.keys.assign(keys.begin() + index * 100, keys.begin() + (index + 1) * 100);
    pair.f.values.assign(100 * size_t{pair.f.options.dim}, 1);
    pair.f.groups = {pair.f.GroupOf(0, 0, 100, index)};
    PushRowsRequest request = pair.f.PushOf(0);
    request.table = kTable + 1;
    status = pair.f.engine->PushRows(request).group_status[0];
  }
  REQUIRE(status == Status::kCopyMemoryLimit);
  REQUIRE(pair.Ship() == Status::kOk);
  return pair.Push({keys.begin(), keys.begin() + 100});
}

TEST_CASE("regression: a push that does not fit its follower does not wait for an open step") {
  const GroupsOutcome out = PushBesideOpenStep();
  CHECK(out.answer.status == Status::kCopyMemoryLimit);
  CHECK(out.answer.detail == 2);  // MiB
}

TEST_CASE("failpoint: a push that does not fit its follower waits for an open step") {
  failpoints().wait_for_open_steps = true;
  CHECK(PushBesideOpenStep().answer.status == Status::kResourceExhausted);
}

TEST_CASE("a learner begins only where its rows fit into memory") {
  Pair pair(Options());
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 3000);
  REQUIRE(pair.Push(keys).answer.status == Status::kOk);  // 1.6 MB
  pair.memory.limit = uint64_t{1} << 20;
  pair.AddCopy(/*learner=*/true);
  std::vector<ReplicaRecord> records;
  pair.f.engine->replicas().Take(&records, 1);
  const ReplicaBytes begin(records[0]);
  CHECK(pair.copy->copies().Replicate({kServer, 0}, begin.record(), begin.payload()).status ==
        Status::kMemoryLimit);
  CHECK(pair.memory.used == 0);
  // Nothing else is taken.
  pair.f.engine->replicas().Take(&records, 100);
  const ReplicaBytes second(records[1]);
  CHECK(pair.copy->copies().Replicate({kServer, 0}, second.record(), second.payload()).status ==
        Status::kSequenceGap);

  pair.memory.limit = uint64_t{4} << 20;
  pair.f.engine->replicas().Resend(kCopyId, 0);
  REQUIRE(pair.Ship() == Status::kOk);
  CHECK(pair.f.engine->replicas().CaughtUp(0));
  CHECK(pair.RowsOf(*pair.copy) == keys.size());
}

// A dense table of four chunks, two of them replicas, on a shard that has memory for three. The
// status of a push to one that it serves.
Status PushBesideCopies(std::string* unserved) {
  FixtureOptions o;
  o.workers = 1;
  o.chunk_elements = o.last_elements = 1024;
  o.consistency = v1::CONSISTENCY_ASYNC;
  Fixture f(o);
  for (const int p : {2, 3}) {
    v1::Partition* copy = f.view.mutable_partitions(p);
    copy->set_primary(kCopy);
    copy->set_epoch(2);
    v1::Replica* here = copy->add_followers();
    here->set_server(kServer);
    here->set_since(2);
  }
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  const uint32_t id = kTable + 1;
  *f.view.add_tables() = f.MakeTable(id, "new");
  f.allocator.limit = f.allocator.used + 3 * 4096;
  (void)f.Apply();
  *unserved = f.engine->tables()[0].unserved;
  uint32_t chunk = 0;
  while (PartitionOfChunk(id, chunk, o.partitions) > 1) ++chunk;
  PushRequest push = f.PushOf(kFirstWorker, chunk, 1, Filled(1024, 1), 0);
  push.table = id;
  push.group.partition = PartitionOfChunk(id, chunk, o.partitions);
  push.group.epoch = 1;
  return f.engine->Push(push).answer.status;
}

TEST_CASE("regression: a dense table is served where its replicas find no memory") {
  std::string unserved;
  CHECK(PushBesideCopies(&unserved) == Status::kOk);
  CHECK(unserved.empty());
}

TEST_CASE("failpoint: a dense table is not served where its replicas find no memory") {
  failpoints().all_or_nothing = true;
  std::string unserved;
  CHECK(PushBesideCopies(&unserved) == Status::kResourceExhausted);
  CHECK_FALSE(unserved.empty());
  failpoints() = {};
}

TEST_CASE("a job's limit refuses no record of a follower") {
  Pair pair(Options());
  pair.memory.limit = uint64_t{64} << 20;
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  // The primary's share is larger.
  v1::ClusterView limited = pair.f.view;
  limited.set_revision(limited.revision() + 1);
  limited.mutable_jobs(0)->mutable_limits()->set_memory_bytes(uint64_t{1} << 20);
  REQUIRE(pair.copy->ApplyView(limited).ok());
  REQUIRE(pair.Push(pair.f.KeysIn(0, 3000)).answer.status == Status::kOk);
  CHECK(pair.Ship() == Status::kOk);
  CHECK(pair.copy->jobs()[0].memory_bytes > uint64_t{1} << 20);
}

// Rows that an apply drops, and that a later one names while it waits for the follower, are created
// again. Here the job is at its limit then, and has no memory left. Returns whether every
// replicated push is applied.
bool AppliesReplicated(Pair* pair) {
  RowFixture& f = pair->f;
  pair->memory.limit = uint64_t{64} << 20;
  if (pair->copy == nullptr) pair->AddCopy(/*learner=*/false);
  REQUIRE(pair->Ship() == Status::kOk);
  const std::vector<uint64_t> keys = f.KeysIn(0, 10'000);
  const auto push = [&](size_t from, size_t count) {
    return pair->Push({keys.begin() + from, keys.begin() + from + count}).answer.status;
  };
  const size_t first = f.commits.size();
  size_t told = 0;
  for (; told < 16; ++told) {
    REQUIRE(push(told, 1) == Status::kOk);
    REQUIRE(pair->Ship() == Status::kOk);
  }
  // Drops the oldest rows, which the next push names.
  REQUIRE(push(16, 4) == Status::kOk);
  std::vector<ReplicaRecord> records;
  f.engine->replicas().Take(&records, 1000);
  REQUIRE(records.size() == 1);
  REQUIRE(push(0, 4) == Status::kOk);
  f.job()->mutable_limits()->set_memory_bytes(1);
  pair->Apply();
  const ReplicaBytes bytes(records[0]);
  const Status taken =
      pair->copy->copies().Replicate({kServer, 0}, bytes.record(), bytes.payload()).status;
  REQUIRE(taken == Status::kOk);
  f.engine->replicas().Answered(records[0].to, 0, records[0].group.sequence, taken);
  told += 2;
  REQUIRE(f.commits.size() == first + told - 1);
  REQUIRE(f.engine->tables()[0].counters.evicted_rows > 3);
  // Other rows take the remaining memory.
  size_t next = 20;
  for (; push(next, 1) == Status::kOk; ++next) ++told;
  REQUIRE(push(next, 1) == Status::kJobMemoryLimit);
  REQUIRE(pair->Ship() == Status::kOk);
  return f.commits.size() == first + told;
}

RowOptions Evicting() {
  RowOptions o = Options();
  o.eviction.set_kind(v1::Eviction::LRU);
  o.eviction.set_max_rows(16);
  return o;
}

TEST_CASE("regression: a replicated push is applied at every limit") {
  Pair pair(Evicting());
  CHECK(AppliesReplicated(&pair));
  CHECK(pair.RowsOf(*pair.f.engine) == pair.RowsOf(*pair.copy));
}

TEST_CASE("failpoint: a replicated push waits for the job's limit") {
  Pair pair(Evicting());
  failpoints().refuse_told_rows = true;
  CHECK(!AppliesReplicated(&pair));
}

TEST_CASE("regression: a waiting apply delays no answer of another table") {
  Pair pair(Evicting());
  failpoints().refuse_told_rows = true;
  RowFixture& f = pair.f;
  v1::Table* other = f.view.add_tables();
  *other = f.view.tables(0);
  other->set_id(kTable + 1);
  other->mutable_spec()->set_name("other");
  other->mutable_spec()->clear_eviction();
  const std::vector<uint64_t> keys = f.KeysIn(0, 1);
  const auto push = [&](uint64_t sequence) {
    f.keys = keys;
    f.values = f.Filled(1);
    f.groups = {f.GroupOf(0, sequence, 1, 0)};
    PushRowsRequest request = f.PushOf(0);
    request.table = kTable + 1;
    return f.engine->PushRows(request).answer.status;
  };
  pair.AddCopy(/*learner=*/false);
  REQUIRE(push(1) == Status::kOk);
  REQUIRE(!AppliesReplicated(&pair));
  REQUIRE(push(2) == Status::kOk);
  const size_t before = pair.answered;
  REQUIRE(pair.Ship() == Status::kOk);
  CHECK(pair.answered == before + 1);
}

TEST_CASE("failpoint: rows are created that do not fit the follower's memory") {
  Pair pair(Options());
  pair.AddCopy(/*learner=*/false);
  REQUIRE(pair.Ship() == Status::kOk);
  failpoints().ignore_copy_room = true;
  const std::vector<uint64_t> keys = pair.f.KeysIn(0, 10'000);
  REQUIRE(pair.Push(keys).answer.status == Status::kOk);
  CHECK(pair.Ship() == Status::kMemoryLimit);
}

}  // namespace
}  // namespace verbena::shard
