// Embedding tables as an async job sees them: one behaviour each.
#include <catch2/catch.hpp>
#include <vector>

#include "shard/table/initializer.h"
#include "tests/shard/row_fixture.h"

namespace verbena::shard {
namespace rows_test {

using Status = ReplyStatus;
using Kind = PullOutcome::Kind;

Row InitialRow(const RowOptions& o, uint64_t key) {
  Row row(o.dim);
  InitializeRow(o.initializer, key, row.data(), row.size());
  return row;
}

TEST_CASE("a lookup creates no row: it returns the row that the first push will start from") {
  RowFixture f({});
  REQUIRE(f.applied.ok());
  const uint64_t key = f.KeysIn(2, 1)[0];
  CHECK(SameBits(f.ReadRow(key), InitialRow(f.options, key)));
  CHECK(f.engine->tables()[0].rows == 0);
  CHECK(f.Scan(2, 10).empty());
  CHECK(f.engine->counters().resident_bytes < 1024);  // the memory of the lookup's result
  CHECK(f.PushValue(0, 2, 1, {key}, 2) == Status::kOk);
  Row expected = InitialRow(f.options, key);
  for (float& x : expected) x -= 2;
  CHECK(SameBits(f.ReadRow(key), expected));
  CHECK(f.engine->tables()[0].rows == 1);
  CHECK(f.engine->tables()[0].parameter_bytes == 16);
  CHECK(f.engine->tables()[0].counters.pushes == 1);
  CHECK(f.engine->tables()[0].counters.pulls == 3);  // a scan is one
  CHECK(f.engine->tables()[0].counters.push_bytes == 8 + 16);
}

TEST_CASE("unknown keys have the same rows for any number and placement of partitions") {
  std::vector<uint64_t> keys = {0, 1, 2, 77, UINT64_MAX, uint64_t{1} << 40};
  Rows expected;
  for (const uint32_t partitions : {1u, 3u, 256u}) {
    RowOptions o;
    o.partitions = partitions;
    RowFixture f(o);
    const Rows rows = f.Read(keys);
    REQUIRE(rows.size() == keys.size());
    if (expected.empty()) expected = rows;
    CHECK(SameRows(rows, expected));
  }
  CHECK_FALSE(SameBits(expected[0], expected[1]));
}

TEST_CASE("a sequence of rows is applied once, and only as the last plus one") {
  RowFixture f({});
  const std::vector<uint64_t> keys = f.KeysIn(1, 3);
  CHECK(f.PushValue(0, 1, 1, keys, 1) == Status::kOk);
  const Rows after = f.Read(keys);
  CHECK(f.PushValue(0, 1, 1, keys, 1) == Status::kDuplicate);
  CHECK(f.PushValue(0, 1, 3, keys, 1) == Status::kSequenceGap);
  CHECK(SameRows(f.Read(keys), after));
  CHECK(f.PushValue(1, 1, 1, keys, 0) == Status::kOk);
  CHECK(f.EndStatus(0, 1, 2, 0) == Status::kOk);
  CHECK(f.EndStatus(0, 1, 2, 0) == Status::kDuplicate);
  CHECK(f.PushValue(0, 1, 3, keys, 0) == Status::kOk);
  CHECK(f.PushStatus(0, 1, 4, {}) == Status::kOk);  // settles
  CHECK(f.PushStatus(0, 1, 4, {}) == Status::kDuplicate);
  CHECK(f.commits.size() == 3);
  CHECK(f.commits[0].chunk == 1);
  CHECK(f.engine->counters().duplicates == 2);  // of pushes
}

TEST_CASE("a mean divides by the job's workers") {
  RowOptions o;
  o.workers = 4;
  o.reduction = v1::REDUCTION_MEAN;
  o.initializer.set_kind(v1::Initializer::ZEROS);
  RowFixture f(o);
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.PushValue(3, 0, 1, {key}, 2);
  CHECK(f.ReadRow(key) == f.Filled(-0.5f));
}

TEST_CASE("groups of a record are accepted or refused one by one") {
  RowFixture f({});
  const uint64_t good = f.KeysIn(0, 1)[0];
  const uint64_t other = f.KeysIn(1, 1)[0];
  const uint64_t strange = f.KeysIn(3, 1)[0];
  f.keys = {good, strange, other};
  f.values.assign(3 * f.options.dim, 1);
  f.groups = {f.GroupOf(0, 1, 1), f.GroupOf(2, 1, 1), f.GroupOf(1, 1, 1)};
  f.groups[2].epoch = 9;
  const GroupsOutcome out = f.engine->PushRows(f.PushOf(0));
  REQUIRE(out.group_status.size() == 3);
  CHECK(out.group_status[0] == Status::kOk);
  CHECK(out.group_status[1] == Status::kOutOfRange);  // the key is of another partition
  CHECK(out.group_status[2] == Status::kWrongEpoch);
  CHECK(out.answer.status != Status::kOk);
  CHECK(f.engine->tables()[0].rows == 1);
  f.groups = {f.GroupOf(4, 1, 1)};
  f.keys = {good};
  f.values.resize(f.options.dim);
  CHECK(f.engine->PushRows(f.PushOf(0)).group_status[0] == Status::kOutOfRange);
}

TEST_CASE("a contradictory record of rows is malformed, from any sender") {
  RowFixture f({});
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.keys = {key};
  f.groups = {f.GroupOf(0, 1, 1)};
  f.values.assign(f.options.dim - 1, 1);
  CHECK(f.engine->PushRows(f.PushOf(0)).group_status[0] == Status::kMalformed);
  f.values.assign(f.options.dim, 1);
  f.groups[0].count = 2;
  CHECK(f.engine->PushRows(f.PushOf(0)).group_status[0] == Status::kMalformed);
  CHECK(f.engine->Lookup({{}, kFirstWorker, kTable, f.groups, f.keys, 0, 0, 0}).answer.status ==
        Status::kMalformed);
  f.groups[0].count = 0;
  CHECK(f.engine->Lookup({{}, kFirstWorker, kTable, f.groups, {}, 0, 0, 0}).answer.status ==
        Status::kMalformed);
  // Keys that do not ascend are the caller's to refuse; here they harm nobody.
  f.keys = {key, key};
  f.values.assign(2 * f.options.dim, 1);
  f.groups = {f.GroupOf(0, 1, 2)};
  CHECK(f.engine->PushRows(f.PushOf(0)).group_status[0] == Status::kOk);
  CHECK(f.engine->tables()[0].rows == 1);
}

TEST_CASE("pushes of observers and strangers, and to tables that are not of rows, are refused") {
  RowOptions o;
  o.observers = 1;
  RowFixture f(o);
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.keys = {key};
  f.values.assign(o.dim, 1);
  f.groups = {f.GroupOf(0, 1, 1)};
  PushRowsRequest push = f.PushOf(0);
  push.worker = 2000;
  CHECK(f.engine->PushRows(push).group_status[0] == Status::kPermissionDenied);
  push.worker = 4711;
  CHECK(f.engine->PushRows(push).group_status[0] == Status::kExpired);
  push.worker = kFirstWorker;
  push.table = kTable + 1;
  CHECK(f.engine->PushRows(push).group_status[0] == Status::kNotReady);
  CHECK(f.Lookup(2000, {key}, 0).kind == Kind::kReady);

  PushRequest chunk;
  chunk.worker = kFirstWorker;
  chunk.table = kTable;
  chunk.group = f.GroupOf(0, 1, 0);
  CHECK(f.engine->Push(chunk).answer.status == Status::kOutOfRange);
  PullRequest pull;
  pull.worker = kFirstWorker;
  pull.table = kTable;
  pull.group = f.GroupOf(0, 0, 0);
  CHECK(f.engine->Pull(pull).answer.status == Status::kOutOfRange);
  // Nor has its step a norm.
  NormsRequest norms;
  norms.worker = kFirstWorker;
  norms.table = kTable;
  norms.groups = absl::MakeConstSpan(&pull.group, 1);
  CHECK(f.engine->Norms(norms).answer.status == Status::kMalformed);
  GroupsRequest totals;
  totals.worker = kFirstWorker;
  totals.table = kTable;
  totals.groups = norms.groups;
  CHECK(f.engine->Totals(totals, {1, 0}).group_status[0] == Status::kMalformed);

  Fixture dense(FixtureOptions{});
  CHECK(dense.engine->PushRows(f.PushOf(0)).group_status[0] == Status::kOutOfRange);
  CHECK(dense.engine->Lookup({{}, kFirstWorker, kTable, f.groups, f.keys, 0, 0, 0}).answer.status ==
        Status::kOutOfRange);
  CHECK(dense.engine->Scan({kFirstWorker, kTable, f.groups[0]}).answer.status ==
        Status::kOutOfRange);
}

TEST_CASE("rows with a NaN are refused, skipped or applied by group, by the table's policy") {
  for (const auto policy : {v1::NON_FINITE_REJECT, v1::NON_FINITE_SKIP, v1::NON_FINITE_APPLY}) {
    RowOptions o;
    o.non_finite = policy;
    RowFixture f(o);
    const std::vector<uint64_t> keys = f.KeysIn(0, 2);
    const uint64_t other = f.KeysIn(1, 1)[0];
    f.keys = {keys[0], keys[1], other};
    f.values.assign(3 * o.dim, 1);
    f.values[o.dim + 1] = kNan;
    f.groups = {f.GroupOf(0, 1, 2), f.GroupOf(1, 1, 1)};
    const GroupsOutcome out = f.engine->PushRows(f.PushOf(0));
    const bool refused = policy == v1::NON_FINITE_REJECT;
    CHECK(out.group_status[0] == (refused ? Status::kNonFinite : Status::kOk));
    CHECK(out.group_status[1] == Status::kOk);
    const bool applied = policy == v1::NON_FINITE_APPLY;
    CHECK(f.engine->tables()[0].rows == (applied ? 3 : 1));
    CHECK(f.engine->counters().non_finite == (applied ? 0 : 1));
    CHECK(f.engine->tables()[0].counters.non_finite == (applied ? 0 : 1));
    CHECK((f.ReadRow(keys[1])[1] != f.ReadRow(keys[1])[1]) == applied);
    // A refused push leaves its sequence to an empty one.
    if (refused) CHECK(f.PushStatus(0, 0, 1, {}) == Status::kOk);
    CHECK(f.PushValue(0, 0, 2, keys, 1) == Status::kOk);
  }
}

TEST_CASE("a refused lookup has the error of each of its groups, and writes nothing") {
  RowFixture f({});
  f.keys = {f.KeysIn(0, 1)[0], f.KeysIn(1, 1)[0], f.KeysIn(2, 1)[0]};
  f.groups = {f.GroupOf(0, 0, 1), f.GroupOf(1, 0, 1), f.GroupOf(3, 0, 1)};
  f.groups[1].epoch = 2;
  const PullOutcome out =
      f.engine->Lookup({{}, kFirstWorker, kTable, f.groups, f.keys, 0, 0x1000, 0});
  REQUIRE(out.kind == Kind::kAnswer);
  REQUIRE(out.group_status.size() == 3);
  CHECK(out.group_status[0] == Status::kNotReady);  // to be asked again: not written either
  CHECK(out.group_status[1] == Status::kWrongEpoch);
  CHECK(out.group_status[2] == Status::kOutOfRange);
  CHECK(out.answer.status != Status::kOk);
}

TEST_CASE("a lookup of more bytes than a record may have is refused") {
  RowOptions o;
  o.dim = 1024;
  o.partitions = 1;
  RowFixture f(o);
  std::vector<uint64_t> keys(kMaxRowsBytes / 4096);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  PullOutcome out = f.Lookup(kFirstWorker, keys, 0);
  REQUIRE(out.kind == Kind::kReady);
  CHECK(out.view.bytes == kMaxRowsBytes);
  f.engine->Unpin(out.view.pin);
  keys.push_back(keys.size());
  out = f.Lookup(kFirstWorker, keys, 0);
  CHECK(out.answer.status == Status::kOutOfRange);
  CHECK(out.group_status[0] == Status::kOutOfRange);
}

TEST_CASE("a scan gives rows in the order they were made, and ends") {
  RowFixture f({});
  const std::vector<uint64_t> keys = f.KeysIn(1, 500);
  std::vector<uint64_t> made;
  for (size_t i = 0; i < keys.size(); ++i) made.push_back(keys[(i * 7 + 3) % keys.size()]);
  for (size_t i = 0; i < made.size(); ++i) {
    REQUIRE(f.PushValue(0, 1, i + 1, {made[i]}, static_cast<float>(i)) == Status::kOk);
  }
  std::vector<uint64_t> order;
  const Rows rows = f.Scan(1, 64, &order);
  CHECK(order == made);
  CHECK(SameRows(rows, f.Read(keys)));
  CHECK(f.Scan(0, 64).empty());
  const PullOutcome end = f.ScanAt(1, 500, 10);
  CHECK(end.kind == Kind::kReady);
  CHECK(end.answer.detail == 0);
  CHECK(end.view.bytes == 0);
  f.engine->Unpin(end.view.pin);
  CHECK(f.ScanAt(1, UINT64_MAX, 10).answer.detail == 0);
  CHECK(f.ScanAt(1, 0, 0).answer.status == Status::kOutOfRange);
  CHECK(f.ScanAt(1, 0, UINT32_MAX).answer.detail == 500);
}

TEST_CASE("a lookup that is being sent keeps its numbers while its rows change") {
  RowFixture f({});
  const uint64_t key = f.KeysIn(0, 1)[0];
  const PullOutcome out = f.Lookup(kFirstWorker, {key}, 0);
  REQUIRE(out.kind == Kind::kReady);
  const Rows before = f.RowsOf({key}, out.view);
  f.PushValue(0, 0, 1, {key}, 5);
  const Rows meanwhile = f.Read({key});
  CHECK(SameRows(f.RowsOf({key}, out.view), before));
  CHECK_FALSE(SameRows(meanwhile, before));
  f.engine->Unpin(out.view.pin);
  f.engine->Unpin(out.view.pin);  // ignored
  CHECK(SameRows(f.Read({key}), meanwhile));
}

TEST_CASE("a partition of rows that has moved away does not come back as initial rows") {
  RowFixture f({});
  const uint64_t key = f.KeysIn(2, 1)[0];
  f.PushValue(0, 2, 1, {key}, 1);
  f.view.mutable_partitions(2)->set_primary(kServer + 1);
  f.view.mutable_partitions(2)->set_epoch(2);
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->tables()[0].rows == 0);
  CHECK(f.Lookup(kFirstWorker, {key}, 0).group_status[0] == Status::kWrongEpoch);
  f.view.mutable_partitions(2)->set_primary(kServer);
  f.view.mutable_partitions(2)->set_epoch(3);
  REQUIRE(f.Apply().ok());
  CHECK(f.Lookup(kFirstWorker, {key}, 0).group_status[0] == Status::kDataLoss);
  CHECK(f.PushValue(0, 2, 2, {key}, 1) == Status::kDataLoss);
  CHECK(f.Lookup(kFirstWorker, f.KeysIn(1, 1), 0).kind == Kind::kReady);
  f.view.mutable_tables(0)->add_lost_partitions(1);
  REQUIRE(f.Apply().ok());
  CHECK(f.Lookup(kFirstWorker, f.KeysIn(1, 1), 0).group_status[0] == Status::kNotReady);
}

TEST_CASE("a new generation starts sequences and versions anew and keeps rows") {
  RowFixture f({});
  const uint64_t key = f.KeysIn(0, 1)[0];
  f.PushValue(0, 0, 1, {key}, 1);
  const Rows before = f.Read({key});
  f.job()->set_generation(2);
  REQUIRE(f.Apply().ok());
  CHECK(SameRows(f.Read({key}), before));
  const GroupsOutcome out = f.Push(0, 0, 1, {{key, f.Filled(1)}});
  CHECK(out.group_status[0] == Status::kOk);
  CHECK(out.answer.version == 1);
}

TEST_CASE("a dropped table of rows frees all its memory") {
  RowFixture f({});
  for (uint32_t p = 0; p < 4; ++p) f.PushValue(0, p, 1, f.KeysIn(p, 300), 1);
  CHECK(f.engine->counters().resident_bytes > 4 * 300 * 16);
  f.view.clear_tables();
  REQUIRE(f.Apply().ok());
  CHECK(f.engine->counters().resident_bytes == 0);
  CHECK(f.allocator.used == 0);
}

TEST_CASE("a table of rows that a shard cannot serve is refused with the reason") {
  RowOptions o;
  o.dim = kMaxRowElements + 1;
  const RowFixture wide(o);
  CHECK(wide.applied.code() == absl::StatusCode::kInvalidArgument);
  CHECK(std::string(wide.applied.message()).find("dim is 1025; allowed: 1..1024") !=
        std::string::npos);
  FixtureOptions dense;
  dense.optimizer = "rowwise_adagrad";
  const Fixture f(dense);
  CHECK(std::string(f.applied.message()).find("table \"table\" is dense") != std::string::npos);
}

}  // namespace rows_test
}  // namespace verbena::shard
