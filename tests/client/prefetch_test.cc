// Prefetch requests: which servers get them, how often, and when none are sent.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace client_prefetch_test {

using Catch::Matchers::Contains;
using Code = absl::StatusCode;

constexpr uint32_t kDim = 4;

std::vector<uint64_t> Count(uint64_t keys) {
  std::vector<uint64_t> result(keys);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

uint32_t AddTiered(FakeCluster* cluster, uint32_t chunk_bytes = 65536) {
  v1::TableSpec spec;
  spec.set_consistency(v1::CONSISTENCY_ASYNC);
  spec.set_dim(kDim);
  spec.set_chunk_bytes(chunk_bytes);
  spec.mutable_cold_tier()->set_hot_bytes(64 << 10);
  return cluster->AddRows(spec);
}

// How often each key was prefetched, over all servers.
std::map<uint64_t, int> Prefetched(const FakeCluster& cluster) {
  std::map<uint64_t, int> counts;
  for (const auto& server : cluster.servers) {
    for (const Seen& seen : server->Of(RecordType::kPrefetch)) {
      for (const uint64_t key : seen.keys) ++counts[key];
    }
  }
  return counts;
}

TEST_CASE("a prefetch sends each server its own keys once") {
  FakeCluster cluster(Servers(3));
  const uint32_t table = AddTiered(&cluster);
  cluster.Join();
  std::vector<uint64_t> keys = Count(200);
  keys.insert(keys.end(), {7, 7, 199});
  Good(&cluster, cluster.Prefetch(table, keys));
  for (int s = 0; s < 3; ++s) {
    const std::vector<Seen> all = cluster.servers[s]->Of(RecordType::kPrefetch);
    CHECK_FALSE(all.empty());
    for (const Seen& seen : all) {
      CHECK(seen.partition % 3 == uint32_t(s));
      CHECK(seen.epoch == 1);
      CHECK(std::is_sorted(seen.keys.begin(), seen.keys.end()));
      for (const uint64_t key : seen.keys) CHECK(PartitionOfKey(table, key, 8) == seen.partition);
    }
  }
  const std::map<uint64_t, int> counts = Prefetched(cluster);
  CHECK(counts.size() == 200);
  CHECK(std::all_of(counts.begin(), counts.end(), [](const auto& key) { return key.second == 1; }));
  // No push, and nothing that came.
  CHECK(cluster.core->statistics().pushes == 0);
  CHECK(cluster.core->statistics().bytes_pulled == 0);
}

TEST_CASE("more prefetches than a record holds go as several") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = AddTiered(&cluster, 4096);
  cluster.Join();
  Good(&cluster, cluster.Prefetch(table, Count(20'000)));
  CHECK(Prefetched(cluster).size() == 20'000);
}

TEST_CASE("no server gets a prefetch of a table whose rows are in memory") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  for (auto& server : cluster.servers) server->silent = true;
  Good(&cluster, cluster.Prefetch(table, Count(10)));
  CHECK(Prefetched(cluster).empty());
}

TEST_CASE("refused groups of a prefetch are sent again, the others are not") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = AddTiered(&cluster);
  cluster.Join();
  int refusals = 3;
  cluster.servers[1]->refuse_group = [&](const Seen& seen) -> std::optional<ReplyStatus> {
    if (seen.type != RecordType::kPrefetch || seen.partition != 3) return std::nullopt;
    return refusals-- > 0 ? std::optional(ReplyStatus::kNotReady) : std::nullopt;
  };
  Good(&cluster, cluster.Prefetch(table, Count(100)));
  CHECK(refusals < 0);
  for (const auto& [key, times] : Prefetched(cluster)) {
    CHECK(times == (PartitionOfKey(table, key, 8) == 3 ? 4 : 1));
  }
}

TEST_CASE("prefetches in flight on a lost lane are sent on the next lane") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = AddTiered(&cluster);
  cluster.Join();
  cluster.servers[1]->silent = true;
  auto call = cluster.Prefetch(table, Count(100));
  cluster.RunFor(100 * kMilli);
  CHECK_FALSE(call->done);
  cluster.servers[1]->CloseLanes("test");
  cluster.servers[1]->silent = false;
  Good(&cluster, call);
  std::set<uint64_t> keys;
  for (const auto& [key, times] : Prefetched(cluster)) keys.insert(key);
  CHECK(keys.size() == 100);
}

TEST_CASE("a prefetch ends with its deadline, or when it is cancelled, and leaves nothing behind") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = AddTiered(&cluster);
  cluster.Join();
  Good(&cluster, cluster.Prefetch(table, Count(100)));
  for (const bool cancel : {false, true}) {
    cluster.servers[1]->silent = true;
    auto call = cluster.Prefetch(table, Count(100), 200 * kMilli);
    EndsUnanswered(&cluster, call, cancel);
    if (!cancel) CHECK_THAT(std::string(call->status.message()), Contains("prefetch on table"));
    cluster.servers[1]->silent = false;
    cluster.RunFor(kSecond);
  }
  Good(&cluster, cluster.Prefetch(table, Count(100)));
  // With `kMaxOperations` of them none would be left if one were not given back.
  for (int i = 0; i < 2000; ++i) Good(&cluster, cluster.Prefetch(table, {uint64_t(i)}));
}

TEST_CASE("an invalid prefetch names the argument, its value and the allowed values") {
  FakeCluster cluster;
  const uint32_t table = AddTiered(&cluster);
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_ASYNC, 2);
  cluster.Join();
  const auto expect_error = [&](const FakeCluster::CallPtr& call, const std::string& words) {
    REQUIRE(call->done);
    CHECK(call->status.code() == Code::kInvalidArgument);
    CHECK_THAT(std::string(call->status.message()), Contains(words));
  };
  expect_error(cluster.Prefetch(table, std::vector<uint64_t>((1 << 22) + 1)),
               "there are 4194305 keys");
  expect_error(cluster.Prefetch(dense, {1}), "prefetch: table 'weights' is a dense table");
}

}  // namespace client_prefetch_test
}  // namespace verbena::test
