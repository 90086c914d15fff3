// How calls on embedding tables end: partial refusals, lanes and deadlines in mid-push, staging
// that runs out, memory that goes away.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "client/core/backoff.h"
#include "proto/wire/routing.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace rows_settlement_test {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;
using Rows = client::ClientCore::Rows;

constexpr uint32_t kDim = 4;
constexpr size_t kKeys = 40;

std::vector<uint64_t> Keys(size_t count = kKeys) {
  std::vector<uint64_t> result(count);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

Rows Memory(float value, size_t count = kKeys) {
  return FakeCluster::RowMemory(count, kDim, value);
}

std::string Text(const FakeCluster::CallPtr& call) { return std::string(call->status.message()); }

// Every key of `table` was pushed `value`.
void CheckRows(const FakeCluster& cluster, uint32_t table, float value, size_t count = kKeys) {
  size_t rows = 0;
  for (const auto& server : cluster.servers) {
    for (const auto& [key, row] : server->rows[table]) {
      INFO("key " << key);
      CHECK(row == std::vector<float>(kDim, value));
      ++rows;
    }
  }
  CHECK(rows == count);
}

TEST_CASE("only the refused groups of a record are sent again") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(consistency, kDim);
    cluster.Join();
    int refusals = 2;
    cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition != 2 || refusals == 0) return std::nullopt;
      --refusals;
      return ReplyStatus::kNotReady;
    };
    auto first = cluster.PushRows(table, Keys(), Memory(1));
    auto second = cluster.PushRows(table, Keys(), Memory(2));
    auto end = cluster.EndStep(table);
    for (const auto& call : {first, second, end}) Good(&cluster, call);
    CHECK(refusals == 0);
    CheckRows(cluster, table, 3);
    std::map<uint32_t, int> groups;
    for (const Seen& s : cluster.servers[0]->Of(RecordType::kPushRows)) ++groups[s.partition];
    CHECK(groups[2] > 2);
    for (const uint32_t p : {0u, 1u, 3u}) CHECK(groups[p] == 2);
  }
}

TEST_CASE("regression: attempts that each leave fewer groups do not wait longer and longer") {
  FakeCluster::Options options;
  options.partitions = 16;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  // As if the partitions were handed over one after the other.
  std::map<uint32_t, uint32_t> asked;
  cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (asked[s.partition]++ >= s.partition) return std::nullopt;
    return ReplyStatus::kNotReady;
  };
  const int64_t begun = cluster.now();
  auto push = cluster.PushRows(table, Keys(300), Memory(1, 300));
  Good(&cluster, push);
  CHECK(asked.size() == options.partitions);
  CHECK(cluster.now() - begun <= 32 * client::kFirstBackoff);
  CheckRows(cluster, table, 1, 300);
}

TEST_CASE("regression: pushes in flight that are refused together wait as one attempt") {
  for (const ReplyStatus refusal : {ReplyStatus::kNotReady, ReplyStatus::kWrongEpoch}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
    cluster.Join();
    Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
    // As a new primary whose view is late.
    constexpr int kPushes = 8;
    constexpr int kRefusals = 2 * kPushes;  // each twice
    int refusals = 0;
    cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition != 1 || refusals == kRefusals) return std::nullopt;
      ++refusals;
      return refusal;
    };
    const int64_t began = cluster.now();
    std::vector<FakeCluster::CallPtr> calls;
    for (int i = 0; i < kPushes; ++i) calls.push_back(cluster.PushRows(table, Keys(), Memory(1)));
    for (const auto& call : calls) Good(&cluster, call);
    CHECK(refusals == kRefusals);
    const int64_t share = refusal == ReplyStatus::kWrongEpoch ? 8 : 1;
    CHECK(cluster.now() - began <= 4 * client::kFirstBackoff / share);
    CheckRows(cluster, table, kPushes + 1);
  }
}

TEST_CASE("a lane lost in mid-push: every group is applied once") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    for (int lost_after = 0; lost_after < 6; ++lost_after) {
      FakeCluster::Options options;
      options.servers = 2;
      FakeCluster cluster(options);
      const uint32_t table = cluster.AddEmbedding(consistency, kDim, 1024);
      cluster.Join();
      auto push = cluster.PushRows(table, Keys(300), Memory(1, 300));
      // Some of the records are applied, of which some are answered.
      cluster.RunUntil([&] {
        return cluster.servers[0]->Of(RecordType::kPushRows).size() >= size_t(lost_after);
      });
      cluster.servers[0]->CloseLanes("a test");
      auto end = cluster.EndStep(table);
      Good(&cluster, push);
      Good(&cluster, end);
      CheckRows(cluster, table, 1, 300);
    }
  }
}

TEST_CASE("a push whose deadline passes frees its memory and is settled by empty groups") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(consistency, kDim);
    cluster.Join();
    cluster.servers[0]->hold_pushes = true;
    auto push = cluster.PushRows(table, Keys(), Memory(1), 300 * kMilli);
    REQUIRE(cluster.Wait(push));
    CHECK(push->status.code() == Code::kDeadlineExceeded);
    CHECK_THAT(Text(push), Contains("push of rows on table 'items'") &&
                               Contains("has not answered a push of rows"));
    // The record carries a copy of the rows.
    CHECK(cluster.core->BufferReleased(push->id));
    cluster.servers[0]->CloseLanes("a test");
    cluster.RunFor(kSecond);
    cluster.servers[0]->hold_pushes = false;
    auto again = cluster.PushRows(table, Keys(), Memory(2));
    auto end = cluster.EndStep(table);
    Good(&cluster, again);
    Good(&cluster, end);
    CheckRows(cluster, table, 2);
    std::map<uint32_t, std::vector<Seen>> by_partition;
    for (const Seen& s : cluster.servers[0]->Of(RecordType::kPushRows)) {
      by_partition[s.partition].push_back(s);
    }
    for (const auto& [partition, groups] : by_partition) {
      REQUIRE(groups.size() == 3);
      CHECK(groups[0].count > 0);
      CHECK(groups[1].count == 0);
      CHECK(groups[1].sequence == groups[0].sequence);
      CHECK(groups[1].index() == groups[0].index());
      CHECK((groups[2].sequence > groups[1].sequence || groups[2].index() > groups[1].index()));
    }
  }
}

TEST_CASE("a push that ends while its record is in flight counts once") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  cluster.servers[0]->hold_pushes = true;
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  cluster.RunFor(100 * kMilli);
  cluster.core->Cancel(push->id);
  cluster.RunFor(0);
  CHECK(push->status.code() == Code::kCancelled);
  cluster.servers[0]->hold_pushes = false;
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  CheckRows(cluster, table, 2);
}

TEST_CASE("a cancelled push that was not posted leaves no trace") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  cluster.PushRows(table, Keys(), Memory(1));
  cluster.EndStep(table);
  auto waits = cluster.PushRows(table, Keys(), Memory(5));
  cluster.RunFor(100 * kMilli);
  cluster.core->Cancel(waits->id);
  cluster.RunFor(0);
  CHECK(waits->status.code() == Code::kCancelled);
  CHECK(cluster.core->BufferReleased(waits->id));
  auto end = cluster.EndStep(table);
  cluster.servers[0]->hold_commits = false;
  Good(&cluster, end);
  CheckRows(cluster, table, 1);
  for (const Seen& s : cluster.servers[0]->Of(RecordType::kEndStep)) {
    CHECK(s.count == (s.sequence == 0 ? 1 : 0));
  }
}

TEST_CASE("with staging for a few records, calls of many go through") {
  FakeCluster::Options options;
  options.servers = 2;
  options.staging_bytes = 16 << 10;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  // Lookups of the next version wait at the server, with all the staging there is for them.
  std::vector<FakeCluster::CallPtr> calls;
  std::vector<Rows> rows;
  for (int i = 0; i < 4; ++i) {
    rows.push_back(Memory(0, 2000));
    calls.push_back(cluster.Lookup(table, Keys(2000), rows.back(), 1));
  }
  cluster.RunFor(100 * kMilli);
  calls.push_back(cluster.PushRows(table, Keys(2000), Memory(3, 2000)));
  calls.push_back(cluster.EndStep(table));
  for (const auto& call : calls) Good(&cluster, call);
  for (const Rows& r : rows) {
    const auto* v = reinterpret_cast<const float*>(r.block->data());
    CHECK(std::all_of(v, v + 2000 * kDim, [](float x) { return x == 3; }));
  }
}

TEST_CASE("staging of a lookup that is over stays taken until the server has answered") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  cluster.servers[0]->silent = true;
  const Rows rows = Memory(-7);
  auto lookup = cluster.Lookup(table, Keys(), rows, {}, 300 * kMilli);
  REQUIRE(cluster.Wait(lookup));
  CHECK(lookup->status.code() == Code::kDeadlineExceeded);
  CHECK(cluster.core->BufferReleased(lookup->id));
  const Rows others = Memory(0);
  auto other = cluster.Lookup(table, Keys(), others);
  cluster.servers[0]->silent = false;
  Good(&cluster, other);
  const auto* v = reinterpret_cast<const float*>(rows.block->data());
  CHECK(std::all_of(v, v + kKeys * kDim, [](float x) { return x == -7; }));
  const auto* w = reinterpret_cast<const float*>(others.block->data());
  CHECK(std::all_of(w, w + kKeys * kDim, [](float x) { return x == 1; }));
}

TEST_CASE("destroying a region ends its calls and closes no lane, because records carry copies") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  cluster.servers[0]->silent = true;
  const Rows rows = Memory(0);
  auto push = cluster.PushRows(table, Keys(), rows);
  auto lookup = cluster.Lookup(table, Keys(), rows);
  cluster.RunFor(100 * kMilli);
  cluster.core->ReleaseBlock(rows.block->id());
  CHECK_FALSE(cluster.core->InUse(rows.block->id()));
  for (const auto& call : {push, lookup}) {
    REQUIRE(cluster.Wait(call, kSecond));
    CHECK(call->status.code() == Code::kCancelled);
  }
  cluster.servers[0]->silent = false;
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  CHECK(cluster.core->statistics().lanes_opened == 1);
}

TEST_CASE("the error of a memory limit has table, server and limit, and the other rows go on") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(consistency, kDim);
    cluster.Join();
    cluster.servers[0]->reply_detail = 512;
    const bool of_job = GENERATE(false, true);
    cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition != 1) return std::nullopt;
      return of_job ? ReplyStatus::kJobMemoryLimit : ReplyStatus::kMemoryLimit;
    };
    auto push = cluster.PushRows(table, Keys(), Memory(1));
    auto end = cluster.EndStep(table);
    REQUIRE(cluster.Wait(push));
    CHECK(push->status.code() == Code::kResourceExhausted);
    CHECK_THAT(Text(push), Contains("table 'items'") && Contains("server 'ps-0'") &&
                               Contains("512 MiB") && Contains("partition 1"));
    CHECK_THAT(Text(push), Contains(of_job ? "verbena limits job --memory" : "--memory-limit"));
    Good(&cluster, end);
    // It is settled: not sent again, and counted.
    cluster.servers[0]->refuse_group = nullptr;
    auto next = cluster.PushRows(table, Keys(), Memory(1));
    auto next_end = cluster.EndStep(table);
    Good(&cluster, next);
    Good(&cluster, next_end);
    for (const auto& [key, row] : cluster.servers[0]->rows[table]) {
      CHECK(row[0] == (PartitionOfKey(table, key, 4) == 1 ? 1 : 2));
    }
  }
}

TEST_CASE("regression: the step of refused rows ends when each group was settled by an empty one") {
  FakeCluster::Options options;
  options.servers = 2;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  for (const auto& server : cluster.servers) {
    server->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition == 0) return std::nullopt;
      return s.partition == 1 ? ReplyStatus::kNonFinite : ReplyStatus::kMemoryLimit;
    };
  }
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  auto end = cluster.EndStep(table);
  REQUIRE(cluster.Wait(push));
  CHECK_FALSE(push->status.ok());
  Good(&cluster, end);
  std::map<uint32_t, std::vector<Seen>> by_partition;
  for (const auto& server : cluster.servers) {
    for (const Seen& s : server->Of(RecordType::kPushRows)) by_partition[s.partition].push_back(s);
  }
  REQUIRE(by_partition.size() == 4);
  for (const auto& [partition, groups] : by_partition) {
    REQUIRE(groups.size() == (partition == 0 ? 1 : 2));
    CHECK(groups[0].count > 0);
    if (partition == 0) continue;
    CHECK(groups[1].count == 0);
    CHECK(groups[1].sequence == groups[0].sequence);
    CHECK(groups[1].index() == groups[0].index());
  }
}

TEST_CASE("rows for which the follower has no memory are refused with its limit") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  cluster.servers[0]->reply_detail = 64;
  cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.partition != 1) return std::nullopt;
    return ReplyStatus::kCopyMemoryLimit;
  };
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kResourceExhausted);
  CHECK_THAT(Text(push), Contains("table 'items'") && Contains("64 MiB") &&
                             Contains("follower of partition 1") && Contains("--memory-limit"));
  cluster.servers[0]->refuse_group = nullptr;
  auto next = cluster.PushRows(table, Keys(), Memory(1));
  Good(&cluster, next);
}

TEST_CASE("regression: pushes behind a refused one wait for no backoff") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  uint64_t last = 1;  // the first push is applied
  cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.partition != 1) return std::nullopt;
    if (s.sequence > last + 1) return ReplyStatus::kSequenceGap;
    if (s.count > 0) return ReplyStatus::kMemoryLimit;
    last = std::max(last, s.sequence);
    return std::nullopt;
  };
  const int64_t began = cluster.now();
  std::vector<FakeCluster::CallPtr> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(cluster.PushRows(table, Keys(), Memory(1)));
  for (const auto& call : calls) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kResourceExhausted);
    CHECK(call->ended_at - began < client::kFirstBackoff / 2);
  }
  for (const auto& [key, row] : cluster.servers[0]->rows[table]) {
    CHECK(row[0] == (PartitionOfKey(table, key, 4) == 1 ? 1 : 9));
  }
}

TEST_CASE("the error of a partition at its maximum of rows has the limit and the remedy") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  cluster.servers[0]->reply_detail = kPartitionIsFull;
  cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.partition != 1) return std::nullopt;
    return ReplyStatus::kMemoryLimit;
  };
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kResourceExhausted);
  CHECK_THAT(Text(push), Contains("table 'items'") && Contains("partition 1") &&
                             Contains("67108864") && Contains("--partitions"));
}

TEST_CASE("a gradient with a NaN fails its call when the call is over, and its step can end") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.partition != 3) return std::nullopt;
    return ReplyStatus::kNonFinite;
  };
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  auto end = cluster.EndStep(table);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kInvalidArgument);
  CHECK_THAT(Text(push), Contains("push of rows of table 'items' in step 0") && Contains("NaN") &&
                             Contains("partition 3"));
  Good(&cluster, end);
}

TEST_CASE("a group that a server refuses finally ends the call, and its records are settled") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(consistency, kDim);
    cluster.Join();
    cluster.servers[0]->refuse_group = [&](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition != 1 || s.count == 0) return std::nullopt;
      return ReplyStatus::kOutOfRange;
    };
    auto push = cluster.PushRows(table, Keys(), Memory(1));
    REQUIRE(cluster.Wait(push));
    CHECK(push->status.code() == Code::kInternal);
    cluster.RunFor(kSecond);
    cluster.servers[0]->refuse_group = nullptr;
    auto next = cluster.PushRows(table, Keys(), Memory(1));
    auto end = cluster.EndStep(table);
    Good(&cluster, next);
    Good(&cluster, end);
    for (const auto& [key, row] : cluster.servers[0]->rows[table]) {
      CHECK(row[0] == (PartitionOfKey(table, key, 4) == 1 ? 1 : 2));
    }
  }
}

TEST_CASE("rows follow their partition to another server in every state of their records") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster::Options options;
    options.servers = 2;
    options.partitions = 4;
    FakeCluster cluster(options);
    const uint32_t table = cluster.AddEmbedding(consistency, kDim, 1024);
    cluster.Join();
    // Partitions 0 and 2 leave server 0 before it has taken anything.
    cluster.servers[0]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
      if (s.partition == 0 || s.partition == 2) return ReplyStatus::kWrongEpoch;
      return std::nullopt;
    };
    auto push = cluster.PushRows(table, Keys(300), Memory(1, 300));
    auto end = cluster.EndStep(table);
    const Rows rows = Memory(0, 300);
    auto lookup = cluster.Lookup(table, Keys(300), rows, consistency == v1::CONSISTENCY_SYNC);
    cluster.RunFor(50 * kMilli);
    for (const int p : {0, 2}) {
      cluster.view.mutable_partitions(p)->set_primary(11);
      cluster.view.mutable_partitions(p)->set_epoch(2);
    }
    cluster.Publish();
    for (const auto& call : {push, end, lookup}) Good(&cluster, call);
    CheckRows(cluster, table, 1, 300);
    CHECK(cluster.servers[0]->rows[table].empty());
    const Rows after = Memory(0, 300);
    Good(&cluster, cluster.Lookup(table, Keys(300), after));
    const auto* v = reinterpret_cast<const float*>(after.block->data());
    CHECK(std::all_of(v, v + 300 * kDim, [](float x) { return x == 1; }));
  }
}

TEST_CASE("a dropped table, a lost partition and an ended lease have an error each") {
  FakeCluster cluster;
  const uint32_t dropped = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  const uint32_t lost = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim, 4096, "lost");
  cluster.Join();
  Good(&cluster, cluster.PushRows(dropped, Keys(), Memory(1)));
  cluster.servers[0]->refuse = [&](const Seen& s) -> std::optional<ReplyStatus> {
    return s.table == dropped ? ReplyStatus::kUnknownTable : ReplyStatus::kDataLoss;
  };
  auto push = cluster.PushRows(dropped, Keys(), Memory(1));
  auto end = cluster.EndStep(dropped);
  auto lookup = cluster.Lookup(lost, Keys(), Memory(1));
  for (const auto& call : {push, end}) {
    REQUIRE(cluster.Wait(call));
    CHECK(call->status.code() == Code::kNotFound);
    CHECK_THAT(Text(call), Contains("table 'items' was dropped"));
  }
  REQUIRE(cluster.Wait(lookup));
  CHECK(lookup->status.code() == Code::kDataLoss);
  CHECK_THAT(Text(lookup), Contains("table 'lost'") && Contains("partition 0"));
  auto again = cluster.PushRows(lost, Keys(), Memory(1));
  REQUIRE(cluster.Wait(again));
  CHECK(again->status.code() == Code::kDataLoss);
  auto scan = cluster.Scan(lost, 0, 0, std::make_shared<client::ScanResult>());
  REQUIRE(cluster.Wait(scan));
  CHECK(scan->status.code() == Code::kDataLoss);

  cluster.servers[0]->refuse = [](const Seen&) { return ReplyStatus::kExpired; };
  const uint32_t other = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim, 4096, "other");
  cluster.RunFor(100 * kMilli);
  auto expired = cluster.PushRows(other, Keys(), Memory(1));
  cluster.lease_ended = true;
  REQUIRE(cluster.Wait(expired));
  CHECK(expired->status.code() == Code::kAborted);
}

TEST_CASE("a worker that is too late for a sync step gets an error") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  cluster.servers[0]->reply_version = 3;
  cluster.servers[0]->refuse = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.type == RecordType::kPushRows) return ReplyStatus::kWrongStep;
    return std::nullopt;
  };
  auto push = cluster.PushRows(table, Keys(), Memory(1));
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kFailedPrecondition);
  CHECK_THAT(Text(push), Contains("joined after"));
}

TEST_CASE("a refused lookup is sent again as a whole, and so is a refused scan") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Good(&cluster, cluster.PushRows(table, Keys(), Memory(1)));
  int refusals = 6;
  cluster.servers[0]->refuse = [&](const Seen&) -> std::optional<ReplyStatus> {
    if (refusals == 0) return std::nullopt;
    --refusals;
    return ReplyStatus::kResourceExhausted;
  };
  const Rows rows = Memory(0);
  auto lookup = cluster.Lookup(table, Keys(), rows);
  auto result = std::make_shared<client::ScanResult>();
  auto scan = cluster.Scan(table, 0, 0, result);
  Good(&cluster, lookup);
  Good(&cluster, scan);
  CHECK(refusals == 0);
  CHECK(*reinterpret_cast<float*>(rows.block->data()) == 1);
  CHECK(result->keys.size() == 5);
}

TEST_CASE("the deadline error of a deferred lookup has the version that it waits for") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  auto lookup = cluster.Lookup(table, {1}, Memory(0), 7, 200 * kMilli);
  REQUIRE(cluster.Wait(lookup));
  CHECK(lookup->status.code() == Code::kDeadlineExceeded);
  CHECK_THAT(Text(lookup),
             Contains("lookup on table 'items'") && Contains("version 7 of partition"));
}

}  // namespace rows_settlement_test
}  // namespace verbena::test
