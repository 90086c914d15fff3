// Partitions that get another primary: rows of embedding tables.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>

#include "proto/wire/routing.h"
#include "tests/client/fake_cluster.h"

namespace verbena::test {
namespace failover_rows_test {

using Code = absl::StatusCode;
using Rows = client::ClientCore::Rows;

constexpr uint32_t kRowDim = 4;
constexpr size_t kRowKeys = 40;

std::vector<uint64_t> Keys() {
  std::vector<uint64_t> result(kRowKeys);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

Rows Memory(float value) { return FakeCluster::RowMemory(kRowKeys, kRowDim, value); }

struct RowFailover : FakeCluster {
  explicit RowFailover(v1::Consistency consistency) : FakeCluster(Copies()) {
    for (const auto& server : servers) server->knows = &view;
    table = AddEmbedding(consistency, kRowDim);
    Join();
  }
  static Options Copies() {
    Options options;
    options.servers = 2;
    options.replicas = 2;
    return options;
  }
  void Good(const CallPtr& call) {
    REQUIRE(Wait(call));
    INFO(call->status);
    REQUIRE(call->status.ok());
  }
  void FailOver(const std::vector<uint32_t>& partitions) {
    for (const uint32_t p : partitions) Move(p, 1);
    Publish();
  }
  // Partitions 0 and 3 move while a lookup waits for the step's end, which answers it. `hangs`:
  // their old server does not answer meanwhile.
  void MoveWhileDeferred(const CallPtr& lookup, bool hangs) {
    RunFor(100 * kMilli);
    CHECK_FALSE(lookup->done);
    servers[0]->silent = hangs;
    FailOver({0, 3});
    RunFor(100 * kMilli);
    servers[0]->silent = false;
    const CallPtr end = EndStep(table);
    Good(lookup);
    Good(end);
  }
  // The partitions that a server was asked for by records of that type.
  std::set<uint32_t> Asked(size_t server, RecordType type) const {
    std::set<uint32_t> partitions;
    for (const Seen& s : servers[server]->Of(type)) partitions.insert(s.partition);
    return partitions;
  }
  // The primary of each key has it, with `value`.
  void CheckRows(float value) {
    for (const uint64_t key : Keys()) {
      const uint32_t partition = PartitionOfKey(table, key, 4);
      const uint64_t primary = view.partitions(int(partition)).primary();
      const auto& rows = servers[primary - 10]->rows[table];
      INFO("key " << key << " of partition " << partition);
      REQUIRE(rows.count(key) == 1);
      CHECK(rows.at(key) == std::vector<float>(kRowDim, value));
    }
  }
  std::map<uint32_t, std::vector<Seen>> Pushes(size_t server) const {
    std::map<uint32_t, std::vector<Seen>> groups;
    for (const Seen& s : servers[server]->Of(RecordType::kPushRows)) {
      groups[s.partition].push_back(s);
    }
    return groups;
  }
  uint32_t table = 0;
};

TEST_CASE("answered rows of a sync step go to the next server if their partition has moved") {
  RowFailover cluster(v1::CONSISTENCY_SYNC);
  cluster.servers[0]->hold_commits = true;
  auto first = cluster.PushRows(cluster.table, Keys(), Memory(1));
  auto second = cluster.PushRows(cluster.table, Keys(), Memory(2));
  cluster.RunFor(100 * kMilli);
  for (const auto& call : {first, second}) {
    CHECK_FALSE(call->done);
    CHECK_FALSE(cluster.core->BufferReleased(call->id));
  }
  auto before = cluster.Pushes(0);
  cluster.FailOver({1, 3});
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->hold_commits = false;
  for (const auto& call : {first, second, end}) cluster.Good(call);
  CHECK(cluster.core->BufferReleased(first->id));
  cluster.CheckRows(3);
  auto after = cluster.Pushes(1);
  CHECK(after.size() == 2);
  for (const uint32_t p : {1u, 3u}) {
    REQUIRE(before[p].size() == 2);
    REQUIRE(after[p].size() == 2);
    for (size_t i = 0; i < 2; ++i) {
      CHECK(after[p][i].keys == before[p][i].keys);
      CHECK(after[p][i].index() == i);
    }
  }
  // Nothing was sent again to the server that has the others.
  CHECK(cluster.Pushes(0).size() == 4);
  for (const auto& [partition, groups] : cluster.Pushes(0)) CHECK(groups.size() == 2);
  for (const Seen& s : cluster.servers[1]->Of(RecordType::kEndStep)) CHECK(s.count == 2);
}

TEST_CASE("answered rows whose call is over go to the next server as empty groups") {
  RowFailover cluster(v1::CONSISTENCY_SYNC);
  cluster.servers[0]->hold_commits = true;
  auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(cluster.core->BufferReleased(push->id));
  cluster.core->Cancel(push->id);
  CHECK(cluster.core->BufferReleased(push->id));
  cluster.servers[0]->silent = true;
  cluster.FailOver({0, 1, 2, 3});
  cluster.Good(end);
  CHECK(push->status.code() == Code::kCancelled);
  for (const auto& [partition, groups] : cluster.Pushes(1)) {
    REQUIRE(groups.size() == 1);
    CHECK(groups[0].count == 0);
    CHECK(groups[0].index() == 0);
  }
  CHECK(cluster.Pushes(1).size() == 4);
  CHECK(cluster.servers[1]->rows[cluster.table].empty());
}

TEST_CASE("a group that was refused memory stays without effect at the next server") {
  RowFailover cluster(v1::CONSISTENCY_SYNC);
  cluster.servers[0]->hold_commits = true;
  cluster.servers[0]->refuse_group = [](const Seen& s) -> std::optional<ReplyStatus> {
    if (s.partition == 2) return ReplyStatus::kMemoryLimit;
    return std::nullopt;
  };
  auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
  auto end = cluster.EndStep(cluster.table);
  cluster.RunFor(100 * kMilli);
  cluster.servers[0]->silent = true;
  cluster.FailOver({0, 1, 2, 3});
  cluster.Good(end);
  REQUIRE(cluster.Wait(push));
  CHECK(push->status.code() == Code::kResourceExhausted);
  for (const auto& [partition, groups] : cluster.Pushes(1)) {
    REQUIRE(groups.size() == 1);
    CHECK((groups[0].count == 0) == (partition == 2));
  }
}

TEST_CASE("a push record that the old primary refuses in part: moved groups go to the new one") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    RowFailover cluster(consistency);
    cluster.Good(cluster.Lookup(cluster.table, Keys(), Memory(0)));
    for (const uint32_t p : {0u, 2u}) cluster.Move(p, 1);
    auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
    auto next = cluster.PushRows(cluster.table, Keys(), Memory(2));
    cluster.RunFor(20 * kMilli);
    CHECK(cluster.servers[1]->seen.empty());
    cluster.Publish();
    auto end = cluster.EndStep(cluster.table);
    for (const auto& call : {push, next, end}) cluster.Good(call);
    cluster.CheckRows(3);
    for (const auto& [partition, groups] : cluster.Pushes(1)) {
      CHECK((partition == 0 || partition == 2));
      CHECK(groups.size() == 2);
    }
  }
}

TEST_CASE("unanswered rows go to both servers, each group once") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    for (const bool hangs : {false, true}) {
      RowFailover cluster(consistency);
      cluster.Good(cluster.Lookup(cluster.table, Keys(), Memory(0)));
      cluster.servers[0]->silent = true;
      auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
      auto end = cluster.EndStep(cluster.table);
      cluster.RunFor(100 * kMilli);
      cluster.FailOver({1, 2});
      auto next = consistency == v1::CONSISTENCY_ASYNC
                      ? cluster.PushRows(cluster.table, Keys(), Memory(2))
                      : push;
      cluster.RunFor(hangs ? 300 * kMilli : 0);
      cluster.servers[0]->silent = false;
      for (const auto& call : {push, next, end}) cluster.Good(call);
      cluster.CheckRows(consistency == v1::CONSISTENCY_ASYNC ? 3 : 1);
      for (const auto& [partition, groups] : cluster.Pushes(1)) {
        CHECK((partition == 1 || partition == 2));
        CHECK(groups.size() == (consistency == v1::CONSISTENCY_ASYNC ? 2 : 1));
      }
    }
  }
}

TEST_CASE("a lookup whose partitions are on two servers now is answered by both") {
  const bool hangs = GENERATE(true, false);
  RowFailover cluster(v1::CONSISTENCY_SYNC);
  auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
  cluster.RunFor(100 * kMilli);
  Rows to = Memory(0);
  auto lookup = cluster.Lookup(cluster.table, Keys(), to, 1);
  cluster.MoveWhileDeferred(lookup, hangs);
  cluster.Good(push);
  const auto* rows = reinterpret_cast<const float*>(to.block->data());
  CHECK(std::all_of(rows, rows + kRowKeys * kRowDim, [](float x) { return x == 1.0f; }));
  CHECK(cluster.Asked(1, RecordType::kLookup) == std::set<uint32_t>{0, 3});
}

TEST_CASE("bags whose partitions are on two servers now are summed from both, each part once") {
  const bool hangs = GENERATE(true, false);
  RowFailover cluster(v1::CONSISTENCY_SYNC);
  auto push = cluster.PushRows(cluster.table, Keys(), Memory(1));
  cluster.RunFor(100 * kMilli);
  const std::vector<uint64_t> keys = Keys(), offsets = {0, 10, 10};
  Rows to = Memory(-9);
  auto lookup =
      cluster.LookupBags(cluster.table, {keys, offsets, {}, client::BagMode::kSum}, to, 1);
  cluster.MoveWhileDeferred(lookup, hangs);
  cluster.Good(push);
  const auto* sums = reinterpret_cast<const float*>(to.block->data());
  for (uint32_t d = 0; d < kRowDim; ++d) {
    CHECK(sums[d] == 10);
    CHECK(sums[kRowDim + d] == 0);
    CHECK(sums[2 * kRowDim + d] == 30);
  }
  CHECK(cluster.Asked(1, RecordType::kLookupBags) == std::set<uint32_t>{0, 3});
}

TEST_CASE("a scan goes on at the next server") {
  RowFailover cluster(v1::CONSISTENCY_ASYNC);
  cluster.Good(cluster.PushRows(cluster.table, Keys(), Memory(1)));
  auto result = std::make_shared<client::ScanResult>();
  cluster.Good(cluster.Scan(cluster.table, 1, 0, result));
  std::vector<uint64_t> keys = result->keys;
  REQUIRE(keys.size() == 5);
  cluster.servers[0]->silent = true;
  auto scan = cluster.Scan(cluster.table, 1, result->next, result);
  cluster.RunFor(100 * kMilli);
  cluster.FailOver({0, 1, 2, 3});
  cluster.Good(scan);
  CHECK_FALSE(result->keys.empty());
  for (const uint64_t key : result->keys) {
    CHECK(PartitionOfKey(cluster.table, key, 4) == 1);
    CHECK(std::find(keys.begin(), keys.end(), key) == keys.end());
  }
}

}  // namespace failover_rows_test
}  // namespace verbena::test
