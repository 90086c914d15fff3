// Lookups of bags: their requests, results and errors.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "proto/wire/routing.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace bags_test {

using Catch::Matchers::Contains;
using client::BagKeys;
using client::BagMode;
using Code = absl::StatusCode;
using Rows = client::ClientCore::Rows;

constexpr uint32_t kDim = 4;

float* Numbers(const Rows& rows) {
  return reinterpret_cast<float*>(rows.block->data() + rows.offset);
}

struct Asked {
  std::vector<uint64_t> keys, offsets;
  std::vector<float> weights;
  BagKeys bags(BagMode mode = BagMode::kSum) const { return {keys, offsets, weights, mode}; }
};

// `most` keys of a bag, drawn from `range`.
Asked Draw(std::mt19937_64* random, size_t bags, size_t most, uint64_t range, bool weighted) {
  Asked asked;
  for (size_t bag = 0; bag < bags; ++bag) {
    asked.offsets.push_back(asked.keys.size());
    for (size_t i = (*random)() % (most + 1); i > 0; --i) asked.keys.push_back((*random)() % range);
  }
  for (size_t i = 0; weighted && i < asked.keys.size(); ++i) {
    asked.weights.push_back(float(int((*random)() % 9) - 4) / 2);
  }
  return asked;
}

// From the rows that a plain lookup gives. Their numbers are small, so sums are exact.
std::vector<float> Reference(FakeCluster* cluster, uint32_t table, uint32_t dim, const Asked& asked,
                             BagMode mode) {
  Rows rows = FakeCluster::RowMemory(asked.keys.size() + 1, dim, 0);
  if (!asked.keys.empty()) Good(cluster, cluster->Lookup(table, asked.keys, rows));
  std::vector<float> all;
  for (size_t bag = 0; bag < asked.offsets.size(); ++bag) {
    const size_t end = bag + 1 < asked.offsets.size() ? asked.offsets[bag + 1] : asked.keys.size();
    std::vector<float> sum(dim, 0.0f);
    float divisor = 0;
    for (size_t i = asked.offsets[bag]; i < end; ++i) {
      const float weight = asked.weights.empty() ? 1 : asked.weights[i];
      divisor += mode == BagMode::kSqrtN ? weight * weight : weight;
      for (uint32_t d = 0; d < dim; ++d) sum[d] += weight * Numbers(rows)[i * dim + d];
    }
    if (mode == BagMode::kSqrtN) divisor = static_cast<float>(std::sqrt(double{divisor}));
    if (mode == BagMode::kSum) divisor = 1;
    for (const float s : sum) all.push_back(divisor == 0 ? 0 : s / divisor);
  }
  return all;
}

std::vector<float> Sums(const Rows& rows, size_t bags, uint32_t dim = kDim) {
  return {Numbers(rows), Numbers(rows) + bags * dim};
}

// Rows 0..keys-1, of key % 7 and 2 more in each place.
void Push(FakeCluster* cluster, uint32_t table, uint64_t keys, uint32_t dim = kDim) {
  std::vector<uint64_t> all(keys);
  Rows gradients = FakeCluster::RowMemory(keys, dim, 0);
  for (uint64_t k = 0; k < keys; ++k) {
    all[k] = k;
    for (uint32_t d = 0; d < dim; ++d) Numbers(gradients)[k * dim + d] = float(k % 7 + 2 * d);
  }
  auto push = cluster->PushRows(table, all, gradients);
  auto end = cluster->EndStep(table);
  Good(cluster, push);
  Good(cluster, end);
}

size_t Asks(const FakeCluster& cluster) {
  size_t keys = 0;
  for (const auto& server : cluster.servers) {
    for (const Seen& seen : server->Of(RecordType::kLookupBags)) {
      CHECK(std::is_sorted(seen.keys.begin(), seen.keys.end()));
      keys += seen.count;
    }
  }
  return keys;
}

TEST_CASE("bags over several servers equal the sums of the rows of a plain lookup") {
  std::mt19937_64 random(5);
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    for (const uint32_t dim : {1u, 4u, 64u}) {
      FakeCluster cluster(Servers(3));
      const uint32_t table = cluster.AddEmbedding(consistency, dim);
      cluster.Join();
      Push(&cluster, table, 100, dim);
      for (int round = 0; round < 18; ++round) {
        // Keys beyond 100 have no row.
        const Asked asked = Draw(&random, 1 + random() % 200, 12, 130, round % 2 == 1);
        const auto mode = static_cast<BagMode>(round % 3);
        const size_t bags = asked.offsets.size();
        Rows sums = FakeCluster::RowMemory(bags + 2, dim, -9);
        sums.offset = 4;
        Good(&cluster, cluster.LookupBags(table, asked.bags(mode), sums));
        CHECK(Sums(sums, bags, dim) == Reference(&cluster, table, dim, asked, mode));
        CHECK(Numbers(sums)[-1] == -9);
        CHECK(Numbers(sums)[bags * dim] == -9);
      }
    }
  }
}

TEST_CASE("a key that is in a bag twice counts twice, and bags without keys cause no requests") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Push(&cluster, table, 10);
  const Asked asked = {{3, 3, 9, 3}, {0, 0, 3, 3}, {}};
  Rows sums = FakeCluster::RowMemory(4, kDim, -9);
  Good(&cluster, cluster.LookupBags(table, asked.bags(), sums));
  CHECK(Sums(sums, 4) == std::vector<float>{0, 0, 0, 0, 8, 14, 20, 26, 0, 0, 0, 0, 3, 5, 7, 9});
  CHECK(Asks(cluster) == 4);
  const uint64_t pulled = cluster.core->statistics().bytes_pulled;
  CHECK(pulled <= 3 * kDim * sizeof(float));  // one sum for each bag that has keys on the server

  std::fill_n(Numbers(sums), 4 * kDim, -9.0f);
  const Asked none = {{}, {0, 0, 0, 0}, {}};
  auto call = cluster.LookupBags(table, none.bags(BagMode::kMean), sums);
  Good(&cluster, call);
  CHECK(Sums(sums, 4) == std::vector<float>(4 * kDim, 0.0f));
  CHECK(Asks(cluster) == 4);
}

TEST_CASE("many bags, or many keys of one, go as several records") {
  std::mt19937_64 random(6);
  for (const uint32_t dim : {1u, 16u, 1024u}) {
    FakeCluster cluster(Servers(2));
    const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, dim);
    cluster.Join();
    Push(&cluster, table, 50, dim);
    Asked asked = Draw(&random, 100, 20, 50, false);
    asked.offsets.push_back(asked.keys.size());
    for (int i = 0; i < 3000; ++i) asked.keys.push_back(random() % 50);
    const size_t bags = asked.offsets.size();
    const auto before = cluster.core->statistics();
    Rows sums = FakeCluster::RowMemory(bags, dim, 0);
    Good(&cluster, cluster.LookupBags(table, asked.bags(), sums));
    const auto after = cluster.core->statistics();
    CHECK(after.pulls - before.pulls > 6);
    CHECK(after.bytes_pulled - before.bytes_pulled < asked.keys.size() * dim * sizeof(float) / 4);
    CHECK(Asks(cluster) == asked.keys.size());
    CHECK(Sums(sums, bags, dim) == Reference(&cluster, table, dim, asked, BagMode::kSum));
  }
}

TEST_CASE("a lookup of bags of a sync step waits until it is committed") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  Push(&cluster, table, 20);
  for (auto& server : cluster.servers) server->hold_commits = true;
  const Asked asked = {{1, 2, 3, 4, 5}, {0, 2}, {}};
  Rows sums = FakeCluster::RowMemory(2, kDim, -9);
  auto call = cluster.LookupBags(table, asked.bags(BagMode::kMean), sums);
  cluster.RunFor(kSecond);
  CHECK_FALSE(call->done);
  CHECK_FALSE(cluster.core->BufferReleased(call->id));
  cluster.servers[0]->hold_commits = false;
  cluster.RunFor(kSecond);
  CHECK_FALSE(call->done);
  CHECK(Sums(sums, 2) == std::vector<float>(2 * kDim, -9.0f));  // one server has answered
  cluster.servers[1]->hold_commits = false;
  Good(&cluster, call);
  CHECK(Sums(sums, 2) == std::vector<float>{1.5f, 3.5f, 5.5f, 7.5f, 4, 6, 8, 10});
  CHECK(cluster.core->BufferReleased(call->id));
}

TEST_CASE("a record that is refused temporarily is added once") {
  std::mt19937_64 random(8);
  for (const ReplyStatus status :
       {ReplyStatus::kNotReady, ReplyStatus::kTooEarly, ReplyStatus::kResourceExhausted}) {
    FakeCluster cluster(Servers(2));
    const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
    cluster.Join();
    Push(&cluster, table, 50);
    int refusals = 0;
    for (auto& server : cluster.servers) {
      server->refuse = [&](const Seen& seen) -> std::optional<ReplyStatus> {
        if (seen.type != RecordType::kLookupBags || refusals-- <= 0) return std::nullopt;
        return status;
      };
    }
    const Asked asked = Draw(&random, 300, 20, 50, true);
    Rows sums = FakeCluster::RowMemory(300, kDim, 0);
    // So that something is where answers come.
    Good(&cluster, cluster.LookupBags(table, asked.bags(), sums));
    refusals = 7;
    Good(&cluster, cluster.LookupBags(table, asked.bags(), sums));
    CHECK(refusals < 0);
    CHECK(Sums(sums, 300) == Reference(&cluster, table, kDim, asked, BagMode::kSum));
  }
}

TEST_CASE("a call that ends before its replies writes nothing, then or later") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Push(&cluster, table, 50);
  const Asked asked = {{1, 2, 3, 4, 5, 6, 7, 8}, {0, 4}, {}};
  Rows sums = FakeCluster::RowMemory(2, kDim, -9);
  for (const bool cancel : {false, true}) {
    cluster.servers[1]->silent = true;
    auto call = cluster.LookupBags(table, asked.bags(), sums, {}, 200 * kMilli);
    EndsUnanswered(&cluster, call, cancel);
    if (!cancel) CHECK_THAT(std::string(call->status.message()), Contains("lookup of bags"));
    CHECK(cluster.core->BufferReleased(call->id));  // servers write to the library's own memory
    cluster.servers[1]->silent = false;
    cluster.RunFor(kSecond);
    CHECK(Sums(sums, 2) == std::vector<float>(2 * kDim, -9.0f));
  }
  // A record that is refused for good.
  cluster.servers[1]->refuse = [](const Seen&) { return ReplyStatus::kOutOfRange; };
  auto call = cluster.LookupBags(table, asked.bags(), sums);
  REQUIRE(cluster.Wait(call));
  CHECK_FALSE(call->status.ok());
  CHECK(Sums(sums, 2) == std::vector<float>(2 * kDim, -9.0f));
  // Memory that goes away.
  cluster.servers[1]->refuse = nullptr;
  cluster.servers[1]->silent = true;
  call = cluster.LookupBags(table, asked.bags(), sums);
  cluster.RunFor(100 * kMilli);
  cluster.core->ReleaseBlock(sums.block->id());
  REQUIRE(cluster.Wait(call));
  CHECK(call->status.code() == Code::kCancelled);
  CHECK_FALSE(cluster.core->InUse(sums.block->id()));
}

TEST_CASE("random lookups of bags, with lanes that are lost, agree with plain ones") {
  FakeCluster cluster(Servers(3));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 2, 1024);
  cluster.Join();
  Push(&cluster, table, 100, 2);
  rdma::SimFaults faults;
  faults.connection_loss = 0.01;
  cluster.network.set_faults(faults);
  std::mt19937_64 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<Asked> asked;
    std::vector<Rows> sums;
    std::vector<FakeCluster::CallPtr> calls;
    for (int k = 0; k < 3; ++k) {
      asked.push_back(Draw(&random, 1 + random() % 150, 10, 120, k == 0));
      sums.push_back(FakeCluster::RowMemory(asked[k].offsets.size(), 2, 0));
    }
    for (int k = 0; k < 3; ++k) {
      calls.push_back(cluster.LookupBags(table, asked[k].bags(BagMode(k)), sums[k]));
    }
    for (int k = 0; k < 3; ++k) {
      Good(&cluster, calls[k]);
      REQUIRE(Sums(sums[k], asked[k].offsets.size(), 2) ==
              Reference(&cluster, table, 2, asked[k], BagMode(k)));
    }
  }
  CHECK(cluster.core->statistics().records_resent > 0);
}

TEST_CASE("bags over shared memory") {
  std::mt19937_64 random(4);
  FakeCluster::Options options = Servers(2);
  options.shm = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 16);
  cluster.Join();
  Push(&cluster, table, 60, 16);
  const Asked asked = Draw(&random, 400, 10, 70, true);
  std::vector<float> memory(400 * 16, 3.0f);
  const Rows sums = {*rdma::MemoryBlock::Register(memory.data(), memory.size() * sizeof(float)), 0};
  Good(&cluster, cluster.LookupBags(table, asked.bags(), sums));
  CHECK(memory == Reference(&cluster, table, 16, asked, BagMode::kSum));
}

TEST_CASE("an invalid lookup of bags names the argument, its value and the allowed values") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  Rows sums = FakeCluster::RowMemory(3, kDim, 0);
  const auto expect_error = [&](uint32_t id, const Asked& asked,
                                const std::vector<std::string>& words,
                                Code code = Code::kInvalidArgument, BagMode mode = BagMode::kSum) {
    auto call = cluster.LookupBags(id, asked.bags(mode), sums);
    REQUIRE(call->done);
    INFO(call->status);
    CHECK(call->status.code() == code);
    for (const std::string& word : words) {
      CHECK_THAT(std::string(call->status.message()), Contains(word));
    }
  };
  expect_error(table, {{1}, {}, {}}, {"lookup of bags", "0 offsets", "1..4194304"});
  const auto nothing = cluster.LookupBags(table, Asked{}.bags(), sums);
  Good(&cluster, nothing);
  const std::vector<uint64_t> many(client::kMaxKeys + 1);
  expect_error(table, {many, {0}, {}}, {"4194305 keys", "0..4194304"});
  expect_error(table, {{1}, many, {}}, {"4194305 offsets"});
  expect_error(table, {{1, 2}, {1, 2}, {}}, {"offsets[0] is 1", "allowed: 0..0"});
  expect_error(table, {{1, 2}, {0, 2, 1}, {}}, {"offsets[2] is 1", "allowed: 2..2"});
  expect_error(table, {{1, 2}, {0, 3}, {}}, {"offsets[1] is 3", "allowed: 0..2"});
  expect_error(table, {{1, 2}, {0, UINT64_MAX}, {}}, {"offsets[1] is 18446744073709551615"});
  expect_error(table, {{1, 2}, {0}, {1}}, {"1 weights", "2 keys"});
  expect_error(table, {{1}, {0, 0, 0, 0}, {}},
               {"4 bags", "items", "need 64 bytes", "has 48 bytes"});
  expect_error(dense, {{1}, {0}, {}}, {"lookup of bags", "weights", "dense", "Pull()"});
  expect_error(99, {{1}, {0}, {}}, {"99"}, Code::kNotFound);
  expect_error(table, {{1}, {0}, {}}, {"mode is 3", "0 (sum)"}, Code::kInvalidArgument, BagMode(3));
  sums.offset = 6;
  expect_error(table, {{1}, {0}, {}}, {"region_offset is 6", "multiples of 4"});
  sums.block = nullptr;
  expect_error(table, {{1}, {0}, {}}, {"the region is empty"});
}

}  // namespace bags_test
}  // namespace verbena::test
