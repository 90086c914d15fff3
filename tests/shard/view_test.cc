#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/shard/engine_fixture.h"

namespace verbena::shard {
namespace {

using Status = ReplyStatus;

v1::Partition* PartitionOf(Fixture& f, uint32_t chunk) {
  return f.view.mutable_partitions(static_cast<int>(f.PartitionOf(chunk)));
}

TEST_CASE("unknown tables and dropped tables have different errors") {
  Fixture f({});
  PushRequest r = f.PushOf(kFirstWorker, 0, 0, Filled(16, 1), 0);
  r.table = kTable + 1;
  CHECK(f.engine->Push(r).answer.status == Status::kNotReady);
  r.table = kTable - 1;
  CHECK(f.engine->Push(r).answer.status == Status::kUnknownTable);
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kUnknownTable);
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == Status::kUnknownTable);
  CHECK(f.EndStep(0, 0, 0, 0).answer.status == Status::kUnknownTable);
  CHECK(f.Await(kFirstWorker, {0}, 0).answer.status == Status::kUnknownTable);
}

TEST_CASE("before the first view every request gets kNotReady") {
  Fixture f({});
  f.engine = std::make_unique<Engine>(EngineOptions{});
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kNotReady);
}

TEST_CASE("a table whose job is not known yet is not ready") {
  Fixture f({});
  f.view.mutable_tables(0)->set_id(20);
  f.view.mutable_tables(0)->mutable_spec()->set_job("another");
  REQUIRE(f.Apply().ok());
  PushRequest r = f.PushOf(4, 0, 0, Filled(16, 1), 0);
  r.table = 20;
  CHECK(f.engine->Push(r).answer.status == Status::kNotReady);
  r = f.PushOf(kFirstWorker, 0, 0, Filled(16, 1), 0);
  r.table = 20;
  CHECK(f.engine->Push(r).answer.status == Status::kOtherJob);
}

TEST_CASE("an incarnation that is no member of the job has expired") {
  Fixture f({});
  CHECK(f.engine->Push(f.PushOf(4, 0, 0, Filled(16, 1), 0)).answer.status == Status::kExpired);
  CHECK(f.Pull(4, 0, 0).answer.status == Status::kExpired);
  CHECK(f.Await(4, {0}, 0).answer.status == Status::kExpired);
}

TEST_CASE("records for another epoch or another owner are refused") {
  Fixture f({});
  PushRequest r = f.PushOf(kFirstWorker, 0, 0, Filled(16, 1), 0);
  r.group.epoch = 2;
  CHECK(f.engine->Push(r).answer.status == Status::kWrongEpoch);
  PartitionOf(f, 0)->set_shard(1);
  PartitionOf(f, 1)->set_primary(kServer + 1);
  REQUIRE(f.Apply().ok());
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kWrongEpoch);
  CHECK(f.Push(0, 1, 0, 1).answer.status == Status::kWrongEpoch);
  CHECK(f.EndStep(0, 1, 0, 0).group_status[0] == Status::kWrongEpoch);
  CHECK(f.Push(0, 2, 0, 1).answer.status == Status::kOk);
}

TEST_CASE("a payload that does not fit the chunk is refused") {
  FixtureOptions o;
  o.last_elements = 5;
  Fixture f(o);
  const auto push = [&](uint32_t chunk, size_t n, auto change) {
    PushRequest r = f.PushOf(kFirstWorker, chunk, 0, Filled(static_cast<uint32_t>(n), 1), 0);
    change(&r);
    return f.engine->Push(r).answer.status;
  };
  const auto as_is = [](PushRequest*) {};
  CHECK(push(0, 15, as_is) == Status::kOutOfRange);
  CHECK(push(0, 17, as_is) == Status::kOutOfRange);
  CHECK(push(3, 16, as_is) == Status::kOutOfRange);
  CHECK(push(0, 16, [](PushRequest* r) { r->group.index = 4; }) == Status::kOutOfRange);
  CHECK(push(0, 16, [](PushRequest* r) { r->group.index = 1; }) == Status::kOutOfRange);
  CHECK(push(0, 16, [](PushRequest* r) { r->group.partition = 4; }) == Status::kOutOfRange);
  CHECK(push(0, 15, [](PushRequest* r) { r->group.count = 16; }) == Status::kMalformed);
  CHECK(push(0, 16, [](PushRequest* r) { r->dtype = ElementType::kNone; }) == Status::kMalformed);
  const auto shift = [](PushRequest* r) { r->payload = {r->payload.data() + 1, 64}; };
  CHECK(push(0, 17, [&](PushRequest* r) {
          shift(r);
          r->group.count = 16;
        }) == Status::kMalformed);
  CHECK(push(3, 5, as_is) == Status::kOk);
  CHECK(f.engine->counters().refused == 9);
  CHECK(f.engine->counters().push_bytes == 20);
}

// Callers know of a loss from their views: one that asks nevertheless has a newer one, in which the
// table was reset.
TEST_CASE("regression: a lost partition waits for a view without the loss, and the others work") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 1).held);
  f.Pull(kFirstWorker, 0, 1, 4);
  f.view.mutable_tables(0)->add_lost_partitions(f.PartitionOf(0));
  REQUIRE(f.Apply().ok());
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 2);
  for (const Event& e : events) CHECK(e.answer.status == Status::kWrongEpoch);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kNotReady);
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == Status::kNotReady);
  CHECK(f.EndStep(0, 0, 0, 0).answer.status == Status::kNotReady);
  CHECK(f.Await(kFirstWorker, {0}, 0).answer.status == Status::kNotReady);
  CHECK(f.Push(0, 1, 0, 1).answer.status == Status::kOk);
  f.view.mutable_tables(0)->clear_lost_partitions();
  REQUIRE(f.Apply().ok());
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == Status::kOk);
}

TEST_CASE("a partition lost before it was seen is never initialised") {
  Fixture f({});
  const size_t before = f.allocator.used;
  *f.view.add_tables() = f.MakeTable(kTable + 1, "second");
  for (uint32_t p = 0; p < 4; ++p) f.view.mutable_tables(1)->add_lost_partitions(p);
  REQUIRE(f.Apply().ok());
  CHECK(f.allocator.used == before);
}

TEST_CASE("a partition that moved away and came back does not serve initial values") {
  Fixture f({});
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  PartitionOf(f, 0)->set_primary(kServer + 1);
  REQUIRE(f.Apply().ok());
  PartitionOf(f, 0)->set_primary(kServer);
  REQUIRE(f.Apply().ok());
  CHECK(f.Pull(kFirstWorker, 0, 0).answer.status == Status::kDataLoss);
}

// It was given to another server, lost there and reset, and has come back, in views that this
// server has missed.
TEST_CASE("regression: a primary that is primary again two epochs later has no earlier content") {
  Fixture f({});
  REQUIRE(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  REQUIRE(f.Push(1, 0, 0, 1).answer.status == Status::kOk);
  REQUIRE(f.EndStep(0, 0, 0, 0).answer.status == Status::kOk);
  REQUIRE(f.EndStep(1, 0, 0, 0).answer.status == Status::kOk);
  REQUIRE(f.Version(0) == 1);
  PartitionOf(f, 0)->set_epoch(PartitionOf(f, 0)->epoch() + 2);
  PartitionOf(f, 0)->set_renewed_epoch(PartitionOf(f, 0)->epoch());
  REQUIRE(f.Apply().ok());
  CHECK(f.Version(0) == 0);
}

TEST_CASE("moving or dropping ends held pushes and deferred requests with the reason") {
  Fixture f({});
  CHECK(f.Push(1, 0, 0, 1).held);
  f.Pull(kFirstWorker, 0, 1, 4);
  f.Await(kFirstWorker, {0, 1}, 1, 4);
  Status expected = Status::kUnknownTable;
  SECTION("dropped") { f.view.clear_tables(); }
  SECTION("moved") {
    PartitionOf(f, 0)->set_primary(kServer + 1);
    expected = Status::kWrongEpoch;
  }
  SECTION("a new epoch") {
    PartitionOf(f, 0)->set_epoch(2);
    expected = Status::kWrongEpoch;
  }
  REQUIRE(f.Apply().ok());
  const std::vector<Event> events = f.Events();
  REQUIRE(events.size() == 3);
  CHECK(events[0].kind == Event::Kind::kPushDone);
  CHECK(events[1].kind == Event::Kind::kPullFailed);
  CHECK(events[2].kind == Event::Kind::kAwaitDone);
  for (const Event& e : events) CHECK(e.answer.status == expected);
  CHECK(f.engine->counters().held == 0);
  CHECK(f.engine->counters().deferred == 0);
}

TEST_CASE("a new epoch keeps consumed contributions, and the others are sent again") {
  Fixture f({});
  f.Push(0, 0, 0, 1);
  f.EndStep(1, 0, 0, 0);
  CHECK(f.Push(1, 1, 0, 2).held);
  CHECK(f.EndStep(1, 1, 0, 1).answer.status == Status::kOk);
  for (uint32_t c = 0; c < 4; ++c) PartitionOf(f, c)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.Version(0) == 1);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kDuplicate);
  CHECK(f.Push(0, 1, 0, 1).answer.status == Status::kOk);
  CHECK(f.Version(1) == 0);  // rank 1's contribution is owed
  CHECK(f.Push(1, 1, 0, 2).answer.version == 1);
  CHECK(f.Read(1) == Filled(16, -3));
}

TEST_CASE("a view older than the last one is ignored") {
  Fixture f({});
  v1::ClusterView old = f.view;
  REQUIRE(f.Apply().ok());
  old.clear_tables();
  CHECK(f.engine->ApplyView(old).ok());
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
}

TEST_CASE("a view that changes the number of partitions is refused") {
  Fixture f({});
  f.view.add_partitions()->set_id(4);
  CHECK(f.Apply().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
}

TEST_CASE("a table without memory is reported, the others work, and freed memory is used") {
  FixtureOptions o;
  o.optimizer = "adam";
  Fixture f(o);
  f.allocator.limit = f.allocator.used + 500;
  const size_t before = f.allocator.used;
  *f.view.add_tables() = f.MakeTable(8, "second");
  const absl::Status status = f.Apply();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(status.message()).find("table 8 \"second\"") != std::string::npos);
  CHECK(f.allocator.used == before);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  const auto pull = [&] {
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = 8;
    r.group = f.GroupOf(0, 0);
    r.group.partition = PartitionOfChunk(8, 0, 4);
    const PullOutcome out = f.engine->Pull(r);
    f.engine->Unpin(out.view.pin);
    return out.answer.status;
  };
  CHECK(pull() == Status::kResourceExhausted);
  f.view.mutable_tables()->DeleteSubrange(0, 1);
  CHECK(f.Apply().ok());
  CHECK(pull() == Status::kOk);
}

TEST_CASE("a specification that cannot be served is reported and harms no other table") {
  Fixture f({});
  v1::Table bad = f.MakeTable(8, "bad");
  SECTION("optimizer") { bad.mutable_spec()->mutable_optimizer()->set_name("x"); }
  SECTION("chunks") { bad.mutable_spec()->set_chunk_bytes(0); }
  SECTION("shape") { bad.mutable_spec()->add_shape(0); }
  SECTION("overflow") {
    bad.mutable_spec()->add_shape(UINT64_MAX);
    bad.mutable_spec()->add_shape(UINT64_MAX);
  }
  SECTION("too many chunks") { bad.mutable_spec()->add_shape(uint64_t{1} << 36); }
  *f.view.add_tables() = bad;
  CHECK(f.Apply().code() == absl::StatusCode::kInvalidArgument);
  CHECK(f.Push(0, 0, 0, 1).answer.status == Status::kOk);
  PullRequest r;
  r.worker = kFirstWorker;
  r.table = 8;
  CHECK(f.engine->Pull(r).answer.status == Status::kUnavailable);
}

TEST_CASE("tables that share partitions have their own chunks and versions") {
  Fixture f({});
  *f.view.add_tables() = f.MakeTable(8, "second");
  REQUIRE(f.Apply().ok());
  f.Push(0, 0, 0, 1);
  f.Push(1, 0, 0, 1);
  PullRequest r;
  r.worker = kFirstWorker;
  r.table = 8;
  r.group = f.GroupOf(0, 0);
  r.group.partition = PartitionOfChunk(8, 0, 4);
  const PullOutcome out = f.engine->Pull(r);
  REQUIRE(out.kind == PullOutcome::Kind::kReady);
  CHECK(out.view.version == 0);
  f.engine->Unpin(out.view.pin);
}

}  // namespace
}  // namespace verbena::shard
