// Embedding tables: how calls are split, the contents of their records, and their results.
#include <malloc.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "client/core/key_plan.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "tests/client/fake_calls.h"

namespace verbena::test {
namespace rows_test {

using Catch::Matchers::Contains;
using Rows = client::ClientCore::Rows;

constexpr uint32_t kDim = 4;

std::vector<uint64_t> Count(uint64_t keys) {
  std::vector<uint64_t> result(keys);
  std::iota(result.begin(), result.end(), 0);
  return result;
}

float* Row(const Rows& rows, size_t i, uint32_t dim = kDim) {
  return reinterpret_cast<float*>(rows.block->data() + rows.offset) + i * dim;
}

std::vector<Seen> All(const FakeCluster& cluster, RecordType type) {
  std::vector<Seen> all;
  for (const auto& server : cluster.servers) {
    const auto seen = server->Of(type);
    all.insert(all.end(), seen.begin(), seen.end());
  }
  return all;
}

TEST_CASE("a push of rows is split by partition, and one record goes to each server") {
  FakeCluster cluster(Servers(3));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim, 65536);
  cluster.Join();
  const auto keys = Count(40);
  Rows gradients = FakeCluster::RowMemory(40, kDim, 0);
  for (size_t i = 0; i < 40; ++i) std::fill_n(Row(gradients, i), kDim, float(i));
  for (int round = 1; round <= 2; ++round) Good(&cluster, cluster.PushRows(table, keys, gradients));
  CHECK(cluster.core->statistics().pushes == 6);
  CHECK(cluster.core->statistics().bytes_pushed >= 2 * 40 * (8 + kDim * 4));
  for (int s = 0; s < 3; ++s) {
    for (const Seen& seen : cluster.servers[s]->Of(RecordType::kPushRows)) {
      CHECK(seen.partition % 3 == uint32_t(s));
      CHECK(seen.epoch == 1);
      CHECK(seen.index() == 0);
      for (const uint64_t key : seen.keys) CHECK(PartitionOfKey(table, key, 8) == seen.partition);
      CHECK(std::is_sorted(seen.keys.begin(), seen.keys.end()));
    }
    for (const auto& [key, row] : cluster.servers[s]->rows[table]) {
      CHECK(row == std::vector<float>(kDim, 2 * float(key)));
    }
  }
  size_t rows = 0;
  for (const auto& server : cluster.servers) rows += server->rows[table].size();
  CHECK(rows == 40);
}

TEST_CASE("regression: many keys are sorted before their call, not in it") {
  FakeCluster cluster;
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_ASYNC, 1);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  const auto keys = Count(client::KeySort::kManyKeys);
  CHECK(cluster.core->StartKeys(table, Count(keys.size() - 1)) == nullptr);
  CHECK(cluster.core->StartKeys(dense, keys) == nullptr);
  // Other keys than the call's, so that the pushed rows show whose order is used.
  auto others = keys;
  for (uint64_t& key : others) key += keys.size();
  auto sorted = cluster.core->StartKeys(table, others);
  REQUIRE(sorted != nullptr);
  sorted->Run();
  bool done = false;
  const auto id = cluster.core->PushRows(
      table, keys, FakeCluster::RowMemory(keys.size(), kDim, 1.0f), cluster.now() + 30 * kSecond,
      [&](absl::Status status) { done = status.ok(); }, std::move(sorted));
  REQUIRE(id.ok());
  REQUIRE(cluster.RunUntil([&] { return done; }));
  const auto& rows = cluster.servers[0]->rows[table];
  CHECK(rows.size() == keys.size());
  CHECK(rows.count(keys.back()) == 0);
  CHECK(rows.count(others.back()) == 1);
}

TEST_CASE("regression: calls with many keys keep no memory") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  const auto keys = Count(client::KeySort::kManyKeys);
  const Rows rows = FakeCluster::RowMemory(keys.size(), kDim, 0);
  const auto look_up = [&] {
    auto sorted = cluster.core->StartKeys(table, keys);
    REQUIRE(sorted != nullptr);
    sorted->Run();
    bool done = false;
    const auto id = cluster.core->Lookup(
        table, keys, rows, std::nullopt, cluster.now() + 30 * kSecond,
        [&](absl::Status status) { done = status.ok(); }, std::move(sorted));
    REQUIRE(id.ok());
    REQUIRE(cluster.RunUntil([&] { return done; }));
    for (const auto& server : cluster.servers) {
      server->seen.clear();
      server->seen.shrink_to_fit();
    }
  };
  // Bytes that malloc() has given out; a sanitizer's allocator does not count them.
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<double>(info.uordblks + info.hblkhd);
  };
  for (int i = 0; i < 8; ++i) look_up();
  const double before = in_use();
  constexpr int kCalls = 64;
  for (int i = 0; i < kCalls; ++i) look_up();
  // Each call's plan has 16 bytes a key.
  CHECK(in_use() - before < double(keys.size()) * 16 * kCalls / 8);
}

TEST_CASE("rows of one key are summed in the order of the call, before they travel") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 1);
  cluster.Join();
  // In f32 the order shows: (1e8 + 1) - 1e8 is 0, (1e8 - 1e8) + 1 is 1.
  Rows gradients = FakeCluster::RowMemory(5, 1, 0);
  const float values[] = {1e8f, 5, 1, -1e8f, 7};
  std::copy_n(values, 5, Row(gradients, 0, 1));
  Good(&cluster, cluster.PushRows(table, {3, 9, 3, 3, 9}, gradients));
  CHECK(cluster.servers[0]->rows[table][3][0] == (1e8f + 1) - 1e8f);
  CHECK(cluster.servers[0]->rows[table][9][0] == 12);
  size_t keys = 0;
  for (const Seen& seen : cluster.servers[0]->Of(RecordType::kPushRows)) keys += seen.count;
  CHECK(keys == 2);
}

TEST_CASE("a lookup fetches each key once and copies its row to every position") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Rows gradients = FakeCluster::RowMemory(20, kDim, 0);
  for (size_t i = 0; i < 20; ++i) {
    for (uint32_t d = 0; d < kDim; ++d) Row(gradients, i)[d] = float(i) + 0.1f * float(d);
  }
  Good(&cluster, cluster.PushRows(table, Count(20), gradients));
  const std::vector<uint64_t> keys = {19, 3, 3, 777, 0, 19, 3};
  Rows rows = FakeCluster::RowMemory(8, kDim, -5);
  rows.offset = kDim * sizeof(float);
  Good(&cluster, cluster.Lookup(table, keys, rows));
  for (size_t i = 0; i < keys.size(); ++i) {
    for (uint32_t d = 0; d < kDim; ++d) {
      CHECK(Row(rows, i)[d] == (keys[i] == 777 ? -1 : float(keys[i]) + 0.1f * float(d)));
    }
  }
  CHECK(*reinterpret_cast<float*>(rows.block->data()) == -5);
  size_t fetched = 0;
  for (const Seen& seen : All(cluster, RecordType::kLookup)) fetched += seen.count;
  CHECK(fetched == 4);
  // Nothing is made by looking.
  for (const auto& server : cluster.servers) CHECK(server->rows[table].count(777) == 0);
}

TEST_CASE("more keys than a slot has room for go as several records, all of them") {
  for (const uint32_t dim : {1u, 16u, 1024u}) {
    FakeCluster cluster(Servers(2));
    const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, dim);
    cluster.Join();
    const size_t count = dim == 1024 ? 40 : 3000;
    const auto keys = Count(count);
    Rows gradients = FakeCluster::RowMemory(count, dim, 0);
    for (size_t i = 0; i < count; ++i) std::fill_n(Row(gradients, i, dim), dim, float(i));
    Good(&cluster, cluster.PushRows(table, keys, gradients));
    CHECK(cluster.core->statistics().pushes > 6);
    Rows rows = FakeCluster::RowMemory(count, dim, 0);
    Good(&cluster, cluster.Lookup(table, keys, rows));
    CHECK(cluster.core->statistics().pulls > 6);
    CHECK(cluster.core->statistics().bytes_pulled == count * dim * 4);
    for (size_t i = 0; i < count; ++i) {
      REQUIRE(Row(rows, i, dim)[0] == float(i));
      REQUIRE(Row(rows, i, dim)[dim - 1] == float(i));
    }
  }
}

TEST_CASE("more partitions than a record has groups go as several records") {
  FakeCluster cluster(Servers(1, 300));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 1, 1 << 20);
  cluster.servers[0]->config.large_slot_bytes = 4096 + (1 << 20);
  cluster.Join();
  const auto keys = Count(2000);
  Good(&cluster, cluster.PushRows(table, keys, FakeCluster::RowMemory(2000, 1, 1)));
  CHECK(cluster.core->statistics().pushes == 3);
  Good(&cluster, cluster.EndStep(table));
  for (const Seen& end : cluster.servers[0]->Of(RecordType::kEndStep)) CHECK(end.count == 1);
}

TEST_CASE("async rows take sequences per partition, and the end-step counts their groups") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  for (int i = 0; i < 3; ++i) {
    Good(&cluster, cluster.PushRows(table, Count(50), FakeCluster::RowMemory(50, kDim, 1)));
  }
  Good(&cluster, cluster.EndStep(table));
  std::map<uint32_t, uint64_t> last;
  for (const Seen& seen : cluster.servers[0]->Of(RecordType::kPushRows)) {
    CHECK(seen.sequence == ++last[seen.partition]);
  }
  const auto ends = cluster.servers[0]->Of(RecordType::kEndStep);
  REQUIRE(ends.size() == 4);
  for (const Seen& end : ends) {
    CHECK(end.sequence == last[end.partition] + 1);
    CHECK(end.count == last[end.partition]);
  }
}

TEST_CASE("a sync step of rows: pushes carry indices, the end-step counts them, all wait for it") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  for (uint64_t step = 0; step < 4; ++step) {
    for (auto& server : cluster.servers) server->hold_commits = true;
    const uint64_t committed = step;
    for (auto& server : cluster.servers) server->hold_commits = false;
    auto a = cluster.PushRows(table, Count(300), FakeCluster::RowMemory(300, kDim, 1));
    auto b = cluster.PushRows(table, {5, 6, 5}, FakeCluster::RowMemory(3, kDim, 1));
    cluster.RunFor(100 * kMilli);
    CHECK_FALSE(a->done);
    CHECK_FALSE(b->done);
    CHECK(cluster.core->BufferReleased(a->id));  // read, so the buffer is free already
    auto end = cluster.EndStep(table);
    Rows rows = FakeCluster::RowMemory(2, kDim, 0);
    auto lookup = cluster.Lookup(table, {5, 7}, rows);
    for (const auto& call : {a, b, end, lookup}) Good(&cluster, call);
    // Once more than the others in each step: 5 twice in the second push.
    CHECK(Row(rows, 0)[0] == 3 * float(committed + 1));
    CHECK(Row(rows, 1)[0] == float(committed + 1));
  }
  std::map<std::pair<uint32_t, uint64_t>, std::set<uint32_t>> indices;
  for (const Seen& seen : All(cluster, RecordType::kPushRows)) {
    CHECK(indices[{seen.partition, seen.sequence}].insert(seen.index()).second);
  }
  for (const Seen& end : All(cluster, RecordType::kEndStep)) {
    const auto& pushed = indices[{end.partition, end.sequence}];
    CHECK(end.count == pushed.size());
    if (!pushed.empty()) CHECK(*pushed.rbegin() == pushed.size() - 1);
  }
}

TEST_CASE("rows of the next sync step wait until the step before is committed") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  cluster.Join();
  cluster.servers[0]->hold_commits = true;
  const Rows gradients = FakeCluster::RowMemory(30, kDim, 1);
  cluster.PushRows(table, Count(30), gradients);
  cluster.EndStep(table);
  auto next = cluster.PushRows(table, Count(30), gradients);
  auto end = cluster.EndStep(table);
  cluster.RunFor(kSecond);
  for (const Seen& seen : cluster.servers[0]->Of(RecordType::kPushRows)) CHECK(seen.sequence == 0);
  cluster.servers[0]->hold_commits = false;
  Good(&cluster, next);
  Good(&cluster, end);
  CHECK(cluster.servers[0]->rows[table][29][0] == 2);
}

TEST_CASE(
    "a step that does not commit: the deadline error of a cold tier's table names the disk "
    "metric") {
  for (const bool tiered : {true, false}) {
    FakeCluster cluster;
    v1::TableSpec spec;
    spec.set_consistency(v1::CONSISTENCY_SYNC);
    spec.set_dim(kDim);
    if (tiered) spec.mutable_cold_tier()->set_hot_bytes(64 << 10);
    const uint32_t table = cluster.AddRows(spec);
    cluster.Join();
    cluster.servers[0]->hold_commits = true;
    auto push = cluster.PushRows(table, Count(30), FakeCluster::RowMemory(30, kDim, 1));
    auto end = cluster.EndStep(table);
    auto lookup = cluster.Lookup(table, {5}, FakeCluster::RowMemory(1, kDim, 0));
    REQUIRE(cluster.RunUntil([&] { return lookup->done && push->done && end->done; }));
    INFO(lookup->status);
    CHECK(lookup->status.code() == absl::StatusCode::kDeadlineExceeded);
    const std::string message(lookup->status.message());
    CHECK_THAT(message, Contains("waiting for version 1") && Contains("or is still being applied"));
    const std::string disk = "verbena_shard_cold_write_failures_total";
    if (tiered) CHECK_THAT(message, Contains(disk));
    if (!tiered) CHECK_THAT(message, !Contains(disk));
    // The error of a call that waits for the commit has the reason, too, and does not blame other
    // workers alone.
    for (const auto& call : {push, end}) {
      if (call->status.ok()) continue;
      const std::string waits(call->status.message());
      CHECK_THAT(waits, Contains("to commit"));
      CHECK(tiered == (waits.find(disk) != std::string::npos));
    }
    CHECK_FALSE(end->status.ok());
  }
}

TEST_CASE("a call without keys succeeds at once") {
  for (const auto consistency :
       {v1::CONSISTENCY_SYNC, v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SSP}) {
    FakeCluster cluster;
    const uint32_t table = cluster.AddEmbedding(consistency, kDim);
    cluster.Join();
    const Rows rows = FakeCluster::RowMemory(1, kDim, 0);
    // With `kMaxOperations` of them none would be left if one were not given back.
    for (int i = 0; i < 500; ++i) {
      for (const auto& call : {cluster.PushRows(table, {}, rows), cluster.Lookup(table, {}, rows),
                               cluster.Prefetch(table, {})}) {
        Good(&cluster, call);
      }
    }
  }
}

TEST_CASE("an invalid call names the argument, its value and the allowed values") {
  FakeCluster cluster;
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_SYNC, kDim);
  const uint32_t dense = cluster.AddTable(v1::CONSISTENCY_SYNC, 2);
  cluster.Join();
  const auto expect_error = [&](const FakeCluster::CallPtr& call, absl::StatusCode code,
                                const std::vector<std::string>& words) {
    REQUIRE(call->done);
    INFO(call->status);
    CHECK(call->status.code() == code);
    for (const std::string& word : words) {
      CHECK_THAT(std::string(call->status.message()), Contains(word));
    }
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Rows rows = FakeCluster::RowMemory(3, kDim, 0);
  const std::vector<uint64_t> many(client::kMaxKeys + 1);
  expect_error(cluster.Lookup(table, many, rows), kInvalid, {"4194305 keys", "0..4194304"});
  expect_error(cluster.PushRows(table, {1, 2, 1, 2}, rows), kInvalid,
               {"4 rows", "items", "dim 4", "need 64 bytes", "has 48 bytes"});
  rows.offset = 16;
  expect_error(cluster.Lookup(table, {1, 2, 3}, rows), kInvalid,
               {"need 48 bytes", "32 from offset 16"});
  rows.offset = 6;
  expect_error(cluster.Lookup(table, {1}, rows), kInvalid,
               {"region_offset is 6", "multiples of 4"});
  rows.offset = 1000;
  expect_error(cluster.Lookup(table, {1}, rows), kInvalid, {"0 from offset 1000"});
  expect_error(cluster.Lookup(table, {1}, {nullptr, 0}), kInvalid, {"the region is empty"});
  rows.offset = 0;
  expect_error(cluster.PushRows(dense, {1}, rows), kInvalid, {"weights", "dense", "Push()"});
  expect_error(cluster.Lookup(dense, {1}, rows), kInvalid, {"weights", "dense", "Pull()"});
  expect_error(cluster.Scan(dense, 0, 0, nullptr), kInvalid, {"weights", "dense"});
  expect_error(cluster.Scan(table, 4, 0, nullptr), kInvalid, {"partition is 4", "less than 4"});
  const client::ClientCore::Slice slice = {rows.block, 0, 0, 4};
  expect_error(cluster.Push(table, slice), kInvalid,
               {"items", "embedding table of dim 4", "PushRows()"});
  expect_error(cluster.Pull(table, slice), kInvalid, {"items", "embedding", "Lookup()"});
  expect_error(cluster.PushPull(table, slice, slice), kInvalid, {"items", "embedding"});
  expect_error(cluster.PushRows(99, {1}, rows), absl::StatusCode::kNotFound, {"99"});
}

TEST_CASE("an observer looks up and scans, and may not push") {
  FakeCluster::Options options;
  options.observer = true;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  const Rows rows = FakeCluster::RowMemory(1, kDim, 0);
  Good(&cluster, cluster.Lookup(table, {1}, rows));
  CHECK(Row(rows, 0)[0] == -1);
  const auto push = cluster.PushRows(table, {1}, rows);
  CHECK(push->status.code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("scans of all partitions bring every row once") {
  FakeCluster cluster(Servers(2));
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, kDim);
  cluster.Join();
  Rows gradients = FakeCluster::RowMemory(200, kDim, 0);
  for (size_t i = 0; i < 200; ++i) std::fill_n(Row(gradients, i), kDim, float(i));
  Good(&cluster, cluster.PushRows(table, Count(200), gradients));
  std::map<uint64_t, float> got;
  for (uint32_t p = 0; p < 8; ++p) {
    uint64_t cursor = 0;
    while (true) {
      auto result = std::make_shared<client::ScanResult>();
      Good(&cluster, cluster.Scan(table, p, cursor, result));
      if (result->keys.empty()) break;
      REQUIRE(result->rows.size() == result->keys.size() * kDim);
      for (size_t i = 0; i < result->keys.size(); ++i) {
        CHECK(PartitionOfKey(table, result->keys[i], 8) == p);
        CHECK(got.emplace(result->keys[i], result->rows[i * kDim + 3]).second);
      }
      cursor = result->next;
    }
  }
  REQUIRE(got.size() == 200);
  for (const auto& [key, value] : got) CHECK(value == float(key));
}

TEST_CASE("rows over shared memory, to and from memory that it cannot share") {
  FakeCluster::Options options;
  options.shm = true;
  options.servers = 2;
  FakeCluster cluster(options);
  const uint32_t table = cluster.AddEmbedding(v1::CONSISTENCY_ASYNC, 16);
  cluster.Join();
  std::vector<float> memory(500 * 16, 3.0f);
  const Rows rows = {*rdma::MemoryBlock::Register(memory.data(), memory.size() * sizeof(float)), 0};
  Good(&cluster, cluster.PushRows(table, Count(500), rows));
  std::fill(memory.begin(), memory.end(), 0.0f);
  Good(&cluster, cluster.Lookup(table, Count(500), rows));
  CHECK(std::all_of(memory.begin(), memory.end(), [](float v) { return v == 3.0f; }));
}

TEST_CASE("random pushes and lookups, with lanes that are lost, agree with a map") {
  for (const auto consistency : {v1::CONSISTENCY_ASYNC, v1::CONSISTENCY_SYNC}) {
    FakeCluster cluster(Servers(3));
    const uint32_t table = cluster.AddEmbedding(consistency, 2, 1024);
    cluster.Join();
    rdma::SimFaults faults;
    faults.connection_loss = 0.01;
    cluster.network.set_faults(faults);
    std::mt19937_64 random(3);
    std::map<uint64_t, float> model;
    for (int step = 0; step < 25; ++step) {
      std::vector<FakeCluster::CallPtr> calls;
      for (int push = 0; push < 3; ++push) {
        std::vector<uint64_t> keys(1 + random() % 300);
        for (uint64_t& key : keys) key = random() % 200;
        const Rows gradients = FakeCluster::RowMemory(keys.size(), 2, 0);
        for (size_t i = 0; i < keys.size(); ++i) {
          const float value = float(int(random() % 9) - 4);
          std::fill_n(Row(gradients, i, 2), 2, value);
          const auto [it, made] = model.emplace(keys[i], 0.0f);
          it->second += value;
        }
        calls.push_back(cluster.PushRows(table, keys, gradients));
      }
      calls.push_back(cluster.EndStep(table));
      if (random() % 2 == 0) {
        for (const auto& call : calls) Good(&cluster, call);
      }
      if (consistency == v1::CONSISTENCY_ASYNC) {
        for (const auto& call : calls) Good(&cluster, call);
      }
      const Rows rows = FakeCluster::RowMemory(200, 2, 0);
      Good(&cluster, cluster.Lookup(table, Count(200), rows));
      for (uint64_t key = 0; key < 200; ++key) {
        const auto it = model.find(key);
        REQUIRE(Row(rows, key, 2)[1] == (it == model.end() ? -1.0f : it->second));
      }
    }
    CHECK(cluster.core->statistics().records_resent > 0);
  }
}

}  // namespace rows_test
}  // namespace verbena::test
